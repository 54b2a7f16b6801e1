//! What merges tables: the part of a store that keeps the levels in shape.
//!
//! 1. [`Compactor::compact_one`] asks the policy what is most urgent, and merges, moves, empties or rewrites tables.
//! 2. Each job ends with one change of the version set ([`crate::versions`]).
//! 3. After each job the pace of writes is set by what is left to do.
//!
//! Invariants:
//! - One job runs at a time: its lock is held through it. Only jobs, and calls that cannot go on without one, wait for it.
//! - What is remembered between jobs helps to choose and is never needed: it is forgotten at close.
//! - The locks below the job's lock (`searched`, `left_alone`) are held for moments, never during I/O, and no other lock is
//!   taken under them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use varve_types::{FileNo, KeyspaceId};

use super::memory::{Memory, TableDesign};
use super::outputs::OutputMaker;
use super::reclaim::Searched;
use crate::base::Base;
use crate::files::FileNumbers;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::options::DbOptions;
use crate::pace::Pace;
use crate::plans::Plans;
use crate::read_state::ReadStates;
use crate::snapshot::Snapshots;
use crate::space::SpaceGuard;
use crate::table::cache::TableCache;
use crate::versions::VersionSet;

/// See the module's comment.
pub(crate) struct Compactor {
    pub(crate) dir: PathBuf,
    pub(crate) options: Arc<DbOptions>,
    pub(crate) health: Arc<Health>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) cache: Arc<TableCache>,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) read_states: Arc<ReadStates>,
    pub(crate) file_numbers: Arc<FileNumbers>,
    pub(crate) space: Arc<SpaceGuard>,
    pub(crate) pace: Arc<Pace>,
    pub(crate) plans: Arc<Plans>,
    pub(crate) maker: Arc<OutputMaker>,
    pub(crate) versions: Arc<VersionSet>,
    /// What compactions remember of each key space; held through a job.
    pub(super) job: Mutex<BTreeMap<KeyspaceId, Memory>>,
    /// The last search in vain for rows that nobody sees.
    pub(super) searched: Mutex<Searched>,
    /// Segments that compactions cannot empty.
    pub(super) left_alone: Mutex<HashSet<FileNo>>,
    /// What a redesign knows of the tables; taken under the lock of jobs.
    pub(super) redesigned: Mutex<HashMap<FileNo, TableDesign>>,
}

impl Compactor {
    /// Nothing is remembered yet.
    pub(crate) fn new(
        base: &Base,
        space: Arc<SpaceGuard>,
        pace: Arc<Pace>,
        maker: Arc<OutputMaker>,
        versions: Arc<VersionSet>,
    ) -> Compactor {
        let Base { dir, options, health, metrics, cache, .. } = base.clone();
        let Base { snapshots, read_states, file_numbers, .. } = base.clone();
        Compactor {
            dir,
            options,
            health,
            metrics,
            cache,
            snapshots,
            read_states,
            file_numbers,
            space,
            pace,
            plans: Arc::clone(&maker.plans),
            maker,
            versions,
            job: Mutex::default(),
            searched: Mutex::default(),
            left_alone: Mutex::default(),
            redesigned: Mutex::default(),
        }
    }

    /// Waits for the job that runs, if one does.
    pub(crate) fn wait_until_idle(&self) {
        drop(self.job.lock());
    }

    /// Keeps compactions from running as long as the guard lives; `None` if one runs.
    pub(crate) fn hold_off(&self) -> Option<MutexGuard<'_, BTreeMap<KeyspaceId, Memory>>> {
        self.job.try_lock()
    }
}
