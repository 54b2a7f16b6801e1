//! The plan that flushes and compactions go by. The analytic model may choose another while the store runs, from the
//! operations that the store counts.
//!
//! 1. A store that was opened with [`Tuning::Auto`] asks before a compaction, once some memtables were flushed since
//!    the last time: what were the shares of found lookups, absent lookups, writes and scans?
//! 2. [`crate::tuning::layout::best_plan`] answers for the rows that there are and the memory that filters may take. A plan that is
//!    better by a tenth takes the place of the present one.
//! 3. From then on flushes and compactions go by the new plan; tables that are there change as they pass.
//!
//! Invariants:
//! - There is always one plan, and it is one that [`StorePlan`] can name.
//! - A plan is forgotten at close: the next open begins with the store's design.
//!
//! Source: SlimDB, thesis 5.4.

use std::sync::Arc;

use parking_lot::Mutex;
use varve_format::edit::TableMeta;
use varve_format::filter::FilterPolicy;
use varve_format::table::TableOptions;
use varve_types::SublevelId;

use crate::compaction::policy::{Shape, level_for};
use crate::keyspace::Keyspace;
use crate::metrics::Metrics;
use crate::options::{CompactionPolicy, DbOptions, Tuning, ValuePolicy};
use crate::place::Place;
use crate::read_state::ReadState;
use crate::tuning::layout::{StorePlan, best_plan, estimate};
use crate::tuning::{Costs, Mix, Workload};
use crate::version::Version;

/// Flushes from one question to the next.
const FLUSHES: u64 = 4;
/// Filters and indexes may take this part of the cache.
const FILTER_SHARE: usize = 2;
/// A plan is changed for one that costs at most this part of it.
const WORTHWHILE: f64 = 0.9;
/// What a row takes in a table besides its key and value, nearly.
const ROW_OVERHEAD_BYTES: f64 = 8.0;

/// What tables and levels are made like.
#[derive(Debug)]
pub(crate) struct Plans {
    options: Arc<DbOptions>,
    metrics: Arc<Metrics>,
    plan: Mutex<Plan>,
}

/// The plan in force and what it was chosen for.
#[derive(Debug)]
struct Plan {
    now: StorePlan,
    changes: u64,
    flushes: u64,
    /// Found lookups, absent lookups, writes and scans that were counted at the last question.
    counted: [u64; 4],
    mix: Option<Mix>,
}

impl Plans {
    /// What `options` say.
    pub(crate) fn new(options: Arc<DbOptions>, metrics: Arc<Metrics>) -> Plans {
        let now = StorePlan {
            compaction: options.compaction,
            sublevel_map: options.sublevel_map,
            filtered_levels: options.filtered_levels,
        };
        let plan = Plan { now, changes: 0, flushes: 0, counted: [0; 4], mix: None };
        Plans { options, metrics, plan: Mutex::new(plan) }
    }

    /// The plan in force, how often it changed, and the mix of operations it was last asked for.
    pub(crate) fn present(&self) -> (StorePlan, u64, Option<Mix>) {
        let plan = self.plan.lock();
        (plan.now, plan.changes, plan.mix)
    }

    /// The shape that compactions keep.
    pub(crate) fn shape(&self) -> Shape {
        let policy = self.plan.lock().now.compaction;
        let mut options = DbOptions::clone(&self.options);
        if policy != options.compaction {
            options.set_compaction(policy);
        }
        Shape {
            at_rest: false,
            room_bytes: u64::MAX,
            values_in_rows: self.options.values == ValuePolicy::InRow,
            policy,
            sublevels_trigger: options.sublevels_trigger,
            level_base_bytes: options.level_base_bytes,
            level_multiplier: options.level_multiplier,
            table_bytes: options.table_bytes,
        }
    }

    /// The filter of new tables of `level`.
    fn filter_policy(&self, level: usize) -> FilterPolicy {
        let has = self.plan.lock().now.filtered_levels.holds(level);
        if has { self.options.filter } else { FilterPolicy::None }
    }

