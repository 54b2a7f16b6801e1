//! The steps that run on both sides. Each returns what it says, which must be the same on both.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::kinds::Abilities;
use super::manifest::Manifest;
use super::{builds, copies};
use crate::run::{Failure, Step};

/// What the steps work on.
pub(super) struct Context {
    /// The tarball to unpack.
    pub(super) tarball: PathBuf,
    /// Whether to do less.
    pub(super) is_small: bool,
    /// What the tree of all kinds of files may have.
    pub(super) able: Abilities,
}

/// A directory under test or of reference.
pub(super) struct Side {
    name: &'static str,
    root: PathBuf,
    outside: PathBuf,
}

impl Side {
    /// The side called `name`; `outside` is a plain directory it may send copies to.
    pub(super) fn new(name: &'static str, root: PathBuf, outside: PathBuf) -> Side {
        Side { name, root, outside }
    }

    /// Its name in reports.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// The directory.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// A path outside, on a plain directory.
    pub(super) fn outside(&self, name: &str) -> PathBuf {
        self.outside.join(name)
    }

    /// A path in it.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }
}

/// One step.
pub(super) struct RealStep {
    /// Its name in reports.
    pub(super) name: &'static str,
    /// Runs it.
    pub(super) run: fn(&Context, &Side) -> Result<String, Failure>,
}

/// All steps, in order.
pub(super) const STEPS: &[RealStep] = &[
    RealStep { name: "unpack the tarball", run: unpack },
    RealStep { name: "tar --compare", run: tar_compare },
    RealStep { name: "grep the tree", run: grep },
    RealStep { name: "cp -a", run: copy },
    RealStep { name: "diff -r", run: diff },
    RealStep { name: "compare names and attributes", run: compare_copy },
    RealStep { name: "git init, add, commit", run: git_commit },
    RealStep { name: "git fsck, status, checkout", run: git_check },
    RealStep { name: "build with make", run: make },
    RealStep { name: "build and test with cargo", run: cargo },
    RealStep { name: "sqlite: rollback journal", run: sqlite_rollback },
    RealStep { name: "sqlite: write-ahead log", run: sqlite_wal },
    RealStep { name: "rsync -aHAX out", run: rsync_out },
    RealStep { name: "rsync -aHAX back", run: rsync_back },
    RealStep { name: "rm -r the copy", run: remove_copy },
    RealStep { name: "make files of all kinds", run: copies::make },
    RealStep { name: "list owners, lists, attributes", run: copies::list },
    RealStep { name: "cp -a of all kinds", run: copies::copy },
    RealStep { name: "tar of all kinds", run: copies::tar },
    RealStep { name: "rsync -aHAX out of all kinds", run: copies::rsync_out },
    RealStep { name: "rsync -aHAX back of all kinds", run: copies::rsync_back },
    RealStep { name: "rsync -aHAX of all kinds, again", run: copies::rsync_again },
];

/// Directories that must be the same on both sides after the steps.
pub(super) const COMPARED_DIRS: &[&str] = &["tree", "back", "kinds", "kinds-back"];

fn unpack(context: &Context, side: &Side) -> Result<String, Failure> {
    let tree = side.path("tree");
    // File systems stamp with a clock that ticks a few times in 10 ms.
    let begin =
        SystemTime::now().duration_since(UNIX_EPOCH)?.saturating_sub(Duration::from_millis(20));
    fs::create_dir(&tree)?;
    let said = tar(context, &tree, "--extract")?;
    // Directories that the tarball does not list have the moment of the unpacking, which differs.
    let begin = format!("@{}.{:09}", begin.as_secs(), begin.subsec_nanos());
    Step::new("find")
        .arg(&tree)
        .args([
            "-type",
            "d",
            "-newermt",
            &begin,
            "-exec",
            "touch",
            "--date",
            "2001-02-03T04:05:06Z",
        ])
        .args(["{}", "+"])
        .quiet()?;
    Ok(said)
}

fn tar_compare(context: &Context, side: &Side) -> Result<String, Failure> {
    tar(context, &side.path("tree"), "--compare")
}

fn tar(context: &Context, dir: &Path, mode: &str) -> Result<String, Failure> {
    Step::new("tar")
        .args([mode, "--xattrs", "--xattrs-include=user.*", "-p", "-f"])
        .arg(&context.tarball)
        .arg("-C")
        .arg(dir)
        .capture()
}

fn grep(_: &Context, side: &Side) -> Result<String, Failure> {
    let script = "LC_ALL=C grep -r -I -c 'the' . | LC_ALL=C sort";
    Step::new("sh").args(["-c", script]).dir(side.path("tree")).capture()
}

fn copy(_: &Context, side: &Side) -> Result<String, Failure> {
    Step::new("cp").arg("-a").arg(side.path("tree")).arg(side.path("copy")).capture()
}

