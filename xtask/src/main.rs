//! Project chores, run as `cargo xtask CHORE`.
//!
//! - `tidy`: the rules of the workspace that the compiler does not know.
//! - `realworld`: everyday programs on a Varve mount, beside a plain directory.
//! - `suites`: test suites of others on a Varve mount.
//! - `optimize`: the programs once more, laid out by what they were seen to do.
//! - `soak`: tests that go on with other seeds for as long as they are told.
//! - `ci`: everything a submission must pass, by way of `.ci/run`.
//!
//! The real-world run and the suites drive the release build of the `varve` program from outside, as a
//! user would; xtask imports no room of the workspace.
#![allow(clippy::disallowed_methods, reason = "chores talk to the machine itself")]

mod machine;
mod optimize;
mod random;
mod realworld;
mod run;
mod soak;
mod suites;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Project chores.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Check imports between rooms, lengths of files and functions, and forbidden text
    Tidy,
    /// Run everyday programs on a Varve mount and on a plain directory, and compare
    Realworld(realworld::Options),
    /// Run test suites of others on a fresh Varve mount each
    Suites(suites::Options),
    /// Build the fastest programs: count what they execute at work, and build them again by that
    Optimize,
    /// Go on with one test for a long time
    Soak(soak::Options),
    /// Be one of the writers of `soak kills`
    #[command(hide = true)]
    KillsWriter(soak::kills::writer::Arguments),
    /// Run .ci/run
    Ci,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().chore {
        Chore::Tidy => tidy::check_workspace(&run::workspace_root()),
        Chore::Realworld(options) => realworld::run(&options),
        Chore::Suites(options) => suites::run(&options),
        Chore::Optimize => optimize::run(),
        Chore::Soak(options) => soak::run(&options),
        Chore::KillsWriter(arguments) => soak::kills::writer::run(&arguments),
        Chore::Ci => run::Step::new(run::workspace_root().join(".ci/run")).show(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}
