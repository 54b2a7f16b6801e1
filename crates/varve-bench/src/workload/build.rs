//! Programs at work on a source tree: untar, grep, make and gzip (Ren, thesis, 4.3.2), then what else is done with such
//! a tree: copying it, git, removing it.

use super::{Expects, Ops, Phase, Plan, Worker};
use crate::Failure;
use crate::op::{Expect, Op};

use crate::source_tree::{SourceOptions, SourceTree};

/// The workload.
pub(super) struct Build {
    tree: SourceTree,
}

const PHASES: [&str; 9] =
    ["untar", "grep", "make", "gzip", "copy", "commit", "status", "clone", "remove"];
/// Git with nothing of the user's, and no work in the background.
const GIT: &str =
    "git -c user.name=bench -c user.email=bench@localhost -c gc.auto=0 -c maintenance.auto=false";

impl Build {
    /// With these options.
    pub(super) fn new(options: &SourceOptions) -> Result<Build, Failure> {
        Ok(Build { tree: SourceTree::read(options)? })
    }
}

/// A script that succeeds if git finds all of the tree as it was committed.
fn clean(tree: &str) -> String {
    format!("cd '{tree}' && said=$({GIT} status --porcelain) && test -z \"$said\"")
}

impl Plan for Build {
    fn phases(&self) -> Vec<Phase> {
        let phases = PHASES.map(Phase::cold);
        phases.into_iter().map(|phase| Phase { workers: Some(1), ..phase }).collect()
    }

    fn ops(&self, phase: usize, worker: Worker) -> Ops<'_> {
        let SourceTree { top, tarball, make, .. } = &self.tree;
        let script = match PHASES[phase] {
            "untar" => format!("tar -xf '{tarball}'"),
            // Status 2 is an error.
            "grep" => format!("grep -rq 'no such pattern is in it' '{top}'; test $? -eq 1"),
            "make" => format!("cd '{top}' && {make}"),
            // What ends a pipe tells nothing of what began it.
            "gzip" => format!(
                "{{ tar -cf - '{top}' && : > packed; }} | gzip -1 > tree.tar.gz && test -e packed"
            ),
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
        let SourceTree { top, tarball, .. } = &self.tree;
        let expect = match PHASES[phase] {
            "untar" => vec![
                Expect::Names(top.clone(), self.tree.top_names),
                Expect::Succeeds(format!("tar -df '{tarball}'")),
            ],
            "gzip" => vec![
                Expect::Succeeds("gzip -t tree.tar.gz".to_owned()),
                Expect::Succeeds("gzip -dc tree.tar.gz | tar -df -".to_owned()),
            ],
            "copy" => {
                vec![Expect::Succeeds(format!("diff -r --no-dereference '{top}' copy"))]
            }
            "status" => vec![Expect::Succeeds(clean(top))],
            "clone" => vec![Expect::Succeeds(clean("clone"))],
            "remove" => vec![Expect::Absent("copy".to_owned())],
            _ => Vec::new(),
        };
        Box::new(expect.into_iter())
    }

    fn inodes(&self) -> u64 {
        // The tree, its copy, its clone, and what is made in them.
        4 * self.tree.inodes + 10_000
    }
}
