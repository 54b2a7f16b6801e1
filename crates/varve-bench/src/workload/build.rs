//! Programs at work on a source tree: untar, grep, make and gzip (Ren, thesis, 4.3.2), then what else is done with such
//! a tree: copying it, git, removing it.
//!
//! The tarball should not be compressed, or it is the decompression that is measured. It has one directory at
//! its top.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Expects, Ops, Phase, Plan, Worker};
use crate::Failure;
use crate::op::{Expect, Op};
use crate::run::Step;

/// The options.
#[derive(Clone, Debug, Serialize, Deserialize, clap::Args)]
pub(crate) struct Options {
    /// The source tree: a tarball with one directory at its top
    tarball: PathBuf,
    /// What builds it, as a shell script that runs within it
    #[arg(
        long,
        value_name = "SCRIPT",
        default_value = "make -s defconfig && make -s -j2 init/ lib/"
    )]
    make: String,
}

/// The workload.
pub(super) struct Build {
    tarball: String,
    make: String,
    /// The directory at the top of the tarball, and the names in it.
    top: String,
    names: u64,
    inodes: u64,
}

const PHASES: [&str; 9] =
    ["untar", "grep", "make", "gzip", "copy", "commit", "status", "clone", "remove"];
/// Git with nothing of the user's, and no work in the background.
const GIT: &str =
    "git -c user.name=bench -c user.email=bench@localhost -c gc.auto=0 -c maintenance.auto=false";

impl Build {
    /// With these options.
    pub(super) fn new(options: &Options) -> Result<Build, Failure> {
        let tarball = std::fs::canonicalize(&options.tarball)
            .map_err(|error| format!("{}: {error}", options.tarball.display()))?;
        let tarball = tarball.to_string_lossy().into_owned();
        if tarball.contains('\'') {
            return Err(format!("{tarball}: a quote in a path is too much for the shell").into());
        }
        let list = Step::new("tar").args(["-tf", &tarball]).capture()?;
        let top = list.lines().next().and_then(|line| line.split('/').next()).unwrap_or_default();
        let below = |line: &str| line.strip_prefix(top)?.strip_prefix('/').map(str::to_owned);
        let first = |line: &str| Some(below(line)?.split('/').next()?.to_owned());
        let names: std::collections::BTreeSet<String> =
            list.lines().filter_map(first).filter(|name| !name.is_empty()).collect();
        // The tree, its copy, its clone, and what is made in them.
        let inodes = 4 * list.lines().count() as u64 + 10_000;
        let (top, names) = (top.to_owned(), names.len() as u64);
        Ok(Build { tarball, make: options.make.clone(), top, names, inodes })
    }
}

/// A script that succeeds if git finds all of the tree as it was committed.
fn clean(tree: &str) -> String {
    format!("cd '{tree}' && test -z \"$({GIT} status --porcelain)\"")
}

impl Plan for Build {
    fn phases(&self) -> Vec<Phase> {
        let phases = PHASES.map(Phase::cold);
        phases.into_iter().map(|phase| Phase { workers: Some(1), ..phase }).collect()
    }

    fn ops(&self, phase: usize, worker: Worker) -> Ops<'_> {
        let (top, tarball, make) = (&self.top, &self.tarball, &self.make);
        let script = match PHASES[phase] {
            "untar" => format!("tar -xf '{tarball}'"),
            "grep" => format!("if grep -rq 'no such pattern is in it' '{top}'; then exit 1; fi"),
            "make" => format!("cd '{top}' && {make}"),
            "gzip" => format!("tar -cf - '{top}' | gzip -1 > tree.tar.gz"),
            "copy" => format!("cp -a '{top}' copy"),
            "commit" => format!(
                "cd '{top}' && git init -q . && {GIT} add -f . && {GIT} commit -qm all && {GIT} repack -adq"
            ),
            "status" => format!("cd '{top}' && {GIT} status --porcelain"),
            "clone" => format!("{GIT} clone -q '{top}' clone"),
            _ => "rm -r copy".to_owned(),
        };
        // However many workers there are, it is one tree.
        let script = (worker.index == 0).then_some(Op::Run(script));
        Box::new(script.into_iter())
    }

    fn expects(&self, phase: usize, _workers: u64) -> Expects<'_> {
        let expect = match PHASES[phase] {
            "untar" => vec![
                Expect::Names(self.top.clone(), self.names),
                Expect::Succeeds(format!("tar -df '{}'", self.tarball)),
            ],
            "gzip" => vec![Expect::Succeeds("gzip -t tree.tar.gz".to_owned())],
            "copy" => {
                vec![Expect::Succeeds(format!("diff -r --no-dereference '{}' copy", self.top))]
            }
            "status" => vec![Expect::Succeeds(clean(&self.top))],
            "clone" => vec![Expect::Succeeds(clean("clone"))],
            "remove" => vec![Expect::Absent("copy".to_owned())],
            _ => Vec::new(),
        };
        Box::new(expect.into_iter())
    }

    fn inodes(&self) -> u64 {
        self.inodes
    }
}
