//! What a daemon takes of the machine is bounded, whatever programs do.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Barrier;

use crate::harness::{Mount, run, varve, without_namespaces};
use varve_daemon::kv::protocol::{Failure, Request};
use varve_testkit::{Command, there_is};

/// A field of /proc/PID/status, in KiB.
fn memory_kib(pid: rustix::process::Pid, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Arenas of the allocator besides its first: each begins at such a multiple, with memory in use and then some that is not yet.
fn further_arenas(pid: rustix::process::Pid) -> usize {
    const HEAP_BYTES: u64 = 64 << 20;
    let maps = fs::read_to_string(format!("/proc/{}/maps", pid.as_raw_nonzero())).unwrap();
    let lines: Vec<&str> = maps.lines().collect();
    let begins_a_heap = |pair: &&[&str]| {
        let (range, _) = pair[0].split_once(' ').unwrap();
        let (begin, end) = range.split_once('-').unwrap();
        u64::from_str_radix(begin, 16).unwrap().is_multiple_of(HEAP_BYTES)
            && pair[0].contains(" rw-p 00000000 00:00 0")
            && pair[1].starts_with(&format!("{end}-"))
            && pair[1].contains(" ---p 00000000 00:00 0")
    };
    lines.windows(2).filter(begins_a_heap).count()
}

fn descriptors(pid: rustix::process::Pid) -> usize {
    fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).unwrap().count()
}

/// A new mount whose daemon runs with `prefix` before its command line.
fn mounted_under(prefix: &[&str], options: &str) -> Option<Mount> {
    let mount = Mount::new()?;
    mount.unmount();
    let mut command = Command::new(prefix[0]);
    command.args(&prefix[1..]).arg(env!("CARGO_BIN_EXE_varve")).args(["mount", "-o", options]);
    run(command.arg(mount.store()).arg(mount.path()));
    Some(mount)
}

const LARGE: usize = 100_000;

/// Programs hold many times more large files open than the daemon may have descriptors.
#[test]
fn a_daemon_with_few_descriptors_serves_many_open_files() {
    if !there_is("/usr/bin/prlimit") {
        return;
    }
    for options in ["memory=16M", "memory=16M,nopassthrough"] {
        let limited = ["/usr/bin/prlimit", "--nofile=128:128"];
        let Some(mount) = mounted_under(&limited, options) else { return };
        let files: Vec<File> = (0..600_u32)
            .map(|n| {
                let path = mount.path().join(format!("f{n}"));
                fs::write(&path, vec![n as u8; LARGE]).unwrap();
                File::options().read(true).write(true).open(&path).unwrap()
            })
            .collect();
        let daemon = mount.daemon();
        assert!(descriptors(daemon) < 128, "{} descriptors", descriptors(daemon));
        for (n, file) in files.iter().enumerate() {
            let mut byte = [0];
            file.read_exact_at(&mut byte, LARGE as u64 - 1).unwrap();
            assert_eq!(byte, [n as u8]);
            file.write_all_at(b"end", LARGE as u64).unwrap();
        }
        run(Command::new("sync").arg("-f").arg(mount.path()));
        files[599].sync_all().unwrap();
        assert!(descriptors(daemon) < 128, "{} descriptors", descriptors(daemon));
        drop(files);
        assert_eq!(fs::metadata(mount.path().join("f0")).unwrap().len(), LARGE as u64 + 3);
        mount.unmount();
        run(varve().arg("fsck").arg(mount.store()));
    }
}

