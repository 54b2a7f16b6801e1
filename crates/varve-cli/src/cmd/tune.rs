//! `varve tune`: what the levels of a store should be made of, by the analytic model; and makes them so, or as told.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;
use varve::{Error, Result, size, store};
use varve_daemon::holder::{require_offline, superblock};
use varve_engine::design::{Compaction, TableFilter};
use varve_engine::options::{CompactionPolicy, Tuning};
use varve_engine::tuning::layout::{StorePlan, best_plan};
use varve_engine::tuning::search::{self, Plan};
use varve_engine::tuning::{Costs, Design, Estimate, Mix, Workload};
use varve_engine::{Redesign, StoreDesign};

use crate::cmd::design::DesignOptions;
use crate::output;

/// Rows of a memtable, which make a sub-level of the first level.
const FIRST_LEVEL_ROWS: f64 = 131_072.0;
/// Steps of the curve that are printed.
const CURVE_STEPS: usize = 16;

/// The arguments.
#[derive(Args)]
#[command(
    after_help = "With --preset or another option of `varve format` the design of the store changes by these options; the store\n\
    must not be mounted. Every file stays readable: the store uses the tables that it has, and compactions write tables\n\
    of the new design from the next mount on. With --now the command writes all tables again at once, one after the\n\
    other; it may be interrupted, and continues when it is called again. --now alone finishes an earlier change, also\n\
    on a mount."
)]
pub(crate) struct Arguments {
    /// A store that is not mounted, whose rows are counted; with --now alone also a path on its mount [default: any store with
    /// --rows rows]
    store: Option<PathBuf>,
    #[command(flatten)]
    design: Option<DesignOptions>,
    /// Change the design of the store to the plan; its tables follow as they are merged
    #[arg(long, requires = "store", conflicts_with = "design")]
    apply: bool,
    /// Let the store choose by itself from now on, by the operations that it counts
    #[arg(long, requires = "store", conflicts_with_all = ["apply", "design"])]
    auto: bool,
    /// Write all tables again that are not of the store's design yet
    #[arg(long, requires = "store")]
    now: bool,
    /// Rows of the store: about one for each name
    #[arg(long, default_value_t = 100_000_000, conflicts_with_all = ["store", "design"])]
    rows: u64,
    /// Memory for filters and indexes, such as 256M
    #[arg(long, default_value = "256M", value_parser = size::parse, conflicts_with = "design")]
    memory: u64,
    /// The most frequent operations
    #[arg(long, value_enum, default_value = "mixed", conflicts_with_all = ["operations", "design"])]
    mix: NamedMix,
    /// The mix as numbers: lookups that find a name, lookups that do not, writes, and listings of a directory
    #[arg(long, value_names = ["FOUND", "ABSENT", "WRITES", "SCANS"], num_args = 3..=4, conflicts_with = "design")]
    operations: Option<Vec<f64>>,
    /// The costs of the structures: measured on Varve, or from the thesis that has the model
    #[arg(long, value_enum, default_value = "varve", conflicts_with = "design")]
    costs: NamedCosts,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum NamedMix {
    /// Creating files: half absent lookups, half writes
    Create,
    /// Changing attributes: half lookups that find, half writes
    Update,
    /// Reading attributes
    Stat,
    /// Half lookups that find, a quarter that do not, a quarter writes
    Mixed,
    /// Listing directories: half listings, half lookups that find
    List,
}

#[derive(Clone, Copy, ValueEnum)]
enum NamedCosts {
    /// As measured
    Varve,
    /// As in the thesis
    Thesis,
}

/// The answer, as JSON.
#[derive(Serialize)]
struct Advice {
    workload: Workload,
    /// The costs of each design.
    designs: Vec<DesignCosts>,
    /// The best plan within the given memory.
    plan: PlanReport,
    /// The best plan that a store can carry out.
    store_plan: StorePlanReport,
    /// The best plans, by memory.
    curve: Vec<PlanReport>,
    /// The result of writing all tables again, with --now.
    redesign: Option<Redesign>,
}

#[derive(Serialize)]
struct DesignCosts {
    design: Design,
    memory_bits: f64,
    found: f64,
    absent: f64,
    write: f64,
}

#[derive(Serialize)]
struct PlanReport {
    designs: Vec<Design>,
    #[serde(flatten)]
    estimate: Estimate,
}

#[derive(Serialize)]
struct StorePlanReport {
    #[serde(flatten)]
    plan: StorePlan,
    #[serde(flatten)]
    estimate: Estimate,
}

/// The result of a change of design, as JSON.
#[derive(Serialize)]
struct Redesigned<'a> {
    #[serde(with = "varve_engine::paths")]
    store: &'a PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    superblock: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    redesign: Option<Redesign>,
}

