//! The model against the thesis's table and figure, the search against trying everything.

use super::search::{best, frontier};
use super::*;

const MIXES: [Mix; 6] = [Mix::CREATE, Mix::UPDATE, Mix::STAT, Mix::MIXED, Mix::LIST, ALL];
/// Some of everything.
const ALL: Mix = Mix { found: 0.3, absent: 0.2, writes: 0.3, scans: 0.2 };
const MIB: f64 = 1048576.0;

/// The store of figure 5.9: r = 8, five levels from 2^17 rows on, about half a billion in all.
fn thesis_store(mix: Mix) -> Workload {
    let levels = (0..5).map(|level| 131_072.0 * 8f64.powi(level)).collect();
    Workload { levels, mix, costs: Costs::THESIS }
}

/// Table 5.2, row by row: memory, found, absent, write.
#[test]
fn designs_cost_what_table_5_2_says() {
    let (r, once) = (8.0, 0.146 / 16.0);
    let (f, g) = (0.001, 0.002);
    let table = [
        (0.0, 2.0, 2.0, r * once),
        (13.0, 2.0, 2.0 * f, r * once),
        (15.0, 1.0, f, r * once),
        (2.0, 1.0, 1.0, r * once),
        (0.0, r + 1.0, 2.0 * r, once),
        (15.0, 2.0, 2.0 * g, once),
        (17.0, 1.0, g, once),
        (2.0, (r + 1.0) / 2.0, r, once),
    ];
    let costs = Costs::THESIS;
    for (design, row) in Design::ALL.into_iter().zip(table) {
        let of = (
            costs.memory_bits(design),
            costs.found(design),
            costs.absent(design),
            costs.write(design),
        );
        assert_eq!(of, row, "{design}");
    }
}

/// The sums of section 5.4, written out.
#[test]
fn an_estimate_is_the_sums_of_the_paper() {
    let workload = Workload { levels: vec![10.0, 70.0, 500.0], ..thesis_store(ALL) };
    let (costs, rows) = (&workload.costs, 580.0);
    for number in 0..512 {
        let plan = [number % 8, number / 8 % 8, number / 64].map(|design| Design::ALL[design]);
        let [a, b, c] = plan;
        let found = 10.0 / rows * costs.found(a)
            + 70.0 / rows * (costs.found(b) + costs.absent(a))
            + 500.0 / rows * (costs.found(c) + costs.absent(a) + costs.absent(b));
        let absent = costs.absent(a) + costs.absent(b) + costs.absent(c);
        let write = 10.0 / rows * costs.write(a)
            + 70.0 / rows * (costs.write(a) + costs.write(b))
            + 500.0 / rows * (costs.write(a) + costs.write(b) + costs.write(c));
        let scan =
            costs.scan(a, 10.0 / rows) + costs.scan(b, 70.0 / rows) + costs.scan(c, 500.0 / rows);
        let estimate = workload.estimate(&plan);
        let is = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(is(estimate.found, found) && is(estimate.absent, absent), "{plan:?}");
        assert!(is(estimate.write, write) && is(estimate.scan, scan), "{plan:?}");
        let total = 0.3 * found + 0.2 * absent + 0.3 * write + 0.2 * scan;
        assert!(is(estimate.total, total), "{plan:?}");
        let shares = plan.iter().enumerate().map(|(level, design)| workload.share(level, *design));
        let sum = shares.fold((0.0, 0.0), |sum, share| (sum.0 + share.0, sum.1 + share.1));
        assert!(is(sum.0, estimate.total) && is(sum.1, estimate.memory_bytes), "{plan:?}");
    }
}

/// The cheapest of all 8^levels plans that fit.
fn brute_force(workload: &Workload, budget_bytes: f64) -> f64 {
    let levels = workload.levels.len();
    let plans = (0..8usize.pow(levels as u32)).map(|number| {
        let design = |level: usize| Design::ALL[number >> (3 * level) & 7];
        workload.estimate(&(0..levels).map(design).collect::<Vec<_>>())
    });
    let fitting = plans.filter(|estimate| estimate.memory_bytes <= budget_bytes);
    fitting.map(|estimate| estimate.total).fold(f64::INFINITY, f64::min)
}

#[test]
fn the_best_plan_is_that_of_a_brute_force_search() {
    for costs in [Costs::THESIS, Costs::VARVE] {
        for mix in MIXES {
            let odd = Workload { levels: vec![5e5, 1e5, 9e6, 3e7], mix, costs };
            let even = Workload { costs, ..thesis_store(mix) };
            for (workload, budgets) in
                [(odd, [0.0, 0.1, 3.0, 40.0, 90.0]), (even, [1.0, 60.0, 256.0, 700.0, 2000.0])]
            {
                for budget in budgets.map(|budget| budget * MIB) {
                    let plan = best(&workload, budget).unwrap();
                    assert!(plan.estimate.memory_bytes <= budget);
                    let least = brute_force(&workload, budget);
                    let above = plan.estimate.total / least - 1.0;
                    assert!(above.abs() < 1e-9, "{mix:?}, {budget}: {above} above {least}");
                }
            }
        }
    }
}

