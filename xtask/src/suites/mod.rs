//! Test suites of others, run on a fresh Varve mount.
//!
//! 1. Find or install what a suite needs ([`tools`]); a suite whose program cannot be had is reported as
//!    not run, loudly, and does not fail the run.
//! 2. Make a [`Ground`] for each suite: a new store with its mount, or with `--plain` a directory of the
//!    machine's own file system, which tells a failure of Varve from one of the suite.
//! 3. Run it. It counts cases in a [`Tally`]: passed, failed, and skipped with a reason. Each suite lists the
//!    cases that it may skip beside its code; a skip that is not listed is a failure.
//! 4. Unmount and check the store: whatever a suite did, the store must be clean.
//!
//! A suite runs at least one round, and further ones with other seeds for as long as its [`Effort`] says, so
//! that `cargo xtask soak NAME --minutes N` is the same code for longer.

mod fio;
mod fsx;
mod git;
mod ground;
mod pjdfstest;
mod postgres;
mod postgres_server;
mod sqlite;
mod stress_ng;
mod tally;
mod tools;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::machine;
use crate::run::{Failure, Outcome};

pub(crate) use ground::Ground;
pub(crate) use tally::{Tally, verdict};

/// One suite.
pub(crate) struct Suite {
    /// What it is called on the command line.
    pub(crate) name: &'static str,
    run: fn(&mut Ground, &mut Effort, &mut Tally) -> Outcome,
}

/// All suites, in the order in which they run.
pub(crate) const SUITES: &[Suite] = &[
    Suite { name: "pjdfstest", run: pjdfstest::run },
    Suite { name: "fsx", run: fsx::run },
    Suite { name: "stress-ng", run: stress_ng::run },
    Suite { name: "fio", run: fio::run },
    Suite { name: "sqlite", run: sqlite::run },
    Suite { name: "git", run: git::run },
    Suite { name: "postgres", run: postgres::run },
];

/// How long a suite goes on, and with which seeds.
pub(crate) struct Effort {
    seed: u64,
    until: Instant,
    is_long: bool,
}

impl Effort {
    /// Rounds with seeds from `seed` on: one round, or more until `time` has passed.
    pub(crate) fn new(seed: u64, time: Option<Duration>) -> Effort {
        let until = Instant::now() + time.unwrap_or_default();
        Effort { seed, until, is_long: time.is_some() }
    }

    /// The seed of this round.
    fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether a round may take longer than in a run of everything.
    fn is_long(&self) -> bool {
        self.is_long
    }

    /// Goes on to the next round; false if the time is over.
    fn next_round(&mut self) -> bool {
        self.seed += 1;
        Instant::now() < self.until
    }
}

/// What to run, and where.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Suites to run; all without
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Print the names of the suites and end
    #[arg(long)]
    list: bool,
    /// Run on a plain directory instead of a mount, to tell whose failure it is
    #[arg(long)]
    plain: bool,
    /// Print JSON instead of lines
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    how: How,
}

/// What every run of a suite needs to know.
#[derive(clap::Args)]
pub(crate) struct How {
    /// Seed of the first round
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Use this varve program instead of building one
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) varve: Option<PathBuf>,
    /// Another argument for varve mount (repeatable)
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub(crate) mount_arg: Vec<String>,
    /// After a failure, keep what the run made
    #[arg(long)]
    pub(crate) keep: bool,
    /// Directory for everything the run makes
    #[arg(long, value_name = "DIR")]
    pub(crate) base: Option<PathBuf>,
}

/// Runs the chosen suites and fails if one of them did.
pub(crate) fn run(options: &Options) -> Outcome {
    if options.list {
        SUITES.iter().for_each(|suite| println!("{}", suite.name));
        return Ok(());
    }
    let chosen = choose(&options.names)?;
    let program = if options.plain {
        None
    } else {
        Some(machine::varve_program(options.how.varve.as_deref())?)
    };
    machine::enter_private_namespace()?;
    let mut tallies = Vec::new();
    for suite in chosen {
        let mut effort = Effort::new(options.how.seed, None);
        let tally = run_suite(suite, program.as_deref(), &options.how, &mut effort)?;
        if !options.json {
            tally.print();
        }
        tallies.push(tally);
    }
    if options.json {
        tally::print_json(&tallies)?;
    }
    tally::verdict(&tallies)
}

/// Runs one suite on a fresh ground; an error that ends it early is a failure in its tally.
pub(crate) fn run_suite(
    suite: &Suite,
    program: Option<&std::path::Path>,
    how: &How,
    effort: &mut Effort,
) -> Result<Tally, Failure> {
    eprintln!("{}", suite.name);
    let begin = Instant::now();
    let mut tally = Tally::new(suite.name);
    let mut ground = Ground::new(program, how)?;
    if let Err(error) = (suite.run)(&mut ground, effort, &mut tally) {
        tally.failed("the suite itself", &error.to_string());
    }
    if tally.is_empty() {
        tally.failed("the suite itself", "not one case passed");
    }
    let mut kept = None;
    if tally.has_failed() && how.keep {
        kept = Some(ground.keep());
    } else if let Err(error) = ground.close() {
        tally.failed("unmount and fsck", &error.to_string());
    }
    if let Some(path) = kept {
        eprintln!("kept: {}", path.display());
    }
    tally.took(begin.elapsed());
    Ok(tally)
}

fn choose(names: &[String]) -> Result<Vec<&'static Suite>, Failure> {
    if names.is_empty() {
        return Ok(SUITES.iter().collect());
    }
    names
        .iter()
        .map(|name| {
            let found = SUITES.iter().find(|suite| suite.name == name);
            found.ok_or_else(|| {
                let known: Vec<_> = SUITES.iter().map(|suite| suite.name).collect();
                format!("there is no suite `{name}`\nhint: there are {}", known.join(", ")).into()
            })
        })
        .collect()
}