impl From<Plan> for PlanReport {
    fn from(plan: Plan) -> PlanReport {
        PlanReport { designs: plan.designs, estimate: plan.estimate }
    }
}

/// Chooses a design and prints it, or changes the design of a store.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match (&arguments.design, &arguments.store) {
        (Some(options), _) => redesign(arguments, options),
        (None, Some(dir)) if arguments.now && !arguments.apply && !arguments.auto => {
            let redesign = finish(arguments)?;
            if arguments.json {
                return output::json(&Redesigned { store: dir, superblock: None, redesign });
            }
            show_redesign(redesign);
            Ok(())
        }
        (None, _) => advise(arguments),
    }
}

/// Writes all tables again that are not of the store's design, with --now.
fn finish(arguments: &Arguments) -> Result<Option<Redesign>> {
    let Some(dir) = arguments.store.as_ref().filter(|_| arguments.now) else { return Ok(None) };
    let mut bar = output::Progress::new();
    let mut most = 0;
    let mut progress = |left: &Redesign| {
        most = most.max(left.bytes_left);
        let part = 1000 - (left.bytes_left * 1000).checked_div(most).unwrap_or(0);
        let (tables, bytes) = (left.tables_left, size::show(left.bytes_left));
        bar.bar(u16::try_from(part).ok(), &format!("{tables} tables, {bytes} left"));
    };
    varve_daemon::redesign::redesign(dir, &mut progress).map(Some)
}

fn show_redesign(redesign: Option<Redesign>) {
    let Some(Redesign { tables, rewrites, written_bytes, .. }) = redesign else { return };
    let written = size::show(written_bytes);
    output::line(format!(
        "All {tables} tables are of the store's design; {rewrites} times one was written again for that, {written}."
    ));
}

/// Changes the design of the store by `options`.
fn redesign(arguments: &Arguments, options: &DesignOptions) -> Result<()> {
    let Some(dir) = &arguments.store else {
        return Err(Error::usage(
            "the command line names no store whose design to change".to_owned(),
        )
        .hint("name one: `varve tune STORE --preset slimfs`"));
    };
    require_offline(dir)?;
    let superblock = store::change_design(dir, |design| *design = options.over(*design))?;
    let redesign = finish(arguments)?;
    if arguments.json {
        let superblock = Some(superblock.public());
        return output::json(&Redesigned { store: dir, superblock, redesign });
    }
    output::line(format!("{} is made as told from its next mount on.", dir.display()));
    show_redesign(redesign);
    Ok(())
}

/// Chooses a design by the model.
fn advise(arguments: &Arguments) -> Result<()> {
    let costs = match arguments.costs {
        NamedCosts::Varve => Costs::VARVE,
        NamedCosts::Thesis => Costs::THESIS,
    };
    let rows = match &arguments.store {
        Some(dir) => {
            superblock(dir)?;
            store::rows(dir)?.0
        }
        None => arguments.rows,
    };
    let workload = Workload::of_rows(rows as f64, FIRST_LEVEL_ROWS, mix_of(arguments)?, costs);
    let Some(plan) = search::best(&workload, arguments.memory as f64) else {
        return Err(Error::failed("no plan fits into the given memory")
            .hint("raise --memory, or lower --rows"));
    };
    let designs = Design::ALL.iter().map(|&design| DesignCosts {
        design,
        memory_bits: costs.memory_bits(design),
        found: costs.found(design),
        absent: costs.absent(design),
        write: costs.write(design),
    });
    let curve = search::frontier(&workload);
    let steps = spread(curve);
    let (store_plan, estimate) = best_plan(&workload, arguments.memory as f64);
    if let Some(dir) = arguments.store.as_ref().filter(|_| arguments.apply || arguments.auto) {
        require_offline(dir)?;
        store::change_design(dir, |design| change(design, store_plan, arguments.auto))?;
    }
    let advice = Advice {
        designs: designs.collect(),
        plan: plan.into(),
        store_plan: StorePlanReport { plan: store_plan, estimate },
        curve: steps.into_iter().map(PlanReport::from).collect(),
        redesign: finish(arguments)?,
        workload,
    };
    if arguments.json {
        return output::json(&advice);
    }
    show(&advice);
    if arguments.apply {
        output::line("\nThe store is made so from its next mount on.");
    } else if arguments.auto {
        output::line("\nThe store chooses by itself from its next mount on.");
    }
    show_redesign(advice.redesign);
    Ok(())
}

