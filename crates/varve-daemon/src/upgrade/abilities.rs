//! What a program can take over, and the arguments of `varve mount` that belong to an upgrade.

use std::fmt;

use serde::{Deserialize, Serialize};
use varve_fs::superblock::FORMAT_VERSION;

use super::handover_message;

/// The argument of `varve mount` for a process that takes over.
pub(crate) const SUCCESSOR: &str = "--successor";
/// The argument of `varve mount` for a process that only says whether it could.
pub(crate) const PROBE: &str = "--probe";

/// What a binary can take over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abilities {
    /// The version of the state that a daemon leaves.
    handover_version: u32,
    /// The newest layout of stores.
    format_version: u32,
}

impl Abilities {
    /// Those of this binary.
    pub fn of_this_version() -> Abilities {
        Abilities { handover_version: handover_message::VERSION, format_version: FORMAT_VERSION }
    }

    /// Whether a binary with them can follow one of this version.
    pub(super) fn suffice(&self) -> bool {
        let own = Abilities::of_this_version();
        self.handover_version == own.handover_version && self.format_version >= own.format_version
    }
}

impl fmt::Display for Abilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Abilities { handover_version, format_version } = self;
        write!(f, "handover version {handover_version}, format version {format_version}")
    }
}