fn diff(_: &Context, side: &Side) -> Result<String, Failure> {
    Step::new("diff")
        .args(["-r", "--no-dereference"])
        .arg(side.path("tree"))
        .arg(side.path("copy"))
        .capture()
}

fn compare_copy(_: &Context, side: &Side) -> Result<String, Failure> {
    let tree = Manifest::of(&side.path("tree"), false)?;
    tree.compare(&Manifest::of(&side.path("copy"), false)?)?;
    Ok(String::new())
}

fn git(side: &Side, args: &[&str]) -> Result<String, Failure> {
    let date = "2001-02-03T04:05:06Z";
    Step::new("git")
        .args(["-c", "gc.auto=0", "-c", "core.safecrlf=false", "-c", "safe.directory=*"])
        .args(args)
        .dir(side.path("copy"))
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .env("GIT_AUTHOR_NAME", "A")
        .env("GIT_AUTHOR_EMAIL", "a@example.org")
        .env("GIT_AUTHOR_DATE", date)
        .env("GIT_COMMITTER_NAME", "A")
        .env("GIT_COMMITTER_EMAIL", "a@example.org")
        .env("GIT_COMMITTER_DATE", date)
        .capture()
}

fn git_commit(_: &Context, side: &Side) -> Result<String, Failure> {
    git(side, &["init", "-q", "-b", "main"])?;
    git(side, &["add", "--all", "--force"])?;
    git(side, &["commit", "-q", "-m", "Everything"])?;
    // Names, modes and contents determine the commit: both sides must get the same.
    git(side, &["rev-parse", "HEAD"])
}

fn git_check(_: &Context, side: &Side) -> Result<String, Failure> {
    git(side, &["fsck", "--full", "--strict", "--no-progress"])?;
    let dirty = git(side, &["status", "--porcelain"])?;
    git(side, &["checkout", "-q", "-b", "other"])?;
    git(side, &["rm", "-q", "-r", "--cached", "."])?;
    git(side, &["reset", "-q", "--hard", "main"])?;
    let still_dirty = git(side, &["status", "--porcelain"])?;
    Ok(dirty + &still_dirty)
}

fn make(_: &Context, side: &Side) -> Result<String, Failure> {
    builds::make(&side.path("make"))
}

fn cargo(_: &Context, side: &Side) -> Result<String, Failure> {
    builds::cargo(&side.path("cargo"))?;
    Ok(String::new())
}

fn sqlite_rollback(context: &Context, side: &Side) -> Result<String, Failure> {
    sqlite(side, "rollback.db", "DELETE", if context.is_small { 150 } else { 1000 })
}

fn sqlite_wal(context: &Context, side: &Side) -> Result<String, Failure> {
    sqlite(side, "wal.db", "WAL", if context.is_small { 1000 } else { 4000 })
}

/// Runs that many transactions, then opens the database again and checks it.
fn sqlite(side: &Side, name: &str, journal: &str, transactions: u32) -> Result<String, Failure> {
    let database = side.path(name);
    let mut script = format!(
        "PRAGMA journal_mode={journal};\nCREATE TABLE t(k INTEGER PRIMARY KEY, v TEXT);\n\
         CREATE INDEX i ON t(v);\n"
    );
    for at in 0..transactions {
        let value = u64::from(at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        writeln!(script, "BEGIN; INSERT INTO t VALUES({at}, 'value {value:x}');")?;
        writeln!(script, "UPDATE t SET v = v || '.' WHERE k = {}; COMMIT;", at / 2)?;
    }
    Step::new("sqlite3").args(["-bail"]).arg(&database).input(script).quiet()?;
    let check = "PRAGMA integrity_check; SELECT count(*), sum(length(v)), max(v) FROM t;";
    let answer = Step::new("sqlite3").arg(&database).arg(check).capture()?;
    if answer.starts_with("ok\n") {
        Ok(answer)
    } else {
        Err(format!("integrity check: {answer}").into())
    }
}

fn rsync_out(_: &Context, side: &Side) -> Result<String, Failure> {
    let out = side.outside("tree");
    rsync(&side.path("tree"), &out)?;
    let tree = Manifest::of(&side.path("tree"), true)?;
    tree.compare(&Manifest::of(&out, true)?)?;
    Ok(String::new())
}

fn rsync_back(_: &Context, side: &Side) -> Result<String, Failure> {
    let (out, back) = (side.outside("tree"), side.path("back"));
    rsync(&out, &back)?;
    let sent = Manifest::of(&out, true)?;
    sent.compare(&Manifest::of(&back, true)?)?;
    fs::remove_dir_all(out)?;
    Ok(String::new())
}

/// Copies all that rsync can keep.
pub(super) fn rsync(from: &Path, to: &Path) -> Result<String, Failure> {
    let from = format!("{}/", from.display());
    Step::new("rsync").arg("-aHAX").arg(from).arg(to).capture()
}

fn remove_copy(_: &Context, side: &Side) -> Result<String, Failure> {
    Step::new("rm").arg("-r").arg(side.path("copy")).capture()
}