/// Figure 5.9: the cost falls as memory grows; with enough of it a found lookup is one read, and creating
/// costs the least once every level has a filter.
#[test]
fn the_curve_of_figure_5_9_falls_to_what_the_paper_says() {
    for mix in [Mix::CREATE, Mix::UPDATE, Mix::STAT, Mix::MIXED] {
        let curve = frontier(&thesis_store(mix));
        assert_eq!(curve[0].estimate.memory_bytes, 0.0);
        let falls = curve.windows(2).all(|pair| {
            let [less, more] = [pair[0].estimate, pair[1].estimate];
            less.memory_bytes < more.memory_bytes && less.total > more.total
        });
        assert!(falls && curve.len() > 10, "{mix:?}: {} plans", curve.len());
    }
    let last = |mix| frontier(&thesis_store(mix)).pop().unwrap();
    assert!((last(Mix::STAT).estimate.total - 1.0).abs() < 0.01);
    assert!(last(Mix::CREATE).designs.iter().all(|design| design.filter));
}

/// Section 5.4: between 256 and 900 MB the levels above have sub-levels, indexes and multi-level filters, and
/// the last is leveled with an index alone. (Without writes leveled filters do as well, and take less.)
#[test]
fn the_multi_store_layout_of_figure_5_4_is_chosen() {
    for mix in [Mix::CREATE, Mix::UPDATE, Mix::MIXED] {
        for megabytes in [320.0, 500.0, 850.0] {
            let plan = best(&thesis_store(mix), megabytes * 1e6).unwrap();
            let [above @ .., last] = &plan.designs[..] else { panic!("no levels") };
            assert!(above.iter().all(|design| *design == Design::ALL[6]), "{mix:?}: {above:?}");
            assert_eq!(*last, Design::ALL[3], "{mix:?} with {megabytes} MB");
        }
    }
}

#[test]
fn many_levels_are_searched_in_bounded_time() {
    let levels: Vec<f64> = (0..14).map(|level| 1e5 * 1.7f64.powi(level)).collect();
    let all: f64 = levels.iter().sum();
    let workload = Workload { levels, mix: Mix::MIXED, costs: Costs::VARVE };
    let curve = frontier(&workload);
    let least = best(&workload, all * 20.0 / 8.0).unwrap();
    assert_eq!(Some(&least), curve.last());
    assert!(least.estimate.total < best(&workload, all / 8.0).unwrap().estimate.total);
}

#[test]
fn levels_hold_all_rows() {
    for rows in [0.0, 1.0, 1000.0, 131_072.0, 1e6, 1e9, 1e12] {
        let workload = Workload::of_rows(rows, 131_072.0, Mix::STAT, Costs::VARVE);
        let held: f64 = workload.levels.iter().sum();
        assert!((held - rows.max(1.0)).abs() < 1.0, "{rows}: {:?}", workload.levels);
        assert!(workload.levels.len() <= search::LEVELS_MAX);
    }
    assert_eq!(Mix::of_counts(1.0, 0.0, 1.0, 0.0), Some(Mix::UPDATE));
    assert_eq!(Mix::of_counts(0.0, 0.0, 0.0, 0.0), None);
    assert_eq!(Mix::of_counts(-1.0, 2.0, 0.0, 0.0), None);
}

/// What a scan costs, by hand: a leveled level is one run; of a stepped one all runs are opened without a filter, and with
/// one those that hold rows of the prefix, which are the fewer the fewer rows the level has.
#[test]
fn a_scan_opens_the_runs_that_filters_do_not_rule_out() {
    let costs = Costs::THESIS;
    let [leveled, stepped] = [Layout::Leveled, Layout::Stepped];
    let design = |layout, filter, index| Design { layout, filter, index };
    assert_eq!(costs.scan(design(leveled, false, true), 0.1), 1.0);
    assert_eq!(costs.scan(design(stepped, false, true), 0.1), 8.0);
    assert_eq!(costs.scan(design(stepped, false, false), 0.1), 16.0);
    // 16 rows, of which a tenth is in the level, in one of 8 runs each.
    let held = 1.0 - (1.0 - 0.1f64 / 8.0).powi(16);
    let expected = 8.0 * (held + (1.0 - held) * 0.002);
    assert!((costs.scan(design(stepped, true, true), 0.1) - expected).abs() < 1e-9);
    let of = |share| costs.scan(design(leveled, true, true), share);
    assert!(of(0.001) < 0.02 && of(0.01) < 0.2 && of(0.9) > 0.99);
}

/// The more directories are listed, the fewer runs there are.
#[test]
fn listing_directories_is_not_made_slow() {
    let plan = |scans| {
        let mix = Mix::of_counts(1.0, 0.5, 1.0, scans).unwrap();
        best(&thesis_store(mix), 400e6).unwrap()
    };
    let runs = |plan: &search::Plan| -> f64 {
        plan.designs.iter().map(|d| if d.layout == Layout::Stepped { 8.0 } else { 1.0 }).sum()
    };
    let plans = [0.0, 0.1, 1.0, 10.0].map(plan);
    assert!(plans.windows(2).all(|pair| runs(&pair[0]) >= runs(&pair[1])));
    assert!(runs(&plans[0]) > 30.0 && runs(&plans[3]) == 5.0, "{:?}", plans[3].designs);
    assert!(plans[3].estimate.scan < plans[0].estimate.scan);
}