/// Changes `design` to `plan`, or to one that adapts by itself.
fn change(design: &mut StoreDesign, plan: StorePlan, auto: bool) {
    if auto {
        design.tuning = Tuning::Auto;
        return;
    }
    design.tuning = Tuning::Fixed;
    design.compaction = match plan.compaction {
        CompactionPolicy::Leveled => Compaction::Leveled,
        CompactionPolicy::Stepped => Compaction::Stepped,
        CompactionPolicy::LazyLeveled => Compaction::LazyLeveled,
        CompactionPolicy::Stitched => Compaction::Stitched,
    };
    design.filter = match (plan.sublevel_map, design.filter) {
        (true, _) => TableFilter::MultiLevelCuckoo,
        (false, TableFilter::MultiLevelCuckoo | TableFilter::None) => TableFilter::Fuse,
        (false, filter) => filter,
    };
    design.filtered_levels = plan.filtered_levels;
}

fn mix_of(arguments: &Arguments) -> Result<Mix> {
    if let Some([found, absent, writes, rest @ ..]) = arguments.operations.as_deref() {
        let scans = rest.first().copied().unwrap_or(0.0);
        return Mix::of_counts(*found, *absent, *writes, scans).ok_or_else(|| {
            Error::usage("the operations add up to nothing, or some are negative".to_owned())
                .hint("give three or four numbers of which one is above 0: `--operations 80 10 10`")
        });
    }
    Ok(match arguments.mix {
        NamedMix::Create => Mix::CREATE,
        NamedMix::Update => Mix::UPDATE,
        NamedMix::Stat => Mix::STAT,
        NamedMix::Mixed => Mix::MIXED,
        NamedMix::List => Mix::LIST,
    })
}

/// A few of the plans, evenly spread from the first to the last by memory.
fn spread(curve: Vec<Plan>) -> Vec<Plan> {
    let Some(most) = curve.last().map(|plan| plan.estimate.memory_bytes) else { return curve };
    let mut steps: Vec<Plan> = Vec::new();
    let mut next = 0.0;
    for plan in curve {
        let memory = plan.estimate.memory_bytes;
        if memory >= next || memory >= most {
            next = memory + most / CURVE_STEPS as f64;
            steps.push(plan);
        }
    }
    steps
}

fn show(advice: &Advice) {
    output::line("What a level can be made of (costs in random reads of a block):");
    output::line(format!(
        "  {:42} {:>8} {:>8} {:>8} {:>8}",
        "", "bits/row", "found", "absent", "write"
    ));
    for costs in &advice.designs {
        output::line(format!(
            "  {:42} {:8.2} {:8.3} {:8.3} {:8.3}",
            costs.design, costs.memory_bits, costs.found, costs.absent, costs.write
        ));
    }
    let estimate = &advice.plan.estimate;
    output::line("\nThe best within the memory given:");
    for (number, (design, rows)) in
        advice.plan.designs.iter().zip(&advice.workload.levels).enumerate()
    {
        output::line(format!("  level {number}, {rows:14.0} rows: {design}"));
    }
    output::line(format!(
        "  {} of memory; reads per operation {:.3} (found {:.3}, absent {:.3}, write {:.3}, \
         scan {:.3})",
        size::show(estimate.memory_bytes as u64),
        estimate.total,
        estimate.found,
        estimate.absent,
        estimate.write,
        estimate.scan
    ));
    let StorePlanReport { plan, estimate } = &advice.store_plan;
    let filters = match plan.sublevel_map {
        true => "one filter over the levels above the last, filters of levels",
        false => "filters of levels",
    };
    output::line(format!(
        "\nOf what a store can be: {}, {filters}: {}; {} of memory, reads per operation {:.3}",
        match plan.compaction {
            CompactionPolicy::Leveled => "leveled",
            CompactionPolicy::Stepped => "stepped",
            CompactionPolicy::LazyLeveled => "lazy-leveled",
            CompactionPolicy::Stitched => "stitched",
        },
        String::from(plan.filtered_levels),
        size::show(estimate.memory_bytes as u64),
        estimate.total
    ));
    output::line("\nWith other memory:");
    for step in &advice.curve {
        let memory = size::show(step.estimate.memory_bytes as u64);
        output::line(format!("  {memory:>10} {:8.3} reads per operation", step.estimate.total));
    }
}
