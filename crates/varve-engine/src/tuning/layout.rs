//! The plans that a store can carry out, and the choice among them.
//!
//! A store is leveled, stepped above one leveled bottom, or stepped all the way down; what is stepped above the bottom
//! has one multi-level filter over all of it or none; filters of single levels go to the uppermost; and
//! indexes always are in memory. That leaves about as many plans as there are levels, and all are tried.
//!
//! That the uppermost levels have the filters loses nothing as long as levels grow: a filter spares an absent lookup the
//! same wherever it is, a found one more the further up, a scan too, as there it holds less of any directory, and
//! further down it takes more memory.

use serde::Serialize;

use super::{Design, Estimate, Layout, Workload};
use crate::options::{CompactionPolicy, FilteredLevels};

/// A plan that a store can carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StorePlan {
    /// How tables are merged.
    pub compaction: CompactionPolicy,
    /// Whether one filter stands over the levels above the last.
    pub sublevel_map: bool,
    /// The levels whose tables have filters.
    pub filtered_levels: FilteredLevels,
}

impl StorePlan {
    /// All plans for a store of `levels` levels.
    fn all(levels: usize) -> Vec<StorePlan> {
        let plan = |compaction, sublevel_map, filtered: usize| StorePlan {
            compaction,
            sublevel_map,
            filtered_levels: if filtered >= levels {
                FilteredLevels::All
            } else {
                FilteredLevels::Upper(filtered as u8)
            },
        };
        let leveled = (0..=levels).map(|n| plan(CompactionPolicy::Leveled, false, n));
        let mut plans: Vec<_> = leveled.collect();
        let above = levels.saturating_sub(1);
        if above > 0 {
            for filtered in [above, levels] {
                plans.push(plan(CompactionPolicy::LazyLeveled, true, filtered));
            }
            plans.push(plan(CompactionPolicy::LazyLeveled, false, 0));
            plans.push(plan(CompactionPolicy::Stepped, true, above));
            plans.push(plan(CompactionPolicy::Stepped, false, 0));
        }
        plans
    }

    /// What each of `levels` levels is made of.
    pub fn designs(&self, levels: usize) -> Vec<Design> {
        let design = |level: usize| {
            let is_last = level + 1 == levels;
            let layout = match self.compaction {
                CompactionPolicy::Leveled => Layout::Leveled,
                CompactionPolicy::LazyLeveled if is_last => Layout::Leveled,
                CompactionPolicy::LazyLeveled
                | CompactionPolicy::Stepped
                | CompactionPolicy::Stitched => Layout::Stepped,
            };
            let filter = match layout {
                Layout::Leveled => self.filtered_levels.holds(level),
                Layout::Stepped => self.sublevel_map && !is_last,
            };
            Design { layout, filter, index: true }
        };
        (0..levels).map(design).collect()
    }
}

/// The plan of least cost of those that fit into `budget_bytes`, or of least memory if none does.
pub fn best_plan(workload: &Workload, budget_bytes: f64) -> (StorePlan, Estimate) {
    let levels = workload.levels.len();
    let estimated = StorePlan::all(levels).into_iter().map(|plan| (plan, estimate(workload, plan)));
    let (fitting, others): (Vec<_>, Vec<_>) =
        estimated.partition(|(_, estimate)| estimate.memory_bytes <= budget_bytes);
    let least = fitting.into_iter().min_by(|a, b| a.1.total.total_cmp(&b.1.total));
    let smallest =
        || others.into_iter().min_by(|a, b| a.1.memory_bytes.total_cmp(&b.1.memory_bytes));
    let leveled = StorePlan {
        compaction: CompactionPolicy::Leveled,
        sublevel_map: false,
        filtered_levels: FilteredLevels::Upper(0),
    };
    least.or_else(smallest).unwrap_or_else(|| (leveled, estimate(workload, leveled)))
}

/// What `plan` comes to.
pub fn estimate(workload: &Workload, plan: StorePlan) -> Estimate {
    workload.estimate(&plan.designs(workload.levels.len()))
}

#[cfg(test)]
mod tests {
    use super::super::{Costs, Mix};
    use super::*;

    fn growing(levels: usize, mix: Mix) -> Workload {
        let levels = (0..levels).map(|level| 131_072.0 * 8f64.powi(level as i32)).collect();
        Workload { levels, mix, costs: Costs::VARVE }
    }

    /// Of all choices of leveled levels with filters none beats the uppermost ones, and of all plans that a store
    /// can carry out none beats the best.
    #[test]
    fn the_best_plan_is_that_of_a_brute_force_search() {
        let all = Mix { found: 0.3, absent: 0.2, writes: 0.3, scans: 0.2 };
        for mix in [Mix::CREATE, Mix::UPDATE, Mix::STAT, Mix::MIXED, Mix::LIST, all] {
            for levels in 1..=6 {
                let workload = growing(levels, mix);
                let rows = workload.rows();
                for bits_per_row in [0.75, 1.0, 2.0, 5.0, 9.0, 10.0, 18.0] {
                    let budget = rows * bits_per_row / 8.0;
                    let (plan, found) = best_plan(&workload, budget);
                    assert!(found.memory_bytes <= budget * 1.001 || bits_per_row < 1.0);
                    assert_eq!(found, workload.estimate(&plan.designs(levels)));
                    for set in 0..1u32 << levels {
                        let design = |level: usize| Design {
                            layout: Layout::Leveled,
                            filter: set >> level & 1 == 1,
                            index: true,
                        };
                        let other = workload.estimate(&(0..levels).map(design).collect::<Vec<_>>());
                        let fits = other.memory_bytes <= budget;
                        assert!(!fits || other.total >= found.total - 1e-9, "{set:b} of {levels}");
                    }
                }
            }
        }
    }

    #[test]
    fn memory_and_mix_decide() {
        let of = |mix, bits_per_row: f64| {
            let workload = growing(5, mix);
            best_plan(&workload, workload.rows() * bits_per_row / 8.0).0
        };
        let create = of(Mix::CREATE, 20.0);
        assert!(create.sublevel_map && create.compaction != CompactionPolicy::Leveled);
        assert_eq!(create.filtered_levels, FilteredLevels::All);
        // Figure 5.4: what is found needs no filter on the last level.
        let update = of(Mix::UPDATE, 4.0);
        assert_eq!(update.compaction, CompactionPolicy::LazyLeveled);
        assert!(update.sublevel_map && update.filtered_levels != FilteredLevels::All);
        // Too little for a filter over the upper levels, and nothing to write.
        assert_eq!(of(Mix::STAT, 1.2).compaction, CompactionPolicy::Leveled);
        // Much is written, but directories are listed as often.
        let listed = Mix { found: 0.0, absent: 0.3, writes: 0.4, scans: 0.3 };
        assert_eq!(of(listed, 20.0).compaction, CompactionPolicy::Leveled);
    }
}
