//! What all parts of a store share: the machine, the options, and what is counted, cached, pinned and published.
//!
//! Invariant: none of these calls a part.

use std::path::PathBuf;
use std::sync::Arc;

use varve_env::Env;

use crate::files::FileNumbers;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::options::DbOptions;
use crate::read_state::ReadStates;
use crate::reserve::Reserve;
use crate::snapshot::Snapshots;
use crate::table::cache::TableCache;

/// See the module's comment.
#[derive(Clone)]
pub(crate) struct Base {
    pub(crate) env: Arc<dyn Env>,
    pub(crate) dir: PathBuf,
    pub(crate) options: Arc<DbOptions>,
    pub(crate) health: Arc<Health>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) cache: Arc<TableCache>,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) read_states: Arc<ReadStates>,
    pub(crate) file_numbers: Arc<FileNumbers>,
    pub(crate) reserve: Arc<Reserve>,
}
