//! git: clone, checkout of many branches, worktrees, gc and fsck, and the daemon killed between commits.
//!
//! 1. A repository with many branches is made by `git fast-import` on a plain directory, from a seed.
//! 2. It is cloned onto the ground over git's protocol and by hard links; each branch is checked out and
//!    must be what the commit says; gc, repack and fsck run over it, and while commits go on.
//! 3. Commits go on until the daemon is killed. Every commit that git reported must be there and whole.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use super::{Effort, Ground, Tally, tools};
use crate::random::Random;
use crate::run::{Failure, Outcome, Step};

const BRANCHES: u64 = 24;
const FILES: u64 = 150;
/// Files that each branch changes.
const CHANGED: u64 = 40;

/// How long the first commit may take.
const FIRST_WAIT_MAX: Duration = Duration::from_secs(60);

/// Runs all parts.
pub(super) fn run(ground: &mut Ground, effort: &mut Effort, tally: &mut Tally) -> Outcome {
    if tools::find("git").is_none() {
        tally.not_run(tools::missing("git"));
        return Ok(());
    }
    loop {
        let seed = effort.seed();
        let origin = ground.outside("git")?.join(format!("origin-{seed}"));
        make_origin(&origin, seed)?;
        let clone = ground.dir().join(format!("clone-{seed}"));
        let linked = ground.dir().join(format!("linked-{seed}"));
        let parts: [(&str, &dyn Fn() -> Outcome); 6] = [
            ("clone", &|| clone_over_protocol(&origin, &clone)),
            ("checkout of each branch", &|| check_out_each(&clone)),
            ("clone by hard links", &|| clone_by_links(&clone, &linked)),
            ("gc and repack", &|| collect(&clone)),
            ("worktree", &|| worktree(&clone, &ground.dir().join(format!("tree-{seed}")))),
            ("gc while commits go on", &|| collect_while_committing(&linked)),
        ];
        for (name, part) in parts {
            tally.case(&format!("{name}, seed {seed}"), part());
        }
        let outcome = kill_between_commits(ground, &clone, seed);
        tally.case(&format!("daemon killed, seed {seed}"), outcome);
        if !effort.next_round() {
            break;
        }
    }
    Ok(())
}

fn git(dir: &Path, args: &[&str]) -> Step {
    let mut step = Step::new("git").args(["-c", "safe.directory=*", "-c", "gc.auto=0"]).args(args);
    for (name, value) in [
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_CONFIG_SYSTEM", "/dev/null"),
        ("GIT_AUTHOR_NAME", "A"),
        ("GIT_AUTHOR_EMAIL", "a@example.org"),
        ("GIT_COMMITTER_NAME", "A"),
        ("GIT_COMMITTER_EMAIL", "a@example.org"),
    ] {
        step = step.env(name, value);
    }
    step.dir(dir)
}

/// Makes a bare repository: a trunk of [`FILES`] files and branches that each change some.
fn make_origin(origin: &Path, seed: u64) -> Outcome {
    Step::new("git").args(["init", "-q", "--bare", "-b", "main"]).arg(origin).quiet()?;
    let mut stream = String::new();
    let mut commit = |branch: &str,
                      from: Option<&str>,
                      files: &mut dyn Iterator<Item = u64>,
                      salt: u64| {
        let stamp = 1_000_000_000 + salt;
        writeln!(stream, "commit refs/heads/{branch}\ncommitter A <a@example.org> {stamp} +0000")?;
        writeln!(stream, "data 2\nx")?;
        if let Some(from) = from {
            writeln!(stream, "from refs/heads/{from}")?;
        }
        for file in files {
            let text = file_text(seed.wrapping_add(salt << 32), file);
            let (dir, len) = (file % 12, text.len());
            writeln!(stream, "M 100644 inline dir-{dir}/file-{file}\ndata {len}\n{text}")?;
        }
        Ok::<(), std::fmt::Error>(())
    };
    commit("main", None, &mut (0..FILES), 0)?;
    for branch in 0..BRANCHES {
        let name = format!("branch-{branch}");
        let mut changed = (0..CHANGED).map(|at| (branch * 31 + at * 7) % FILES);
        commit(&name, Some("main"), &mut changed, branch + 1)?;
    }
    git(origin, &["fast-import", "--quiet"]).input(stream).quiet()
}

/// Lines of words, up to some 100 KiB: sizes on both sides of the border between small and large.
fn file_text(seed: u64, file: u64) -> String {
    let mut random = Random::new(seed << 32 ^ file);
    let lines = if file.is_multiple_of(10) { 4000 } else { 1 + file * 13 % 300 };
    let mut text = String::new();
    for _ in 0..lines {
        let _ = writeln!(text, "{:016x} line", random.next());
    }
    text
}

fn clone_over_protocol(origin: &Path, clone: &Path) -> Outcome {
    let url = format!("file://{}", origin.display());
    let clone = clone.to_string_lossy();
    git(Path::new("/"), &["clone", "-q", &url, &clone]).quiet()?;
    fsck(Path::new(&*clone))
}

