//! Tests that may go on for hours, run as `cargo xtask soak VERB --minutes N --seed S`.
//!
//! A verb is a function from the [`Task`] to an outcome. It works through seeds from the given one on until
//! the time is over, ends at the first failure, and says how to repeat it. Every suite of `cargo xtask
//! suites` is a verb too, with larger files and longer rounds.

mod full_disk;
mod fuzz;
pub(crate) mod kills;

use std::time::Duration;

use crate::machine;
use crate::run::{Failure, Outcome, Step, workspace_root};
use crate::suites::{self, Effort, How};

/// A verb of the table.
struct Verb {
    name: &'static str,
    about: &'static str,
    run: fn(&Task) -> Outcome,
}

/// What a soak may do besides the suites.
const VERBS: &[Verb] = &[
    Verb {
        name: "commits",
        about: "transactions and the main view at once, with a check after each commit, on the simulated machine",
        run: commits,
    },
    Verb {
        name: "crash",
        about: "power cuts and kills at every operation of seeded runs, on the simulated machine",
        run: crash,
    },
    Verb {
        name: "damage",
        about: "single faults of the files of a store, and what each costs after a repair, on the simulated machine",
        run: damage,
    },
    Verb {
        name: "designs",
        about: "the engine under random combinations of policies, on the simulated machine",
        run: designs,
    },
    Verb {
        name: "full-disk",
        about: "stores on small devices that are filled, killed and emptied, on the file systems of this machine",
        run: full_disk::run,
    },
    Verb {
        name: "fuzz",
        about: "every fuzz target, each for its share of the time; takes a nightly toolchain",
        run: fuzz::run,
    },
    Verb {
        name: "kills",
        about: "the daemon killed under load, on this machine; nothing acknowledged may be lost",
        run: kills::run,
    },
    Verb {
        name: "serial-bytes",
        about: "serializable transactions on the bytes of large files, replayed in the order of their commits, on the simulated machine",
        run: serial_bytes,
    },
];

/// What to run, and for how long.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// What to run: one of the verbs that --list shows
    #[arg(value_name = "VERB", required_unless_present = "list")]
    verb: Option<String>,
    /// Print the verbs and end
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    task: Task,
}

/// What a verb is told.
#[derive(clap::Args)]
pub(crate) struct Task {
    /// How long to go on
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) minutes: u64,
    /// How many rounds instead of how long, for verbs that have rounds
    #[arg(long, value_name = "N")]
    pub(crate) rounds: Option<u64>,
    #[command(flatten)]
    pub(crate) how: How,
}

impl Task {
    /// How long to go on.
    pub(crate) fn time(&self) -> Duration {
        Duration::from_secs(60 * self.minutes)
    }
}

/// Runs a verb.
pub(crate) fn run(options: &Options) -> Outcome {
    if options.list {
        for verb in VERBS {
            println!("{:<12} {}", verb.name, verb.about);
        }
        for suite in suites::SUITES {
            println!("{:<12} the suite, for longer", suite.name);
        }
        return Ok(());
    }
    let name = options.verb.as_deref().unwrap_or_default();
    if let Some(verb) = VERBS.iter().find(|verb| verb.name == name) {
        return (verb.run)(&options.task);
    }
    match suites::SUITES.iter().find(|suite| suite.name == name) {
        Some(suite) => run_suite(suite, &options.task),
        None => Err(Failure::from(format!(
            "there is no verb `{name}`\nhint: `cargo xtask soak --list` shows all"
        ))),
    }
}

fn run_suite(suite: &suites::Suite, task: &Task) -> Outcome {
    let program = machine::varve_program(task.how.varve.as_deref())?;
    machine::enter_private_namespace()?;
    let mut effort = Effort::new(task.how.seed, Some(task.time()));
    let tally = suites::run_suite(suite, Some(&program), &task.how, &mut effort)?;
    tally.print();
    if !tally.has_run() {
        return Err(format!("{} did not run", suite.name).into());
    }
    suites::verdict(&[tally])
}

fn crash(task: &Task) -> Outcome {
    test(task, "varve-fs", "crash_points::soak")
}

fn damage(task: &Task) -> Outcome {
    test(task, "varve-fs", "single_faults::soak")
}

fn commits(task: &Task) -> Outcome {
    test(task, "varve-fs", "write_skew::soak")
}

fn serial_bytes(task: &Task) -> Outcome {
    test(task, "varve-fs", "serial_bytes::soak")
}

fn designs(task: &Task) -> Outcome {
    test(task, "varve-engine", "soak::soak")
}

/// Runs a test that goes on for as long as it is told.
fn test(task: &Task, package: &str, test: &str) -> Outcome {
    let step = || {
        Step::new("cargo")
            .args(["test", "--release", "--quiet", "--package", package, "--test", "it", "--"])
            .args(["--ignored", "--exact", test])
            .dir(workspace_root())
    };
    // Without any test of that name the run would pass.
    if !step().arg("--list").capture()?.contains(&format!("{test}: test")) {
        return Err(format!("{package} has no test {test}").into());
    }
    step()
        .arg("--nocapture")
        .env("VARVE_SOAK_SECONDS", task.time().as_secs().to_string())
        .env("VARVE_SOAK_SEED", task.how.seed.to_string())
        .show()
}
