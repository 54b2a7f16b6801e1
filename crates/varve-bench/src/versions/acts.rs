//! What is done to a tree on each target, by the programs that a user would call.
//!
//! | act | on Varve | on others |
//! | --- | --- | --- |
//! | `begin` | `varve txn begin` | an overlay is mounted |
//! | `change` | so many files are written to in it | the same: each is copied up |
//! | `commit`, `abort` | `varve txn commit`, `abort` | there is none; an overlay is taken away |
//! | `snapshot` | `varve snapshot create` | Btrfs: `btrfs subvolume snapshot` |
//! | `diff`, `rollback` | `varve snapshot diff`, `rollback`, after [`FEW`] changes | there is none |
//! | `clone` | `varve clone` | `cp -a --reflink=always`, where there is that |
//! | `copy` | | `cp -a` |
//! | `worktree` | | `git worktree add` of a commit of the tree |

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{Stage, check_interrupt};
use crate::Failure;
use crate::random::mix;
use crate::run::Step;
use crate::target::Kind;
use crate::workload::{SAMPLES, samples};

/// What there is to measure.
pub(super) const ALL: [&str; 10] = [
    "begin", "change", "commit", "abort", "snapshot", "diff", "rollback", "clone", "copy",
    "worktree",
];
/// Changes before a diff and a rollback.
const FEW: u64 = 100;
/// Bytes that a change writes, at the start of a file.
const MARK_BYTES: usize = 8;

/// What a change writes over.
pub(super) type Mark = [u8; MARK_BYTES];