/// Names and inodes that the kernel has looked up do not fit the budget: their places go to the store.
#[test]
fn memory_stays_within_the_budget_however_many_inodes_are_known() {
    /// What a daemon takes besides its budget: its program, stacks, buffers of requests.
    const CONSTANT_KIB: u64 = 24 << 10;
    const BUDGET_KIB: u64 = 8 << 10;
    let Some(mount) = mounted_under(&["/usr/bin/env"], "memory=8M,transport=dev") else { return };
    for dir in 0..40 {
        let dir = mount.path().join(format!("d{dir}"));
        fs::create_dir(&dir).unwrap();
        (0..1000).for_each(|n| drop(File::create(dir.join(format!("{n}"))).unwrap()));
    }
    let output = run(varve().args(["status", "--json"]).arg(mount.store()));
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let count = |field: &str| status["daemon"][field].as_u64().unwrap();
    // The budget has room for the places of some 11,000.
    assert!(count("inodes_known") + count("inodes_spilled") >= 40_000, "{status}");
    assert!(count("inodes_known") < 12_000, "{status}");
    let resident = memory_kib(mount.daemon(), "VmRSS");
    assert!(resident < BUDGET_KIB + CONSTANT_KIB, "{resident} KiB");
    let arenas_max = std::thread::available_parallelism().unwrap().get().div_ceil(4).max(2);
    assert!(further_arenas(mount.daemon()) < arenas_max);
    // And all of them are still found.
    for dir in 0..40 {
        assert_eq!(fs::read_dir(mount.path().join(format!("d{dir}"))).unwrap().count(), 1000);
        fs::metadata(mount.path().join(format!("d{dir}/999"))).unwrap();
    }
}

/// Whoever listed the snapshots had all of them mounted, each with threads and descriptors, until the end of the mount.
#[test]
fn many_snapshots_that_are_looked_at_cost_little() {
    const SNAPSHOTS: usize = 200;
    let Some(mount) = Mount::new() else { return };
    let _apart = without_namespaces();
    let dir = mount.path();
    let seen = |n: usize| dir.join(format!(".varve/snapshots/{n:03}"));
    for n in 0..SNAPSHOTS {
        fs::write(dir.join("file"), format!("{n}")).unwrap();
        run(varve().args(["snapshot", "create"]).arg(&dir).arg(format!("{n:03}")));
    }
    let used = File::open(seen(0).join("file")).unwrap();
    run(Command::new("ls").arg("-l").arg(dir.join(".varve/snapshots")));
    let of_daemon = |what: &str| {
        let pid = mount.daemon().as_raw_nonzero();
        fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count()
    };
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let place = format!("{}/.varve/snapshots/", dir.display());
    assert!(table.matches(&place).count() <= 65 * 2, "as mount point and within the source");
    let mut counts = (0, 0);
    varve_testkit::eventually("those that were let go of have ended", || {
        counts = (of_daemon("task"), of_daemon("fd"));
        println!("{counts:?}");
        counts.0 < 64 * 5 + 40 && counts.1 < 64 * 5 + 60
    });
    let mut said = String::new();
    std::io::Read::read_to_string(&mut &used, &mut said).unwrap();
    assert_eq!(said, "0", "it is in use and stays");
    for n in [1, 100, SNAPSHOTS - 1] {
        assert_eq!(fs::read_to_string(seen(n).join("file")).unwrap(), format!("{n}"));
    }
    // More in use than stay otherwise: each is there for who comes by.
    let all: Vec<File> = (0..80).map(|n| File::open(seen(n).join("file")).unwrap()).collect();
    for (n, file) in all.iter().enumerate() {
        assert_eq!(std::io::read_to_string(file).unwrap(), format!("{n}"));
    }
}

/// Each client of dictionaries could take tens of MiB at once, for a request of one.
#[test]
fn clients_of_dictionaries_share_what_memory_there_is_for_them() {
    const CLIENTS: usize = 32;
    const PAIRS: u32 = 100_000;
    /// The budget, what a daemon takes besides, what large requests share, and what the allocator keeps.
    const MEMORY_KIB_MAX: u64 = (16 + 24 + 8 + 48 + 64) << 10;
    let Some(mount) = mounted_under(&["/usr/bin/env"], "memory=16M") else { return };
    // Of a dictionary that is not there, so that nothing but the requests takes memory.
    let changes = (0..PAIRS).map(|n| (n.to_be_bytes().to_vec(), Some(vec![1]))).collect();
    let body = Request::Change { name: b"none".to_vec(), changes }.encode(0);
    let message = [&(body.len() as u32).to_le_bytes(), &body[..]].concat();
    let together = Barrier::new(CLIENTS);
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = UnixStream::connect(mount.store().join("kv")).unwrap();
                together.wait();
                client.write_all(&message).unwrap();
                let mut answer = [0; 5];
                client.read_exact(&mut answer).unwrap();
                assert_eq!(answer[4], Failure::NotFound as u8);
            });
        }
    });
    let peak = memory_kib(mount.daemon(), "VmHWM");
    assert!(peak < MEMORY_KIB_MAX, "{peak} KiB");
}
