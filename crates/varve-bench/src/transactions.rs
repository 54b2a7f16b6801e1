//! What it costs to build in a transaction: the same programs in a directory of a mount as it is, in a snapshot transaction and
//! in a serializable one, alone and several side by side (KVFS, thesis 4.4).
//!
//! 1. For each way and each number at once: a new store on an image of its own, a directory for each builder, everything
//!    written back and the kernel's caches dropped.
//! 2. Each builder unpacks the tree, builds in it, walks it and reads all of it, in `varve txn run` or as it is. The time ends
//!    when all are done and durable: with the commits, or with a sync of the file system.
//! 3. Each tree is checked: it has what the tarball has, and what the build is to make. Then the store is.
//!
//! The ways follow one another in each round, so that what changes on the machine meets all of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::machine;
use crate::meter::check_interrupt;
use crate::report::Spread;
use crate::run::{self, Running, Step};
use crate::source_tree::{SourceOptions, SourceTree};
use crate::target::{Ground, Kind, Spec, Target};
use crate::{Failure, output};

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    tree: SourceOptions,
    /// A file that the build makes, from the top of the tree (repeatable)
    #[arg(long = "makes", value_name = "PATH")]
    made: Vec<PathBuf>,
    /// What to measure: varve, as varve[:OPTION,...]
    #[arg(short, long = "target", value_name = "TARGET", default_value = "varve")]
    target: Spec,
    /// How many build at once (repeatable)
    #[arg(long, value_name = "COUNT", default_values_t = [1, 4])]
    at_once: Vec<u32>,
    /// Rounds; the report gives medians
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Directory for images, on the disk to measure [default: where temporary files go]
    #[arg(long, value_name = "DIR")]
    pub(crate) base: Option<PathBuf>,
    /// Bytes of an image; it is sparse
    #[arg(long, value_name = "SIZE", default_value = "64G", value_parser = varve::size::parse)]
    pub(crate) image_size: u64,
    /// The program varve [default: beside this one]
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) varve: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// How a builder works: the isolation of its transaction, if it has one.
const WAYS: [(&str, Option<&str>); 3] =
    [("plain", None), ("snapshot", Some("snapshot")), ("serializable", Some("serializable"))];
const LEGEND: &str = "seconds until all is done and durable, and of CPU of the whole machine meanwhile: \
     medians, in brackets the least and the most; ratios to plain, of the medians";

/// One run.
struct Measured {
    took: Duration,
    /// Of all that ran on the machine.
    cpu: Duration,
}

/// The runs of a number at once and a way.
type Found = BTreeMap<(u32, usize), Vec<Measured>>;

/// Measures all and prints it.
pub(crate) fn run(options: &Options, ground: &Ground) -> Result<(), Failure> {
    if options.target.kind != Kind::Varve {
        return Err(format!("{}: what is measured here is varve", options.target).into());
    }
    if options.at_once.contains(&0) {
        return Err("--at-once 0: at least one has to build".into());
    }
    let tree = SourceTree::read(&options.tree)?;
    let mut found = Found::new();
    for round in 1..=options.rounds {
        for at_once in &options.at_once {
            for (at, (way, isolation)) in WAYS.iter().enumerate() {
                eprintln!("round {round}: {way}, {at_once} at once");
                check_interrupt()?;
                let measured = measure(options, ground, &tree, *at_once, *isolation);
                let measured = measured.map_err(|error| format!("{way}, {at_once}: {error}"))?;
                found.entry((*at_once, at)).or_default().push(measured);
            }
        }
    }
    match options.json {
        true => print_json(&found),
        false => {
            output::line(LEGEND);
            crate::report::print(&table(&found));
            Ok(())
        }
    }
}

impl SourceTree {
    /// What a builder runs, in its directory.
    fn script(&self) -> String {
        let SourceTree { tarball, top, make, .. } = self;
        format!(
            "set -e; tar -xf '{tarball}'; cd '{top}'; ({make}) >/dev/null 2>&1; \
             find . -ls >/dev/null; find . -type f -print0 | xargs -0 cat >/dev/null"
        )
    }

    /// Fails unless the tree in `dir` is there, with what was built.
    fn check(&self, dir: &Path, made: &[PathBuf]) -> Result<(), Failure> {
        Step::new("tar").args(["-df", &self.tarball]).dir(dir).quiet()?;
        for file in made {
            let path = dir.join(&self.top).join(file);
            if !path.is_file() {
                return Err(format!("check failed: {} was not made", path.display()).into());
            }
        }
        Ok(())
    }
}

