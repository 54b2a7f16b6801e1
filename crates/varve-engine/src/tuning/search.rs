//! Searches the plans of a workload.
//!
//! 1. Begin with the plan of no levels. For each level, extend each plan by each design.
//! 2. Drop each plan that takes no less memory and costs no less than another: whatever the levels that
//!    follow add, they add it to both.
//! 3. What is left after the last level is the frontier: sorted by memory, its cost falls. With up to
//!    [`PLANS_MAX`] plans kept at each level the search is exact, as if all 8^levels were tried.
//! 4. Where more are left, plans of nearly the same memory are thinned out, cheapest first: the cost found is
//!    then an upper bound. Stores of up to seven levels stay below.

use super::{Design, Estimate, Workload};

/// The most levels a workload may have.
pub const LEVELS_MAX: usize = 16;
/// Costs that differ by less, relatively, are the same.
const ROUNDING: f64 = 1e-12;
/// Plans kept after each level.
const PLANS_MAX: usize = 20_000;

/// A plan and what it comes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Of each level.
    pub designs: Vec<Design>,
    /// What it comes to.
    pub estimate: Estimate,
}

/// A plan of the first levels.
#[derive(Clone, Debug)]
struct Partial {
    memory_bytes: f64,
    total: f64,
    /// Of each level a number in [`Design::ALL`], 3 bits each.
    designs: u64,
}

/// All plans that no other beats in memory and in cost, by memory: the least first.
pub fn frontier(workload: &Workload) -> Vec<Plan> {
    let mut plans = vec![Partial { memory_bytes: 0.0, total: 0.0, designs: 0 }];
    for level in 0..workload.levels.len().min(LEVELS_MAX) {
        let shares = Design::ALL.map(|design| workload.share(level, design));
        let extended = plans.iter().flat_map(|plan| {
            shares.iter().enumerate().map(move |(number, (total, memory_bytes))| Partial {
                memory_bytes: plan.memory_bytes + memory_bytes,
                total: plan.total + total,
                designs: plan.designs | (number as u64) << (3 * level),
            })
        });
        plans = thinned(undominated(extended.collect()));
    }
    let designs_of = |plan: &Partial| {
        let number = |level: usize| (plan.designs >> (3 * level) & 7) as usize;
        (0..workload.levels.len()).map(|level| Design::ALL[number(level)]).collect::<Vec<_>>()
    };
    let plans = plans.iter().map(|plan| {
        let designs = designs_of(plan);
        let estimate = workload.estimate(&designs);
        Plan { designs, estimate }
    });
    plans.collect()
}

/// The cheapest plan that fits into `budget_bytes` of memory. The plan without filters and indexes fits
/// into any.
pub fn best(workload: &Workload, budget_bytes: f64) -> Option<Plan> {
    let plans = frontier(workload);
    let fitting = plans.into_iter().take_while(|plan| plan.estimate.memory_bytes <= budget_bytes);
    fitting.last()
}

/// Drops what another is no worse than in both respects. Of equal ones the first stays.
fn undominated(mut plans: Vec<Partial>) -> Vec<Partial> {
    plans.sort_by(|a, b| {
        let by_memory = a.memory_bytes.total_cmp(&b.memory_bytes);
        by_memory.then(a.total.total_cmp(&b.total)).then(a.designs.cmp(&b.designs))
    });
    let mut cheapest = f64::INFINITY;
    plans.retain(|plan| {
        let better = plan.total < cheapest * (1.0 - ROUNDING);
        if better {
            cheapest = plan.total;
        }
        better
    });
    plans
}

/// At most [`PLANS_MAX`] of the plans, spread evenly, the first and the last among them.
fn thinned(plans: Vec<Partial>) -> Vec<Partial> {
    let count = plans.len();
    if count <= PLANS_MAX {
        return plans;
    }
    let kept = (0..PLANS_MAX).map(|i| plans[i * (count - 1) / (PLANS_MAX - 1)].clone());
    kept.collect()
}
