//! Long runs of tests that have no natural end, as `cargo xtask soak VERB`.
//!
//! 1. The verb is looked up in [`VERBS`].
//! 2. Its function gets the [`Options`] and runs until the time is up or something fails.
//!
//! A failure prints the command that replays it; equal seeds make equal runs.

use crate::run::{Failure, Outcome, Step, workspace_root};

/// What the verbs are told. A verb uses what concerns it.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// What to run
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(names()))]
    verb: String,
    /// For how long
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// The first seed
    #[arg(long, default_value_t = 1_000_000)]
    seed: u64,
}

/// One kind of soak.
type Verb = fn(&Options) -> Outcome;

/// Every soak by its name.
const VERBS: [(&str, Verb); 1] = [("crash", crash)];

fn names() -> Vec<&'static str> {
    VERBS.iter().map(|(name, _)| *name).collect()
}

/// Runs the verb.
pub(crate) fn run(options: &Options) -> Outcome {
    let found = VERBS.iter().find(|(name, _)| *name == options.verb);
    let (_, verb) = found.ok_or_else(|| Failure::from(format!("no soak {}", options.verb)))?;
    verb(options)
}

/// Power cuts and kills at every operation of seeded runs, on the simulated machine.
fn crash(options: &Options) -> Outcome {
    Step::new("cargo")
        .args(["test", "--release", "--quiet", "--package", "varve-fs", "--test", "it", "--"])
        .args(["--ignored", "--exact", "--nocapture", "crash_points::soak"])
        .env("VARVE_SOAK_SECONDS", (options.minutes * 60).to_string())
        .env("VARVE_SOAK_SEED", options.seed.to_string())
        .dir(workspace_root())
        .show()
}