/// One run: `at_once` builders, in transactions of this isolation.
fn measure(
    options: &Options,
    ground: &Ground,
    tree: &SourceTree,
    at_once: u32,
    isolation: Option<&str>,
) -> Result<Measured, Failure> {
    let inodes = 2 * u64::from(at_once) * (tree.inodes + 10_000);
    let mut target = Target::new(&options.target, ground, inodes)?;
    let root = |target: &Target| -> Result<PathBuf, Failure> {
        Ok(target.place()?.root().ok_or("the target has no directory")?.to_path_buf())
    };
    let dirs: Vec<PathBuf> = {
        let root = root(&target)?;
        (0..at_once).map(|number| root.join(format!("build-{number}"))).collect()
    };
    dirs.iter().try_for_each(std::fs::create_dir)?;
    target.place()?.sync()?;
    target.make_cold()?;
    let (began, cpu) = (Instant::now(), machine::cpu()?);
    let builders = dirs.iter().map(|dir| start(&ground.varve, dir, tree, isolation));
    let builders: Result<Vec<Running>, _> = builders.collect();
    let statuses: Result<Vec<_>, _> = builders?.iter_mut().map(Running::wait).collect();
    let statuses = statuses?;
    if isolation.is_none() {
        target.place()?.sync()?;
    }
    let measured = Measured { took: began.elapsed(), cpu: machine::cpu()?.saturating_sub(cpu) };
    if let Some(status) = statuses.iter().find(|status| !status.success()) {
        return Err(format!("a builder ended: {status}; what it runs is: {}", tree.script()).into());
    }
    dirs.iter().try_for_each(|dir| tree.check(dir, &options.made))?;
    target.finish(true)?;
    Ok(measured)
}

/// Starts a builder in `dir`.
fn start(
    varve: &Path,
    dir: &Path,
    tree: &SourceTree,
    isolation: Option<&str>,
) -> Result<Running, Failure> {
    let mut command = match isolation {
        None => run::bound("sh"),
        Some(isolation) => {
            let mut command = run::bound(varve);
            command.args(["txn", "run", "--isolation", isolation]).arg(dir).args(["--", "sh"]);
            command
        }
    };
    command.args(["-c", &tree.script()]).current_dir(dir);
    Running::start(command.stdin(Stdio::null()).stdout(Stdio::null()))
}

/// Seconds of all runs and of CPU.
fn spreads(measured: &[Measured]) -> (Spread, Spread) {
    let spread = |value: fn(&Measured) -> Duration| {
        Spread::of(measured.iter().map(|it| value(it).as_secs_f64()).collect())
    };
    (spread(|it| it.took), spread(|it| it.cpu))
}

/// A number at once, a way, and its seconds and CPU with their ratios to the first way.
type Row = (u32, &'static str, [(Spread, f64); 2]);

fn rows(found: &Found) -> Vec<Row> {
    let row = |(&(at_once, at), measured): (&(u32, usize), &Vec<Measured>)| {
        let (took, cpu) = spreads(measured);
        let plain = found.get(&(at_once, 0)).map_or((took, cpu), |plain| spreads(plain));
        let ratio = |it: Spread, plain: Spread| it.median / plain.median.max(f64::MIN_POSITIVE);
        (at_once, WAYS[at].0, [(took, ratio(took, plain.0)), (cpu, ratio(cpu, plain.1))])
    };
    found.iter().map(row).collect()
}

fn table(found: &Found) -> Vec<Vec<String>> {
    let head = ["way", "at once", "seconds", "ratio", "CPU", "ratio"].map(str::to_owned).to_vec();
    let row = |(at_once, way, cells): Row| {
        let mut row = vec![way.to_owned(), at_once.to_string()];
        for (spread, ratio) in cells {
            row.extend([spread.told(2), format!("{ratio:.3}")]);
        }
        row
    };
    std::iter::once(head).chain(rows(found).into_iter().map(row)).collect()
}

fn print_json(found: &Found) -> Result<(), Failure> {
    let rows = rows(found).into_iter().map(|(at_once, way, [(took, ratio), (cpu, cpu_ratio)])| {
        json!({
            "way": way, "at_once": at_once, "seconds": took, "ratio": ratio,
            "cpu_seconds": cpu, "cpu_ratio": cpu_ratio,
        })
    });
    let all: Vec<_> = rows.collect();
    output::line(serde_json::to_string_pretty(&json!({ "builds": all }))?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_medians_at_the_same_number() {
        let runs = |seconds: [u64; 3]| {
            let run = |it| Measured { took: Duration::from_secs(it), cpu: Duration::from_secs(2) };
            seconds.map(run).into_iter().collect::<Vec<_>>()
        };
        let found = Found::from([
            ((1, 0), runs([1, 2, 30])),
            ((1, 2), runs([3, 3, 1])),
            ((4, 0), runs([10, 10, 10])),
            ((4, 1), runs([5, 11, 12])),
        ]);
        let told: Vec<_> = rows(&found).into_iter().map(|row| (row.0, row.1, row.2[0].1)).collect();
        let expected =
            [(1, "plain", 1.0), (1, "serializable", 1.5), (4, "plain", 1.0), (4, "snapshot", 1.1)];
        assert_eq!(told, expected);
        assert_eq!(table(&found)[2][..4], ["serializable", "1", "3.00 (1.00-3.00)", "1.500"]);
    }
}
