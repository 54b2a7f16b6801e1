//! The operations, in the order of one round.
//!
//! mkdir, create (open with O_CREAT and close), stat with cold caches, stat again, readdir and ls -l
//! (readdir and an lstat of every name) with cold caches, chmod, rename within the directory, unlink, rmdir.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::time::{ClockId, clock_gettime};

use super::report::Report;
use super::subject::Subject;
use crate::run::{Failure, Outcome, Step};

/// How many files where, and in which order they are visited.
pub(super) struct Plan {
    /// Files in all.
    pub(super) files: u64,
    /// Directories they are spread over.
    pub(super) dirs: u64,
    /// Whether stat, chmod, rename and unlink visit them in shuffled order.
    pub(super) shuffle: bool,
}

impl Plan {
    fn dir(dir: u64) -> String {
        format!("d{dir:04}")
    }

    fn file(&self, file: u64) -> String {
        let per_dir = self.files.div_ceil(self.dirs);
        format!("d{:04}/file-{:07}", file / per_dir, file)
    }

    /// The file numbers in the order of visits.
    fn visits(&self) -> Vec<u64> {
        let mut order: Vec<u64> = (0..self.files).collect();
        if self.shuffle {
            // Fisher and Yates with a fixed linear congruence (Knuth's MMIX): the same order every run.
            let mut state = 0x5eed_u64;
            for at in (1..order.len()).rev() {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let bound = at as u64 + 1;
                let other = usize::try_from((state >> 33) % bound).unwrap_or(0);
                order.swap(at, other);
            }
        }
        order
    }
}

/// Runs every operation of one round.
pub(super) fn run(plan: &Plan, subject: &mut Subject, report: &mut Report) -> Outcome {
    let old: Vec<String> = plan.visits().into_iter().map(|file| plan.file(file)).collect();
    let in_order: Vec<String> = (0..plan.files).map(|file| plan.file(file)).collect();
    let new: Vec<String> = old.iter().map(|name| name.replace("/file-", "/moved-")).collect();
    let dirs: Vec<String> = (0..plan.dirs).map(Plan::dir).collect();

    measure("mkdir", subject, report, |root| {
        each(&dirs, |dir| rustix::fs::mkdirat(root, dir, Mode::from_raw_mode(0o755)))
    })?;
    measure("create", subject, report, |root| {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        each(&in_order, |file| {
            rustix::fs::openat(root, file, flags, Mode::from_raw_mode(0o644)).map(drop)
        })
    })?;
    subject.note_memory("after create", report)?;
    subject.make_cold()?;
    let stat = |root: &OwnedFd| {
        each(&old, |file| rustix::fs::statat(root, file, AtFlags::SYMLINK_NOFOLLOW).map(drop))
    };
    measure("stat cold", subject, report, stat)?;
    measure("stat cached", subject, report, stat)?;
    subject.make_cold()?;
    measure("readdir", subject, report, |root| list(root, &dirs, plan.files, false))?;
    subject.make_cold()?;
    measure("ls -l", subject, report, |root| list(root, &dirs, plan.files, true))?;
    measure("chmod", subject, report, |root| {
        each(&old, |file| {
            rustix::fs::chmodat(root, file, Mode::from_raw_mode(0o600), AtFlags::empty())
        })
    })?;
    measure("rename", subject, report, |root| {
        let pairs: Vec<(&String, &String)> = old.iter().zip(&new).collect();
        each(&pairs, |(from, to)| rustix::fs::renameat(root, from.as_str(), root, to.as_str()))
    })?;
    subject.note_memory("after rename", report)?;
    measure("unlink", subject, report, |root| {
        each(&new, |file| rustix::fs::unlinkat(root, file, AtFlags::empty()))
    })?;
    measure("rmdir", subject, report, |root| {
        each(&dirs, |dir| rustix::fs::unlinkat(root, dir, AtFlags::REMOVEDIR))
    })
}

