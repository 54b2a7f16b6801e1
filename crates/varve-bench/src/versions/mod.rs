//! What it costs to keep, copy, change and take back whole trees: transactions, snapshots and clones of Varve beside what
//! other file systems have for it, each on trees of several sizes. What does not grow with the tree shows as the same figures
//! in each column.
//!
//! 1. For each target and each size: a tree like those found in use ([`crate::tree`]) is made, not measured.
//! 2. The acts of that target ([`acts`]) follow one another, as often as there are rounds. Each is measured alone:
//!    everything is written back before it, and the time to write back and the bytes of the device after it are told.
//! 3. Each act is checked: what was committed is there, what was taken back is not, a copy has what the original has.
//!
//! Everything lies in images and directories of the run's own, which go with it.

mod acts;
mod report;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::meter::check_interrupt;
use crate::op::Op;
use crate::place::{Hands, Place};
use crate::target::{Ground, Kind, Spec, Target};
use crate::tree::Tree;

use clap::builder::PossibleValuesParser;
use report::Report;

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// What to measure (repeatable): varve, ext4, xfs, btrfs, each as NAME[:OPTION,...]
    #[arg(short, long = "target", value_name = "TARGET", required = true)]
    targets: Vec<Spec>,
    /// Files of a tree (repeatable)
    #[arg(long, value_name = "COUNT", default_values_t = [10_000, 1_000_000])]
    files: Vec<u64>,
    /// Changed files of a transaction (repeatable); more than a tree has are left out
    #[arg(long, value_name = "COUNT", default_values_t = [10, 10_000, 1_000_000])]
    changes: Vec<u64>,
    /// Bytes of a file
    #[arg(long, value_name = "SIZE", default_value = "1K", value_parser = file_bytes)]
    file_bytes: u64,
    /// Rounds; the report gives medians
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Only these acts (repeatable)
    #[arg(long, value_name = "ACT", value_parser = PossibleValuesParser::new(acts::ALL))]
    only: Vec<String>,
    /// Directory for images, on the disk to measure [default: where temporary files go]
    #[arg(long, value_name = "DIR")]
    pub(crate) base: Option<std::path::PathBuf>,
    /// Bytes of an image; it is sparse
    #[arg(long, value_name = "SIZE", default_value = "64G", value_parser = varve::size::parse)]
    pub(crate) image_size: u64,
    /// The program varve [default: beside this one]
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) varve: Option<std::path::PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// One act, measured.
#[derive(Clone, Debug)]
struct Measured {
    target: String,
    act: &'static str,
    /// Files that it is about; `None`: all, or none.
    changes: Option<u64>,
    files: u64,
    took: Duration,
    /// To write everything back afterwards.
    synced: Duration,
    /// Bytes that the device wrote, with those.
    written_bytes: u64,
}

/// A target with a tree in it.
struct Stage<'a> {
    options: &'a Options,
    ground: &'a Ground,
    target: &'a Target,
    text: String,
    /// The tree that is there.
    tree: Tree,
    round: u32,
    found: Vec<Measured>,
}

/// The size of a file that has room for what tells one change from another.
fn file_bytes(text: &str) -> Result<u64, Failure> {
    match varve::size::parse(text)? {
        bytes if bytes < size_of::<acts::Mark>() as u64 => {
            Err(format!("a file needs {} bytes, to tell changes apart", size_of::<acts::Mark>())
                .into())
        }
        bytes => Ok(bytes),
    }
}

/// Measures all and prints it.
pub(crate) fn run(options: &Options, ground: &Ground) -> Result<(), Failure> {
    for spec in &options.targets {
        if !matches!(spec.kind, Kind::Varve | Kind::Ext4 | Kind::Xfs | Kind::Btrfs) {
            return Err(
                format!("{spec}: what is measured here is varve, ext4, xfs or btrfs").into()
            );
        }
    }
    let sizes: BTreeSet<u64> = options.files.iter().copied().collect();
    let mut found = Vec::new();
    for spec in &options.targets {
        for files in &sizes {
            let measured = measure_target(options, ground, spec, *files);
            found.extend(measured.map_err(|error| format!("{spec}, {files} files: {error}"))?);
        }
    }
    let report = Report::of(&found);
    if options.json { report.print_json() } else { report.print_table() }
}

fn measure_target(
    options: &Options,
    ground: &Ground,
    spec: &Spec,
    files: u64,
) -> Result<Vec<Measured>, Failure> {
    eprintln!("{spec}, {files} files");
    let tree = Tree::new(Tree::usual_dirs(files)?, files, 1);
    // Peers copy the tree in several ways.
    let copies = 4 * (u64::from(options.rounds) + 1);
    let target = Target::new(spec, ground, (files + tree.dirs()) * copies)?;
    populate(target.place()?, &tree, options.file_bytes)?;
    let (text, found) = (spec.to_string(), Vec::new());
    let mut stage = Stage { options, ground, target: &target, text, tree, round: 0, found };
    for round in 1..=options.rounds {
        stage.round = round;
        match spec.kind {
            Kind::Varve => stage.varve()?,
            _ => stage.peer(&spec.kind)?,
        }
    }
    let found = stage.found;
    target.finish(true)?;
    Ok(found)
}

/// Makes the files of `tree`.
fn populate(place: &dyn Place, tree: &Tree, bytes: u64) -> Result<(), Failure> {
    let mut hands = Hands::new();
    for dir in 1..tree.dirs() {
        hands.apply(place, &Op::MakeDir(tree.dir(dir)))?;
    }
    for key in 0..tree.files() {
        check_interrupt()?;
        hands.apply(place, &Op::Create { path: tree.file(key), bytes, key })?;
    }
    place.sync()
}

impl Stage<'_> {
    /// Whether any of `acts` is wanted.
    fn wants(&self, acts: &[&str]) -> bool {
        self.options.only.is_empty()
            || acts.iter().any(|act| self.options.only.iter().any(|o| o == act))
    }

    /// The directory that holds the tree.
    fn tree_dir(&self) -> Result<&Path, Failure> {
        Ok(self.target.place()?.root().ok_or("the target has no directory")?)
    }

    /// The directory above it.
    fn top(&self) -> Result<&Path, Failure> {
        Ok(self.tree_dir()?.parent().ok_or("the target has no directory above its tree")?)
    }

    /// Does `work` and notes what it cost, if that is wanted.
    fn measure<T>(
        &mut self,
        act: &'static str,
        changes: Option<u64>,
        work: impl FnOnce(&Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        check_interrupt()?;
        let target = self.target;
        target.sync()?;
        let no_traffic = "the target has no device of its own";
        let before = target.traffic()?.ok_or(no_traffic)?;
        let begin = Instant::now();
        let done = work(self).map_err(|error| format!("{act}: {error}"))?;
        let took = begin.elapsed();
        target.sync()?;
        let synced = begin.elapsed() - took;
        let traffic = target.traffic()?.ok_or(no_traffic)?.since(before);
        if self.wants(&[act]) {
            self.found.push(Measured {
                target: self.text.clone(),
                act,
                changes,
                files: self.tree.files(),
                took,
                synced,
                written_bytes: traffic.written_bytes,
            });
        }
        Ok(done)
    }
}
