//! The machine under a run: its caches and counters.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, openat, syncfs};

use crate::Failure;

/// How long a process may be busy with what came before, and the time in which it must hardly work to be done with it.
const SETTLE_WAIT_MAX: Duration = Duration::from_secs(60);
const SETTLE_WINDOW: Duration = Duration::from_millis(50);

/// What went to and from a block device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Requests to read.
    pub(crate) reads: u64,
    /// Bytes read.
    pub(crate) read_bytes: u64,
    /// Requests to write.
    pub(crate) writes: u64,
    /// Bytes written.
    pub(crate) written_bytes: u64,
}

impl Traffic {
    /// What came since `before`.
    pub(crate) fn since(self, before: Traffic) -> Traffic {
        Traffic {
            reads: self.reads.saturating_sub(before.reads),
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            writes: self.writes.saturating_sub(before.writes),
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
        }
    }

    /// The counters of the block device `name` (the kernel's Documentation/block/stat.rst).
    pub(crate) fn of_device(name: &str) -> Result<Traffic, Failure> {
        let text = fs::read_to_string(format!("/sys/block/{name}/stat"))?;
        let fields: Vec<u64> =
            text.split_whitespace().map_while(|field| field.parse().ok()).collect();
        let field = |at: usize| fields.get(at).copied().ok_or("too few counters of the device");
        Ok(Traffic {
            reads: field(0)?,
            read_bytes: field(2)? * 512,
            writes: field(4)?,
            written_bytes: field(6)? * 512,
        })
    }
}

/// Writes everything back that the file system of `dir` has in memory.
pub(crate) fn sync(dir: &Path) -> Result<(), Failure> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(syncfs(openat(CWD, dir, flags, Mode::empty())?)?)
}

/// What empties the kernel's caches.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Empties the kernel's caches of all that is written back; needs root.
pub(crate) fn drop_caches() -> Result<(), Failure> {
    fs::write(DROP_CACHES, "3").map_err(cannot_drop_caches)
}

/// An error if [`drop_caches`] would be one.
pub(crate) fn require_drop_caches() -> Result<(), Failure> {
    fs::File::options().write(true).open(DROP_CACHES).map(drop).map_err(cannot_drop_caches)
}

fn cannot_drop_caches(error: std::io::Error) -> Failure {
    format!("cannot drop the kernel's caches: {error}\nhint: run as root, or give --warm").into()
}

/// The value of `field` in a file of /proc that gives sizes in kB, in bytes.
pub(crate) fn memory_bytes(file: &str, field: &str) -> Result<u64, Failure> {
    let text = fs::read_to_string(file)?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.ok_or_else(|| format!("no {field} in {file}"))? * 1024)
}

/// Begins the peak of this process's memory (`VmHWM`) anew, at what it takes now (proc_pid_clear_refs(5)).
pub(crate) fn forget_memory_peak() -> Result<(), Failure> {
    Ok(fs::write("/proc/self/clear_refs", "5")?)
}

/// Whether the loop device `name` reads and writes its file past the page cache.
pub(crate) fn is_direct(name: &str) -> Result<bool, Failure> {
    let path = format!("/sys/block/{name}/loop/dio");
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    Ok(text.trim() == "1")
}

/// CPU time that the whole machine has spent on anything, the kernel's own threads included; counted in
/// hundredths of a second.
pub(crate) fn cpu() -> Result<Duration, Failure> {
    let text = fs::read_to_string("/proc/stat")?;
    let fields = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
    // User, nice, system, then idle and waiting for a disk, then interrupts (proc_stat(5)).
    let [user, nice, system, _, _, hard, soft, ..] = ticks[..] else {
        return Err("unexpected /proc/stat".into());
    };
    Ok(Duration::from_millis(10 * (user + nice + system + hard + soft)))
}