/// Unpacks `tarball` and syncs.
pub(super) fn unpack(tarball: &Path, subject: &mut Subject, report: &mut Report) -> Outcome {
    let root = subject.root().to_path_buf();
    let cpu = subject.daemon_cpu()?;
    let begin = Instant::now();
    Step::new("tar").arg("-xf").arg(tarball).arg("-C").arg(&root).quiet()?;
    let unpacked = begin.elapsed();
    let dir = rustix::fs::open(
        &root,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    // The kernel does not tell a FUSE server of syncfs(2); the fsync(2) of a directory it does.
    rustix::fs::syncfs(&dir)?;
    rustix::fs::fsync(&dir)?;
    drop(dir);
    let synced = begin.elapsed();
    let kind = subject.kind();
    report.add_seconds(kind, "unpack", unpacked);
    report.add_seconds(kind, "unpack and sync", synced);
    report.add_seconds(
        kind,
        "unpack, CPU of the daemon",
        subject.daemon_cpu()?.saturating_sub(cpu),
    );
    subject.note_memory("after unpack", report)
}

/// Runs `body`, which returns how many operations it did, and notes the costs of one.
fn measure(
    operation: &str,
    subject: &Subject,
    report: &mut Report,
    body: impl Fn(&OwnedFd) -> Result<u64, Failure>,
) -> Outcome {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, subject.root(), flags, Mode::empty())?;
    let daemon = subject.daemon_cpu()?;
    let client = cpu_of_this_process();
    let begin = Instant::now();
    let count = body(&root)
        .map_err(|error| format!("{operation} on {}: {error}", subject.kind().name()))?;
    let elapsed = begin.elapsed();
    let client = cpu_of_this_process().saturating_sub(client);
    let daemon = subject.daemon_cpu()?.saturating_sub(daemon);
    report.add(subject.kind(), operation, count, elapsed, client, daemon);
    Ok(())
}

fn cpu_of_this_process() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// Does one operation on each item.
fn each<T>(items: &[T], operation: impl Fn(&T) -> rustix::io::Result<()>) -> Result<u64, Failure> {
    for item in items {
        operation(item)?;
    }
    Ok(items.len() as u64)
}

/// Lists every directory; with `attributes` also asks for those of every name. Checks the count.
fn list(root: &OwnedFd, dirs: &[String], files: u64, attributes: bool) -> Result<u64, Failure> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut found = 0_u64;
    for dir in dirs {
        let fd = rustix::fs::openat(root, dir, flags, Mode::empty())?;
        for entry in Dir::read_from(&fd)? {
            let entry = entry?;
            let name = entry.file_name();
            if name.to_bytes() == b"." || name.to_bytes() == b".." {
                continue;
            }
            if attributes {
                rustix::fs::statat(fd.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            found += 1;
        }
    }
    if found == files { Ok(found) } else { Err(format!("{found} names instead of {files}").into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_visited_once() {
        let plan = Plan { files: 1003, dirs: 7, shuffle: true };
        let mut order = plan.visits();
        assert_ne!(order, (0..1003).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..1003).collect::<Vec<_>>());
    }

    #[test]
    fn files_lie_in_the_directories() {
        let plan = Plan { files: 10, dirs: 3, shuffle: false };
        assert!(plan.file(0).starts_with(&Plan::dir(0)));
        assert!(plan.file(9).starts_with(&Plan::dir(2)));
    }

    #[test]
    fn listings_are_counted() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let root = rustix::fs::open(dir.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
            .expect("directory opens");
        rustix::fs::mkdirat(&root, "d", Mode::from_raw_mode(0o755)).expect("mkdir");
        std::fs::write(dir.path().join("d/f"), "x").expect("write");
        let dirs = ["d".to_owned()];
        assert_eq!(list(&root, &dirs, 1, true).expect("one name"), 1);
        assert!(list(&root, &dirs, 2, true).is_err());
    }
}