fn check_out_each(clone: &Path) -> Outcome {
    for branch in 0..BRANCHES {
        let branch = format!("branch-{branch}");
        git(clone, &["checkout", "-q", &branch]).quiet()?;
        is_clean(clone)?;
        // What lies in the directory, read back and hashed, must be the tree of the commit.
        git(clone, &["add", "--all", "--renormalize"]).quiet()?;
        let tree = git(clone, &["write-tree"]).capture()?;
        if tree != git(clone, &["rev-parse", "HEAD^{tree}"]).capture()? {
            return Err(format!("{branch} is not what its commit says: {tree}").into());
        }
    }
    git(clone, &["checkout", "-q", "main"]).quiet()
}

fn clone_by_links(clone: &Path, linked: &Path) -> Outcome {
    let (from, to) = (clone.to_string_lossy(), linked.to_string_lossy());
    git(Path::new("/"), &["clone", "-q", "--local", &from, &to]).quiet()?;
    fsck(linked)
}

fn collect(clone: &Path) -> Outcome {
    git(clone, &["gc", "--quiet", "--prune=now"]).quiet()?;
    fsck(clone)?;
    git(clone, &["repack", "-q", "-a", "-d", "-f"]).quiet()?;
    git(clone, &["pack-refs", "--all"]).quiet()?;
    fsck(clone)?;
    is_clean(clone)
}

fn worktree(clone: &Path, tree: &Path) -> Outcome {
    let path = tree.to_string_lossy();
    git(clone, &["worktree", "add", "-q", &path, "origin/branch-3"]).quiet()?;
    is_clean(tree)?;
    git(clone, &["worktree", "remove", &path]).quiet()?;
    if tree.exists() { Err("the worktree is still there".into()) } else { Ok(()) }
}

fn collect_while_committing(clone: &Path) -> Outcome {
    let (done, first) = (AtomicBool::new(false), mpsc::channel());
    std::thread::scope(|scope| {
        let committer = scope.spawn(|| commit_until(clone, &done, &first.0));
        let _ = first.1.recv_timeout(FIRST_WAIT_MAX);
        let collected: Outcome = (0..3).try_for_each(|_| git(clone, &["gc", "--quiet"]).quiet());
        done.store(true, Ordering::Relaxed);
        let commits = committer.join().map_err(|_| Failure::from("the committer panicked"))?;
        collected?;
        match commits {
            (_, Some(error)) => Err(error),
            (commits, None) => all_there(clone, &commits),
        }
    })
}

fn kill_between_commits(ground: &mut Ground, clone: &Path, seed: u64) -> Outcome {
    let (done, first) = (AtomicBool::new(false), mpsc::channel());
    let (ended, (commits, error)) = std::thread::scope(|scope| {
        let committer = scope.spawn(|| commit_until(clone, &done, &first.0));
        // However slow the machine is; it tells of none if it fails before.
        let _ = first.1.recv_timeout(FIRST_WAIT_MAX);
        std::thread::sleep(Duration::from_millis(200 + seed * 97 % 300));
        let ended = committer.is_finished();
        let killed = ground.kill();
        done.store(true, Ordering::Relaxed);
        let commits = committer.join().map_err(|_| Failure::from("the committer panicked"));
        killed.and(commits).map(|commits| (ended, commits))
    })?;
    ground.recover()?;
    if let (true, Some(error)) = (ended, error) {
        return Err(format!("before the kill: {error}").into());
    }
    // What a killed git leaves behind: its lock files.
    for lock in ["index.lock", "HEAD.lock", "refs/heads/main.lock"] {
        let _ = std::fs::remove_file(clone.join(".git").join(lock));
    }
    all_there(clone, &commits)
}

/// Commits until `done` or until an error, and tells of each; returns what git said it has committed.
fn commit_until(
    clone: &Path,
    done: &AtomicBool,
    told: &mpsc::Sender<()>,
) -> (Vec<String>, Option<Failure>) {
    let mut commits = Vec::new();
    for at in 0_u64.. {
        if done.load(Ordering::Relaxed) {
            break;
        }
        let committed = || -> Result<String, Failure> {
            std::fs::write(clone.join(format!("new-{}", at % 20)), file_text(at, at))?;
            git(clone, &["add", "--all"]).quiet()?;
            git(clone, &["commit", "-q", "-m", &format!("{at}")]).quiet()?;
            git(clone, &["rev-parse", "HEAD"]).capture()
        };
        match committed() {
            Ok(id) => {
                commits.push(id.trim().to_owned());
                let _ = told.send(());
            }
            Err(error) => return (commits, Some(error)),
        }
    }
    (commits, None)
}

fn all_there(clone: &Path, commits: &[String]) -> Outcome {
    if commits.is_empty() {
        return Err("not one commit was made".into());
    }
    fsck(clone)?;
    let log = git(clone, &["log", "--format=%H"]).capture()?;
    match commits.iter().find(|id| !log.contains(id.as_str())) {
        Some(id) => Err(format!("commit {id} was reported and is gone").into()),
        None => Ok(()),
    }
}

fn fsck(clone: &Path) -> Outcome {
    git(clone, &["fsck", "--full", "--strict", "--no-progress", "--no-dangling"]).quiet()
}

fn is_clean(tree: &Path) -> Outcome {
    let dirty = git(tree, &["status", "--porcelain"]).capture()?;
    if dirty.is_empty() { Ok(()) } else { Err(format!("not clean: {dirty}").into()) }
}