impl Stage<'_> {
    /// One round on Varve.
    pub(super) fn varve(&mut self) -> Result<(), Failure> {
        if self.wants(&["begin", "change", "commit", "abort"]) {
            self.transactions()?;
        }
        if self.wants(&["snapshot", "diff", "rollback"]) {
            self.snapshots()?;
        }
        if self.wants(&["clone"]) {
            self.clones()?;
        }
        Ok(())
    }

    fn transactions(&mut self) -> Result<(), Failure> {
        let dir = self.tree_dir()?.to_path_buf();
        for count in self.counts() {
            for end in ["commit", "abort"] {
                let before = self.marks(&dir, count)?;
                let begin = |stage: &Self| stage.varve_says("txn", "begin", &dir, &[]);
                let begun = PathBuf::from(self.measure("begin", None, begin)?.trim());
                let id = begun.file_name().ok_or("varve txn begin names no directory")?;
                let id = id.to_string_lossy().into_owned();
                let mark = self.mark(end, count);
                self.measure("change", Some(count), |stage| stage.change(&begun, count, mark))?;
                let expected = if end == "commit" { vec![mark; before.len()] } else { before };
                self.measure(end, Some(count), |stage| stage.varve_says("txn", end, &dir, &[&id]))?;
                self.expect(&dir, count, &expected, end)?;
            }
        }
        Ok(())
    }

    fn snapshots(&mut self) -> Result<(), Failure> {
        let dir = self.tree_dir()?.to_path_buf();
        let name = format!("bench-{}", self.round);
        let count = FEW.min(self.tree.files());
        let before = self.marks(&dir, count)?;
        let snapshot = |act: &'static str| {
            let (dir, name) = (&dir, &name);
            move |stage: &Self| stage.varve_says("snapshot", act, dir, &[name])
        };
        self.measure("snapshot", None, snapshot("create"))?;
        self.change(&dir, count, self.mark("few", count))?;
        let told = self.measure("diff", Some(count), snapshot("diff"))?;
        let told = told.lines().filter(|line| line.starts_with("M ")).count() as u64;
        if told != count {
            return Err(format!("check failed: diff tells {told} of {count} changes").into());
        }
        self.measure("rollback", Some(count), snapshot("rollback"))?;
        self.expect(&dir, count, &before, "rollback")?;
        snapshot("delete")(self).map(drop)
    }

    fn clones(&mut self) -> Result<(), Failure> {
        let (dir, top) = (self.tree_dir()?.to_path_buf(), self.top()?.to_path_buf());
        let name = format!("clone-{}", self.round);
        let to = top.join(&name);
        self.varve_says("snapshot", "create", &dir, &[&name])?;
        self.measure("clone", None, |stage| {
            Step::new(&stage.ground.varve).arg("clone").args([&dir, &to]).quiet()
        })?;
        self.expect_copy(&to, &dir, "clone")?;
        // So that all rounds find the same.
        self.varve_says("snapshot", "rollback", &dir, &[&name])?;
        self.varve_says("snapshot", "delete", &dir, &[&name]).map(drop)
    }

    /// One round on another file system.
    pub(super) fn peer(&mut self, kind: &Kind) -> Result<(), Failure> {
        if self.wants(&["copy"]) {
            self.copies("copy", &["-a"])?;
        }
        if self.wants(&["clone"]) && matches!(kind, Kind::Xfs | Kind::Btrfs) {
            self.copies("clone", &["-a", "--reflink=always"])?;
        }
        if self.wants(&["snapshot"]) && *kind == Kind::Btrfs {
            self.subvolumes()?;
        }
        if self.wants(&["begin", "change", "abort"]) {
            self.overlays()?;
        }
        if self.wants(&["worktree"]) {
            self.worktrees()?;
        }
        Ok(())
    }

    fn copies(&mut self, act: &'static str, how: &[&str]) -> Result<(), Failure> {
        let dir = self.tree_dir()?.to_path_buf();
        let to = self.top()?.join(format!("{act}-{}", self.round));
        self.measure(act, None, |_| Step::new("cp").args(how).args([&dir, &to]).quiet())?;
        self.expect_copy(&to, &dir, act)
    }

    fn subvolumes(&mut self) -> Result<(), Failure> {
        let top = self.top()?.to_path_buf();
        let (from, to) = (top.join("subvolume"), top.join(format!("snapshot-{}", self.round)));
        if !from.exists() {
            Step::new("btrfs").args(["subvolume", "create"]).arg(&from).quiet()?;
            let tree = self.tree_dir()?.join(".");
            Step::new("cp").args(["-a", "--reflink=always"]).args([&tree, &from]).quiet()?;
        }
        self.measure("snapshot", None, |_| {
            Step::new("btrfs").args(["subvolume", "snapshot"]).args([&from, &to]).quiet()
        })?;
        self.expect_copy(&to, &from, "snapshot")
    }

    fn overlays(&mut self) -> Result<(), Failure> {
        let (dir, top) = (self.tree_dir()?.to_path_buf(), self.top()?.to_path_buf());
        for count in self.counts() {
            let before = self.marks(&dir, count)?;
            let layers = top.join(format!("overlay-{}-{count}", self.round));
            let [upper, work, merged] = ["upper", "work", "merged"].map(|name| layers.join(name));
            for layer in [&upper, &work, &merged] {
                fs::create_dir_all(layer)?;
            }
            let lower = dir.display();
            let how =
                format!("lowerdir={lower},upperdir={},workdir={}", upper.display(), work.display());
            self.measure("begin", None, |_| {
                Step::new("mount")
                    .args(["-t", "overlay", "-o", &how, "overlay"])
                    .arg(&merged)
                    .quiet()
            })?;
            let mark = self.mark("overlay", count);
            let changed =
                self.measure("change", Some(count), |stage| stage.change(&merged, count, mark));
            let marks = vec![mark; before.len()];
            let checked = changed.and_then(|()| self.expect(&merged, count, &marks, "change"));
            let ended = self.measure("abort", Some(count), |_| {
                Step::new("umount").arg(&merged).whole().quiet()?;
                Ok(fs::remove_dir_all(&layers)?)
            });
            checked.and(ended)?;
            self.expect(&dir, count, &before, "abort")?;
        }
        Ok(())
    }

    fn worktrees(&mut self) -> Result<(), Failure> {
        let (dir, top) = (self.tree_dir()?.to_path_buf(), self.top()?.to_path_buf());
        // Beside the tree, which so stays what the other acts find.
        let store = top.join("git");
        let git = || Step::new("git").arg("--git-dir").arg(&store).arg("--work-tree").arg(&dir);
        if !store.exists() {
            Step::new("git").args(["init", "--quiet", "--bare"]).arg(&store).quiet()?;
            git().args(["add", "--all"]).quiet()?;
            let who = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"];
            git().args(who).args(["commit", "--quiet", "--message", "tree"]).quiet()?;
        }
        let to = top.join(format!("worktree-{}", self.round));
        self.measure("worktree", None, |_| {
            let step = Step::new("git").arg("--git-dir").arg(&store);
            step.args(["worktree", "add", "--quiet", "--detach"]).arg(&to).quiet()
        })?;
        self.expect_copy(&to, &dir, "worktree")
    }

    fn varve_says(
        &self,
        group: &str,
        what: &str,
        dir: &Path,
        last: &[&str],
    ) -> Result<String, Failure> {
        Step::new(&self.ground.varve).args([group, what]).arg(dir).args(last).capture()
    }

    /// How many files transactions change.
    fn counts(&self) -> Vec<u64> {
        let fit = self.options.changes.iter().copied();
        fit.filter(|count| *count > 0 && *count <= self.tree.files()).collect()
    }

    /// Bytes that no other change writes.
    fn mark(&self, what: &str, count: u64) -> Mark {
        let key = what.bytes().fold(count, |key, byte| mix(key ^ u64::from(byte)));
        mix(key ^ u64::from(self.round)).to_le_bytes()
    }

    /// The path, below `dir`, of the file that is number `at` of `count` spread over the tree.
    fn changed(&self, dir: &Path, at: u64, count: u64) -> PathBuf {
        dir.join(self.tree.file(at * (self.tree.files() / count.max(1))))
    }

    /// Writes `mark` to the start of `count` files of the tree in `dir`, spread over all of it.
    fn change(&self, dir: &Path, count: u64, mark: Mark) -> Result<(), Failure> {
        for at in 0..count {
            check_interrupt()?;
            let path = self.changed(dir, at, count);
            let file = File::options().write(true).open(&path);
            let written = file.and_then(|file| file.write_all_at(&mark, 0));
            written.map_err(|error| format!("cannot write to {}: {error}", path.display()))?;
        }
        Ok(())
    }

    /// What a change of `count` files would write over, of some of them.
    fn marks(&self, dir: &Path, count: u64) -> Result<Vec<Mark>, Failure> {
        samples(count, SAMPLES).map(|at| first_bytes(&self.changed(dir, at, count))).collect()
    }

    /// An error unless those of `count` changed files in `dir` that [`Stage::marks`] looks at begin so.
    fn expect(&self, dir: &Path, count: u64, marks: &[Mark], act: &str) -> Result<(), Failure> {
        for (at, mark) in samples(count, SAMPLES).zip(marks) {
            let path = self.changed(dir, at, count);
            if first_bytes(&path)? != *mark {
                let path = path.display();
                return Err(
                    format!("check failed: {path} is not as it should be after {act}").into()
                );
            }
        }
        Ok(())
    }

    /// An error unless files of the copy `to` begin as those of `from`.
    fn expect_copy(&self, to: &Path, from: &Path, act: &str) -> Result<(), Failure> {
        let count = self.tree.files();
        self.expect(to, count, &self.marks(from, count)?, act)
    }
}

fn first_bytes(path: &Path) -> Result<Mark, Failure> {
    let mut bytes = Mark::default();
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    Ok(bytes)
}