/// The sum of two CPU times of a process, of which the first is this field of its stat, counted from 1 (proc_pid_stat(5)); in
/// hundredths of a second.
pub(crate) fn cpu_in_stat(process: &str, field: usize) -> Result<Duration, Failure> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The second field is a name in parentheses; the third is the first behind it.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: Vec<u64> =
        fields.skip(field - 3).take(2).map_while(|field| field.parse().ok()).collect();
    let [one, other] = ticks[..] else { return Err("unexpected stat of a process".into()) };
    Ok(Duration::from_millis(10 * (one + other)))
}

/// CPU time of a process since its start. Of the threads that are there it is known to the nanosecond, with those that have ended only
/// in hundredths of a second, rounded down: the larger one is nearer.
pub(crate) fn cpu_of(process: u32) -> Result<Duration, Failure> {
    let mut nanos = 0_u64;
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        // A thread may end between the listing and the reading.
        let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
        let running = text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
        nanos += running.ok_or_else(|| format!("unexpected schedstat: {text}"))?;
    }
    // Fields 14 and 15 of proc_pid_stat(5): user and system time.
    Ok(Duration::from_nanos(nanos).max(cpu_in_stat(&process.to_string(), 14)?))
}

/// Waits until a process has nothing more to do, such as to take note of what the kernel has forgotten.
pub(crate) fn settle(process: u32) -> Result<(), Failure> {
    let begin = Instant::now();
    while begin.elapsed() < SETTLE_WAIT_MAX {
        let before = cpu_of(process)?;
        thread::sleep(SETTLE_WINDOW);
        if cpu_of(process)?.saturating_sub(before) < SETTLE_WINDOW / 50 {
            return Ok(());
        }
    }
    Err(format!("process {process} is still busy after {SETTLE_WAIT_MAX:?}").into())
}

/// Set for the process that already runs in its own namespace.
const NAMESPACE_MARK: &str = "VARVE_BENCH_NAMESPACE";

/// Replaces this process by the same one in a mount namespace of its own, so that every mount goes away with
/// the last process of the run, however it ends, and what others unmount meanwhile goes from it too. Without root it is also
/// in a user namespace of its own, where it may mount.
pub(crate) fn enter_private_namespace() -> Result<(), Failure> {
    if is_namespace_private() {
        return Ok(());
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "slave"]);
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(NAMESPACE_MARK, "1");
    Err(format!("cannot run unshare: {}", command.exec()).into())
}

/// Whether this process, or who started it as a worker, has done that.
pub(crate) fn is_namespace_private() -> bool {
    std::env::var_os(NAMESPACE_MARK).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::{cpu_of_this_process, cpu_of_this_thread};

    #[test]
    fn sizes_of_proc_are_read() {
        assert!(memory_bytes("/proc/self/status", "VmHWM").expect("peak") > 1 << 16);
        assert!(memory_bytes("/proc/meminfo", "MemTotal").expect("memory") > 1 << 20);
        assert!(memory_bytes("/proc/meminfo", "Nonsense").is_err());
        assert!(cpu().expect("CPU time") > Duration::ZERO);
    }

    /// What the library takes was the most that the whole run had taken, its first targets among it.
    #[test]
    fn a_peak_of_memory_can_be_forgotten() {
        const BYTES: u64 = 256 << 20;
        let peak = || memory_bytes("/proc/self/status", "VmHWM").expect("peak");
        let taken = vec![1_u8; BYTES as usize];
        assert!(taken.iter().step_by(4096).all(|byte| *byte == 1) && peak() > BYTES);
        drop(taken);
        if let Err(error) = forget_memory_peak() {
            return varve_testkit::skipped(&format!("this kernel keeps peaks of memory: {error}"));
        }
        assert!(peak() < BYTES, "{}", peak());
    }

    /// What a thread of the daemon had taken was lost with its end.
    #[test]
    fn threads_that_have_ended_count() {
        let taken = Duration::from_millis(100);
        let busy = thread::spawn(move || while cpu_of_this_thread() < taken {});
        busy.join().expect("a thread");
        let whole = cpu_of_this_process();
        let found = cpu_of(std::process::id()).expect("CPU time");
        assert!(found + Duration::from_millis(50) >= whole, "{found:?} of {whole:?}");
    }
}
