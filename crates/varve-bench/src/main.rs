//! `varve-bench`: workloads measured side by side on Varve and on other file systems.
//!
//! `compare` takes targets ([`target`]) and a workload ([`workload`]), runs the one on the other by workers
//! ([`crew`], [`meter`]), checks what was done, and reports ([`report`]). `versions` measures what it costs to keep, copy
//! and take back whole trees ([`mod@versions`]), `transactions` what it costs to build in one ([`mod@transactions`]), `rpc` what calls of a
//! server cost ([`mod@rpc`]).
#![allow(clippy::disallowed_methods, reason = "a benchmark drives the machine itself")]

mod chart;
mod compare;
mod crew;
mod fsstats;
mod generate;
mod ids;
mod keeper;
mod machine;
mod memory;
mod meter;
mod noise;
mod op;
mod output;
mod place;
mod random;
mod report;
mod rpc;
mod run;
mod scratch;
mod server;
mod source_tree;
mod target;
mod trace;
mod transactions;
mod tree;
mod versions;
mod walk;
mod workload;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, Subcommand};

use compare::Course;
use crew::Crew;
use meter::IS_INTERRUPTED;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use target::{Ground, Spec};
use varve::size;
use workload::Choice;

/// Why something failed, in words for the person who ran it.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Workloads measured side by side on Varve and on other file systems.
#[derive(Parser)]
#[command(name = "varve-bench", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a workload on targets in turn, and compare
    Compare(Box<Comparison>),
    /// Measure transactions, snapshots and clones on trees of several sizes, beside what others have for it
    Versions(Box<versions::Options>),
    /// Measure builds in transactions beside builds without, alone and side by side
    Transactions(Box<transactions::Options>),
    /// Measure calls of a metadata server over TCP, many at once, without a mount
    Rpc(rpc::Options),
    /// Make a tree of files like those that were found in use
    Generate(generate::Options),
    /// The sizes, depths and skew of a tree of files
    Fsstats {
        /// The tree
        dir: PathBuf,
        /// Print JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// What ids of inodes would take that say where in a tree a file is: bits and overflows, beside the thesis's (tables 4.1 to 4.4)
    Ids(ids::Options),
    /// Traces of what file systems were asked: made of logs, generated, analysed
    #[command(subcommand)]
    Trace(trace::Command),
    /// Put a setting of the machine back at the end of the standard input, or remove a file
    #[command(hide = true)]
    GiveBack {
        /// Where it is written
        file: PathBuf,
        /// Its value; without one the file goes
        value: Option<String>,
    },
    /// Be one of the workers of a phase
    #[command(hide = true)]
    Worker {
        /// The task as JSON
        task: String,
    },
}

#[derive(clap::Args)]
struct Comparison {
    /// What to measure (repeatable): ext4, xfs, btrfs, tmpfs, varve, served, library, null, each as NAME[:OPTION,...], or
    /// the path of a directory, as ./here; varve, served and library take @DIR for a store in DIR
    #[arg(short, long = "target", value_name = "TARGET", required = true)]
    targets: Vec<Spec>,
    /// Rounds; the report gives medians
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Workers at once [default: as the workload wants, mostly 1]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1024))]
    workers: Option<u64>,
    /// Make each worker a process of its own
    #[arg(long)]
    processes: bool,
    /// Do this many operations per second, of all workers together, instead of as many as possible
    #[arg(long, value_name = "PER SECOND", value_parser = rate)]
    rate: Option<f64>,
    /// Begin each phase with what is in memory, instead of remounting and dropping caches
    #[arg(long)]
    warm: bool,
    /// Reserve huge pages until so much memory is left for everything on this machine
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    memory: Option<u64>,
    /// Let the disks of images answer so many reads and so many writes a second, and no more
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(u32).range(1..))]
    iops: Option<u32>,
    /// End a phase after this time, and this target's round with it: 90s, 10m, 2h; what was done of it is checked and told. Only between two
    /// operations: phases of build and script, each a single one, run to their end
    #[arg(long = "for", value_name = "TIME", value_parser = varve::transaction_options::idle_s)]
    limit_s: Option<u64>,
    /// End with this phase
    #[arg(long, value_name = "PHASE")]
    until: Option<String>,
    /// Do not check whole stores at the end
    #[arg(long)]
    no_fsck: bool,
    /// Directory for images, on the disk to measure [default: where temporary files go]
    #[arg(long, value_name = "DIR")]
    base: Option<PathBuf>,
    /// Bytes of an image; it is sparse
    #[arg(long, value_name = "SIZE", default_value = "64G", value_parser = size::parse)]
    image_size: u64,
    /// Write all bytes of each image before it is used, so that the file system below need not find room for them while
    /// something is measured; takes as long as the disk takes for --image-size
    #[arg(long)]
    filled: bool,
    /// The program varve [default: beside this one]
    #[arg(long, value_name = "PROGRAM")]
    varve: Option<PathBuf>,
    /// The example null of varve-fuse [default: among the examples beside this program]
    #[arg(long, value_name = "PROGRAM")]
    null: Option<PathBuf>,
    /// Also print the rate of every so many operations
    #[arg(long, global = true, value_name = "OPERATIONS", value_parser = clap::value_parser!(u64).range(1..))]
    step: Option<u64>,
    /// Also write charts into this directory, as SVG: rates over time, distributions of latencies
    #[arg(long, global = true, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// Print JSON instead of tables
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    workload: Choice,
}

