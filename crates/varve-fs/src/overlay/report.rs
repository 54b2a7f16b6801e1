//! What there is to say about an overlay's file.

use std::fmt;
use std::io;
use std::path::Path;

use serde::Serialize;
use varve_env::{Env, OpenMode};
use varve_schema::overlay::{BLOCK_BYTES, OverlayKind};

use super::Overlay;

/// What an overlay's file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OverlayReport {
    /// `overlay`.
    pub file: &'static str,
    /// `kept` or `written`.
    pub kind: &'static str,
    /// Length of the whole file, in bytes.
    pub bytes: u64,
    /// Length of the base when the overlay began, in bytes.
    pub base_bytes: u64,
    /// Bytes of one block.
    pub block_bytes: u64,
    /// Blocks from which on nothing of the base is seen.
    pub limit: u64,
    /// The first block and how many, of those below the limit that are its own.
    pub own: Vec<(u64, u64)>,
}

/// Reads the overlay at `path`; `InvalidData` names file and offset if it is damaged.
pub fn inspect_overlay(env: &dyn Env, path: &Path) -> io::Result<OverlayReport> {
    let overlay = Overlay::load(env, env.open(path, OpenMode::Read)?, path)?;
    let state = overlay.state.read().clone();
    let own = state.own.runs(state.limit).into_iter().map(|run| (run.start, run.end - run.start));
    Ok(OverlayReport {
        file: "overlay",
        kind: match overlay.header.kind {
            OverlayKind::Kept => "kept",
            OverlayKind::Written => "written",
        },
        bytes: overlay.len()?,
        base_bytes: overlay.header.base_len,
        block_bytes: BLOCK_BYTES,
        limit: state.limit,
        own: own.collect(),
    })
}

impl fmt::Display for OverlayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OverlayReport { kind, bytes, base_bytes, block_bytes, limit, own, .. } = self;
        writeln!(f, "overlay: blocks {kind}, of {block_bytes} bytes each")?;
        writeln!(f, "length: {bytes} bytes, over {base_bytes} bytes")?;
        writeln!(f, "its own from block {limit} on, and")?;
        own.iter().try_for_each(|(first, count)| writeln!(f, "  {count} from block {first} on"))
    }
}