    /// How tables of a key space are built.
    pub(crate) fn table_options(&self, space: &Keyspace, level: usize) -> TableOptions {
        TableOptions {
            keyspace: space.id,
            prefixed: space.options.prefixed,
            block_bytes: self.options.block_bytes,
            compression: space.compression(),
            index: self.options.index,
            filter: self.filter_policy(level),
            cut_after_prefix_bytes: self.stitch_threshold_bytes(),
        }
    }

    /// The fewest bytes of a run of blocks that merges leave where it is; 0 if they copy everything.
    pub(crate) fn stitch_threshold_bytes(&self) -> u64 {
        let bytes = self.options.stitch_threshold_bytes;
        if self.plan.lock().now.compaction.may_stitch() { bytes.into() } else { 0 }
    }

    /// Whether merges leave runs of blocks where they are. Where large values stand apart from their rows, blocks are
    /// small, and pointers have to be counted anew: all are copied.
    pub(crate) fn stitches(&self) -> bool {
        self.stitch_threshold_bytes() > 0 && self.options.values == ValuePolicy::InRow
    }

    /// Where a table goes that is newer than all of `version`: deep if nothing overlaps it there or above, else to the
    /// sub-level `newest` of level 0.
    pub(crate) fn place_of(
        &self,
        version: &Version,
        meta: &TableMeta,
        newest: SublevelId,
        may_go_deep: bool,
    ) -> Place {
        let level = if may_go_deep { level_for(&self.shape(), &version.runs(), meta) } else { 0 };
        let joined = version.level(level).first().filter(|_| level > 0);
        Place { level, sublevel: joined.map_or(newest, |sublevel| sublevel.id()) }
    }

    /// Asks whether another plan would be better. True if it is, and in force now.
    pub(crate) fn retune(&self, read_state: &ReadState) -> bool {
        if self.options.tuning != Tuning::Auto {
            return false;
        }
        let mut plan = self.plan.lock();
        let flushes = self.metrics.flushes.get();
        if flushes < plan.flushes + FLUSHES {
            return false;
        }
        let found = self.metrics.gets_found.get();
        let absent = self.metrics.gets.get().saturating_sub(found);
        let counts = [found, absent, self.metrics.writes.get(), self.metrics.scans.get()];
        let [found, absent, writes, scans] =
            std::array::from_fn(|i| counts[i].saturating_sub(plan.counted[i]) as f64);
        (plan.flushes, plan.counted) = (flushes, counts);
        plan.mix = Mix::of_counts(found, absent, writes, scans);
        let workload = plan.mix.and_then(|mix| self.workload(read_state, mix));
        let Some(workload) = workload else { return false };
        let budget = self.options.cache_bytes() / FILTER_SHARE;
        let (best, cost) = best_plan(&workload, budget as f64);
        let present = estimate(&workload, plan.now);
        let fits = present.memory_bytes <= budget as f64;
        if best == plan.now || (fits && cost.total > present.total * WORTHWHILE) {
            return false;
        }
        log::info!("the plan is now {best:?}, for {:?}; it was {:?}", plan.mix, plan.now);
        plan.now = best;
        plan.changes += 1;
        true
    }

    /// What is asked of the store, in the model's terms; `None` while it is of one level.
    fn workload(&self, read_state: &ReadState, mix: Mix) -> Option<Workload> {
        let metas =
            || read_state.spaces().flat_map(|space| space.version.tables().map(|(_, t)| t.meta()));
        let rows: u64 = metas().map(|meta| meta.entries).sum();
        let bytes: u64 = metas().map(|meta| meta.size_bytes).sum();
        let row_bytes = bytes as f64 / rows.max(1) as f64 + ROW_OVERHEAD_BYTES;
        let sublevels = DbOptions::sublevels(CompactionPolicy::Stepped) as f64;
        let first = sublevels * self.options.memtable_bytes as f64 / row_bytes;
        let block_rows = (f64::from(self.options.block_bytes) / row_bytes).max(1.0);
        let workload =
            Workload::of_rows(rows as f64, first, mix, Costs { block_rows, ..Costs::VARVE });
        (workload.levels.len() > 1).then_some(workload)
    }
}
