//! What a program can take over, and the arguments of `varve mount` for an upgrade.

use std::fmt;

use serde::{Deserialize, Serialize};
use varve_fs::superblock::FORMAT_VERSION;

use super::handover_message;

/// The argument of `varve mount` for a process that takes over.
pub(crate) const SUCCESSOR: &str = "--successor";
/// The argument of `varve mount` for a process that only reports whether it could take over.
pub(crate) const PROBE: &str = "--probe";

/// What a binary can take over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abilities {
    /// The version of the handover message.
    handover_version: u32,
    /// The newest format of stores.
    format_version: u32,
}

impl Abilities {
    /// The abilities of this binary.
    pub fn of_this_version() -> Abilities {
        Abilities { handover_version: handover_message::VERSION, format_version: FORMAT_VERSION }
    }

    /// Whether a binary with these abilities can take over from this one.
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
