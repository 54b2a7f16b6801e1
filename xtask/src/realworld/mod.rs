//! Everyday programs on a Varve mount, with the same steps on a plain directory as the reference.
//!
//! 1. Take a tarball: the one given, or (`--small`) one made of this repository's own sources and of files
//!    that are awkward on purpose ([`small_tree`]).
//!    Beside it, each side makes a tree of what copies lose first: owners, lists, attributes ([`kinds`]).
//! 2. Run every step of [`steps`] on the plain directory, then on the mount, and compare what they leave
//!    and what they say ([`manifest`]).
//! 3. Unmount, check the store, mount again, compare everything again.
//!
//! Any difference ends the run with an error that names it.

mod builds;
mod copies;
mod kinds;
mod manifest;
mod small_tree;
mod steps;
mod table;

use std::path::{Path, PathBuf};

use crate::machine::{self, Scratch, Varve};
use crate::run::{Failure, Outcome, timed, workspace_root};

use kinds::Abilities;
use manifest::Manifest;
use steps::{Context, Side};
use table::Table;

/// What to run on.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// A small tree made of this repository and of generated files (the default without --tree)
    #[arg(long, conflicts_with = "tree")]
    small: bool,
    /// The tarball to unpack
    #[arg(long, value_name = "TARBALL")]
    tree: Option<PathBuf>,
    /// Use this varve program instead of building one
    #[arg(long, value_name = "PROGRAM")]
    varve: Option<PathBuf>,
    /// Another argument for varve mount (repeatable)
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    mount_arg: Vec<String>,
    /// Run the steps on two plain directories, to check this script itself
    #[arg(long)]
    without_varve: bool,
    /// After a failure, keep what the run made
    #[arg(long)]
    keep: bool,
    /// Directory for everything the run makes
    #[arg(long, value_name = "DIR")]
    base: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs everything.
pub(crate) fn run(options: &Options) -> Outcome {
    let program = if options.without_varve {
        None
    } else {
        Some(machine::varve_program(options.varve.as_deref())?)
    };
    machine::enter_private_namespace()?;
    let scratch = Scratch::new(options.base.as_deref())?;
    let outcome = run_in(options, program.as_deref(), &scratch);
    if outcome.is_err() && options.keep {
        eprintln!("kept: {}", scratch.keep().display());
    }
    outcome
}

fn run_in(options: &Options, program: Option<&Path>, scratch: &Scratch) -> Outcome {
    let is_small = options.small || options.tree.is_none();
    let tarball = match &options.tree {
        Some(tree) => std::fs::canonicalize(tree)?,
        None => small_tree::tarball(&workspace_root(), scratch)?,
    };
    let mut varve = match program {
        Some(program) => Some(Varve::format(program, scratch, &options.mount_arg)?),
        None => None,
    };
    if let Some(varve) = &mut varve {
        varve.mount()?;
    }
    let root = match &varve {
        Some(varve) => varve.mount_point().to_path_buf(),
        None => scratch.dir("varve")?,
    };
    let reference = Side::new("plain", scratch.dir("plain")?, scratch.dir("plain-out")?);
    let tested = Side::new("varve", root, scratch.dir("varve-out")?);
    let able = Abilities::of(&scratch.dir("abilities")?)?;
    let mut table = Table::default();
    let skipped = able.missing().iter().cloned().chain(copies::missing_programs());
    skipped.for_each(|what| table.skip(what));
    let context = Context { tarball, is_small, able };

    run_steps(&context, &reference, &tested, &mut table)?;
    if let Some(varve) = &mut varve {
        remount_and_compare(varve, &tested, &mut table)?;
        varve.unmount()?;
        varve.fsck()?;
        table.note_bytes("store", varve.store_bytes()?);
    }
    if options.json { table.print_json() } else { table.print(options.without_varve) }
}

/// Runs each step on both sides and compares what they say and leave.
fn run_steps(context: &Context, reference: &Side, tested: &Side, table: &mut Table) -> Outcome {
    for step in steps::STEPS {
        eprintln!("{}", step.name);
        let (plain_time, plain_said) = timed(|| (step.run)(context, reference))
            .map_err(|error| at(step.name, reference, &error))?;
        let (varve_time, varve_said) =
            timed(|| (step.run)(context, tested)).map_err(|error| at(step.name, tested, &error))?;
        if plain_said != varve_said {
            let line = first_difference(&plain_said, &varve_said);
            return Err(format!("{}: the outputs differ: {line}", step.name).into());
        }
        table.add(step.name, plain_time, varve_time);
    }
    eprintln!("compare both sides");
    let (time, ()) = timed(|| {
        for dir in steps::COMPARED_DIRS {
            let plain = Manifest::of(&reference.root().join(dir), true)?;
            let varve = Manifest::of(&tested.root().join(dir), true)?;
            plain.compare(&varve).map_err(|error| format!("{dir} on plain and varve: {error}"))?;
        }
        Ok(())
    })?;
    table.add_tested("compare both sides, with contents", time);
    Ok(())
}

/// Unmounts, checks, mounts again: everything is as it was.
fn remount_and_compare(varve: &mut Varve, tested: &Side, table: &mut Table) -> Outcome {
    eprintln!("unmount, fsck, mount, compare");
    let before = Manifest::of(tested.root(), true)?;
    let (time, ()) = timed(|| varve.unmount())?;
    table.add_tested("unmount", time);
    let (time, ()) = timed(|| varve.fsck())?;
    table.add_tested("fsck", time);
    let (time, ()) = timed(|| varve.mount())?;
    table.add_tested("mount", time);
    let (time, after) = timed(|| Manifest::of(tested.root(), true))?;
    table.add_tested("read everything after the mount", time);
    before.compare(&after).map_err(|error| format!("before and after the remount: {error}"))?;
    Ok(())
}

fn at(step: &str, side: &Side, error: &Failure) -> Failure {
    format!("{step} on {}: {error}", side.name()).into()
}

fn first_difference(left: &str, right: &str) -> String {
    let mut pairs = left.lines().zip(right.lines());
    match pairs.find(|(left, right)| left != right) {
        Some((left, right)) => format!("`{left}` and `{right}`"),
        None => format!("{} and {} lines", left.lines().count(), right.lines().count()),
    }
}
