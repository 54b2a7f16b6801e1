//! Makes the parts of a store, from those that know of no other upward.
//!
//! ```text
//!   branches
//!      |
//!   commits (write, ingest, key spaces)
//!      |         \
//!   flusher     locking
//!      |    \      |
//!  compactor   log
//!      |      /
//!   version set          reads
//!      |                   |
//!   maps, plans, output maker, space, external syncs, locks, work
//!      |
//!   what all parts share (base)
//! ```
//!
//! Invariant: each part holds only parts that stand below it, so that none can call upward.

use std::sync::Arc;

use super::Inner;
use crate::base::Base;
use crate::branch::handle::Branches;
use crate::commit::flush::Flusher;
use crate::commit::log::{Log, Writer};
use crate::commit::work::Work;
use crate::commit::write::Commits;
use crate::compaction::compactor::Compactor;
use crate::compaction::outputs::OutputMaker;
use crate::external::ExternalSyncs;
use crate::manifest::Manifest;
use crate::pace::Pace;
use crate::plans::Plans;
use crate::reads::Reads;
use crate::space::SpaceGuard;
use crate::sublevel_map::findings::Findings;
use crate::sublevel_map::saved::{Maps, SavedMaps};
use crate::txn::locking::Locking;
use crate::txn::manager::Locks;
use crate::versions::VersionSet;

/// The store of which `base` and what follows was opened.
pub(super) fn assembled(
    base: Base,
    writer: Writer,
    manifest: Manifest,
    saved_maps: SavedMaps,
) -> Inner {
    let Base { options, health, metrics, reserve, .. } = base.clone();
    let findings = Arc::new(Findings::new(options.findings_bytes()));
    let space = Arc::new(SpaceGuard::new(Arc::clone(&reserve), options.space_reserve_bytes));
    let external = Arc::new(ExternalSyncs::new(Arc::clone(&health), base.dir.clone()));
    let plans = Arc::new(Plans::new(Arc::clone(&options), Arc::clone(&metrics)));
    let (locks, work, pace) = <(Arc<Locks>, Arc<Work>, Arc<Pace>)>::default();

    let reads = Arc::new(Reads::new(&base, Arc::clone(&findings)));
    let maps = Arc::new(Maps::new(&base, Arc::clone(&space), findings, saved_maps));
    let maker = Arc::new(OutputMaker::new(&base, Arc::clone(&plans)));
    let versions = Arc::new(VersionSet::new(&base, plans, Arc::clone(&maps), manifest));
    let (kept, made) = (Arc::clone(&space), Arc::clone(&versions));
    let compactor = Arc::new(Compactor::new(&base, kept, pace, maker, made));
    let log = Arc::new(Log::new(
        &base,
        Arc::clone(&external),
        Arc::clone(&locks),
        Arc::clone(&work),
        Arc::clone(&versions),
        writer,
    ));
    let flusher = Arc::new(Flusher::new(&base, Arc::clone(&compactor), Arc::clone(&log)));
    let locking = Arc::new(Locking::new(&base, Arc::clone(&log)));
    let commits = Arc::new(Commits::new(&base, Arc::clone(&flusher), locking));
    let branches = Arc::new(Branches::new(&base, Arc::clone(&reads), Arc::clone(&commits)));
    let Base { env, dir, .. } = base;
    Inner {
        env,
        dir,
        options,
        health,
        metrics,
        reserve,
        space,
        work,
        external,
        locks,
        maps,
        versions,
        reads,
        compactor,
        log,
        flusher,
        commits,
        branches,
    }
}