/// A rate that leaves time between two operations.
fn rate(text: &str) -> Result<f64, Failure> {
    let rate: f64 = text.parse()?;
    match (1e-3..=1e9).contains(&rate) {
        true => Ok(rate),
        false => Err(format!("{text} per second is no rate to measure at").into()),
    }
}

/// The path of the program `given`, or of the one beside this one.
fn program(given: Option<&Path>, default: &str) -> Result<PathBuf, Failure> {
    let Some(path) = given else {
        return Ok(std::env::current_exe()?.with_file_name(default));
    };
    Ok(std::fs::canonicalize(path).map_err(|error| format!("{}: {error}", path.display()))?)
}

/// Gets ready for what mounts stores alone.
fn ground(
    base: Option<&PathBuf>,
    varve: Option<&Path>,
    image_bytes: u64,
) -> Result<Ground, Failure> {
    let (base, varve) = (base.cloned(), program(varve, "varve")?);
    let null = program(None, "examples/null")?;
    machine::enter_private_namespace()?;
    handle_signals()?;
    Ok(Ground { base, varve, null, image_bytes, is_filled: false, iops: None })
}

fn versions(options: &versions::Options) -> Result<(), Failure> {
    let varve = options.varve.as_deref();
    versions::run(options, &ground(options.base.as_ref(), varve, options.image_size)?)
}

fn transactions(options: &transactions::Options) -> Result<(), Failure> {
    let varve = options.varve.as_deref();
    transactions::run(options, &ground(options.base.as_ref(), varve, options.image_size)?)
}

fn rpc(options: &rpc::Options) -> Result<(), Failure> {
    let varve = program(options.varve.as_deref(), "varve")?;
    handle_signals()?;
    rpc::run(options, &varve)
}

fn compare(options: &Comparison) -> Result<(), Failure> {
    let crew = Crew {
        workers: options.workers,
        as_processes: options.processes,
        rate: options.rate,
        limit: options.limit_s.map(Duration::from_secs),
    };
    if let Some(spec) = options.targets.iter().find(|spec| spec.is_elsewhere())
        && options.iops.is_some()
    {
        return Err(format!(
            "--iops holds down the disks of images, and {spec} has none: its figures could not be compared with the \
             others\nhint: leave out --iops or the directory"
        )
        .into());
    }
    if let Some(dir) = &options.plots {
        std::fs::create_dir_all(dir)
            .map_err(|error| format!("--plots {}: {error}", dir.display()))?;
    }
    let ground = Ground {
        base: options.base.clone(),
        varve: program(options.varve.as_deref(), "varve")?,
        null: program(options.null.as_deref(), "examples/null")?,
        image_bytes: options.image_size,
        is_filled: options.filled,
        iops: options.iops,
    };
    if options.targets.iter().any(Spec::mounts) {
        machine::enter_private_namespace()?;
    }
    handle_signals()?;
    let hold = options.memory.map(memory::Hold::new).transpose()?;
    let course = Course {
        targets: options.targets.clone(),
        ground,
        until: options.until.clone(),
        no_fsck: options.no_fsck,
        rounds: options.rounds,
        crew,
        warm: options.warm,
        memory_bytes: options.memory,
        memory_left_bytes: hold.as_ref().map(memory::Hold::left_bytes),
    };
    let report = compare::run(&course, &options.workload)?;
    drop(hold);
    options.plots.as_deref().map_or(Ok(()), |dir| report.write_plots(dir))?;
    match options.json {
        true => report.print_json(&options.workload),
        false => report.print_table(options.step),
    }
}

/// Lets SIGINT, SIGTERM and SIGHUP end the run in order; a second one ends it at once. What whoever started this ignores (nohup) stays
/// ignored.
fn handle_signals() -> Result<(), Failure> {
    let heard = [SIGINT, SIGTERM, SIGHUP]
        .into_iter()
        .filter(|signal| !varve_env::os::signals::is_ignored(*signal));
    for signal in heard {
        flag::register_conditional_default(signal, Arc::clone(&IS_INTERRUPTED))?;
        flag::register(signal, Arc::clone(&IS_INTERRUPTED))?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Compare(options) => compare(&options),
        Command::Versions(options) => versions(&options),
        Command::Transactions(options) => transactions(&options),
        Command::Rpc(options) => rpc(&options),
        Command::Generate(options) => generate::run(&options),
        Command::Fsstats { dir, json } => fsstats::run(&dir, json),
        Command::Ids(options) => ids::run(&options),
        Command::Trace(command) => trace::run(&command),
        Command::GiveBack { file, value } => keeper::give_back(&file, value.as_deref()),
        Command::Worker { task } => crew::work(&task),
    };
    match outcome.and_then(|()| output::outcome()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("varve-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
