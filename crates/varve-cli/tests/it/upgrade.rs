//! A mount whose daemon is replaced while programs use it, and what becomes of it when that fails.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde_json::Value;

use crate::harness::{Mount, fails, others_can_run, run, varve, without_namespaces};
use varve_testkit::{
    Command, at_end, eventually, put_program, put_script, there_are_rings, there_is,
};

/// A mount over /dev/fuse: rings end with their process.
fn mounted() -> Option<Mount> {
    let mount = Mount::new()?;
    mount.unmount();
    remount(&mount);
    Some(mount)
}

fn remount(mount: &Mount) {
    run(varve().args(["mount", "-o", "transport=dev"]).arg(mount.store()).arg(mount.path()));
}

fn upgrade(mount: &Mount, binary: &Path) {
    let output =
        run(varve().args(["upgrade", "--json"]).arg(mount.path()).arg("--binary").arg(binary));
    let ready: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(ready["dir"], mount.path().to_str().unwrap());
}

/// The failure of an upgrade to `binary`.
fn refused(mount: &Mount, binary: &Path) -> String {
    fails(varve().arg("upgrade").arg(mount.path()).arg("--binary").arg(binary), 1)
}

/// An executable file.
fn script(dir: &Path, name: &str, body: &str) -> PathBuf {
    let path = dir.join(name);
    put_script(&path, &format!("#!/bin/sh\n{body}"));
    path
}

const BINARY: &str = env!("CARGO_BIN_EXE_varve");

/// Two copies of the binary at other paths.
fn copies(dir: &Path) -> [PathBuf; 2] {
    ["one", "two"].map(|name| {
        let path = dir.join(name);
        put_program(BINARY, &path);
        path
    })
}

/// A program in another process that works on the mount until its input is closed, and fails loudly.
fn program(dir: &Path, command: &str, arguments: &[&str]) -> Child {
    Command::new(command)
        .args(arguments)
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn succeeded(mut child: Child) {
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Writes to a shared mapping and reads what it wrote by read(2).
const MAPPER: &str = r#"
import mmap, os, select, sys
fd = os.open("mapped", os.O_RDWR | os.O_CREAT, 0o644)
os.truncate(fd, 65536)
shared = mmap.mmap(fd, 65536, mmap.MAP_SHARED)
count = 0
while not select.select([sys.stdin], [], [], 0.002)[0]:
    count += 1
    shared[4096:4104] = count.to_bytes(8, "little")
    shared.flush()
    assert os.pread(fd, 8, 4096) == count.to_bytes(8, "little")
assert count > 10
"#;

/// Lives in a directory that is removed.
const SQUATTER: &str = r#"
mkdir squat && cd squat && echo in >held && exec 3<held && rm held && rmdir ../squat || exit 1
while :; do
    [ -z "$(ls -A)" ] || exit 2
    mkdir x 2>/dev/null && exit 3
    stat . >/dev/null || exit 4
    read -t 0.01 line; [ $? -gt 128 ] || break
done
read text <&3; [ "$text" = in ] || exit 5
"#;

/// Copies, compares and removes a tree, over and over; and a git repository, if there is git.
const COPIER: &str = r#"
mkdir tree && for i in $(seq 60); do head -c $((i * 997)) /dev/urandom >tree/f$i; ln -s f$i tree/l$i; done || exit 1
command -v git >/dev/null && git init -q repo && cp -r tree repo/t && git -C repo add -A &&
    git -C repo -c user.name=u -c user.email=e commit -qm c
while :; do
    tar -cf - tree | (mkdir copy && cd copy && tar -xf -) || exit 2
    diff -r tree copy/tree || exit 3
    rm -r copy || exit 4
    [ ! -d repo ] || { git clone -q repo clone && git -C clone fsck --strict && rm -rf clone; } || exit 5
    read -t 0.01 line; [ $? -gt 128 ] || break
done
"#;

/// Calls `work` over and over until `stop`.
fn repeat<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    stop: &'scope AtomicBool,
    mut work: impl FnMut(u64) + Send + 'scope,
) {
    scope.spawn(move || {
        let mut round = 0;
        while !stop.load(Ordering::SeqCst) {
            work(round);
            round += 1;
        }
    });
}

const LARGE: usize = 300_000;
const UPGRADES_MIN: usize = 12;
const LOAD_TIME: Duration = Duration::from_secs(4);

/// Files open in every way, used by threads of this process.
struct OpenFiles {
    dir: PathBuf,
    small: File,
    /// Opened when it was large already: the kernel reads and writes it straight, where it can.
    straight: File,
    removed: File,
    nameless: File,
    /// Holds a lock, which `contender` wants.
    locked: File,
    contender: File,
}

impl OpenFiles {
    fn new(dir: PathBuf) -> OpenFiles {
        let open = |name: &str| {
            let mut options = File::options();
            options
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(dir.join(name))
                .unwrap()
        };
        let (large, removed) = (open("large"), open("removed"));
        large.write_all_at(&vec![3; LARGE], 0).unwrap();
        drop(large);
        removed.write_all_at(&vec![4; LARGE], 0).unwrap();
        fs::remove_file(dir.join("removed")).unwrap();
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let nameless = rustix::fs::open(&dir, flags, Mode::from_raw_mode(0o600)).unwrap();
        let (locked, contender) = (open("locked"), open("locked"));
        rustix::fs::flock(&locked, FlockOperation::LockExclusive).unwrap();
        OpenFiles {
            small: open("small"),
            straight: open("large"),
            removed,
            nameless: File::from(nameless),
            locked,
            contender,
            dir,
        }
    }

    fn rewrite_and_sync(&self, round: u64) {
        self.small.write_all_at(&round.to_le_bytes(), 0).unwrap();
        let mut back = [0; 8];
        self.small.read_exact_at(&mut back, 0).unwrap();
        assert_eq!(u64::from_le_bytes(back), round);
        self.small.sync_all().unwrap();
    }

    fn touch_the_large(&self, round: u64) {
        let (at, byte) = (round * 7919 % LARGE as u64, [round as u8]);
        for file in [&self.straight, &self.removed, &self.nameless] {
            file.write_all_at(&byte, at).unwrap();
            let mut back = [0];
            file.read_exact_at(&mut back, at).unwrap();
            assert_eq!(back, byte);
        }
    }

    fn replace_and_contend(&self, round: u64) {
        let (from, to) = (self.dir.join(format!("from{round}")), self.dir.join("to"));
        fs::write(&from, format!("{round}")).unwrap();
        fs::rename(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(&to).unwrap(), format!("{round}"));
        let taken = rustix::fs::flock(&self.contender, FlockOperation::NonBlockingLockShared);
        assert_eq!(taken, Err(Errno::WOULDBLOCK), "the lock is still held");
    }

    /// Gives the nameless file a name and closes all.
    fn finish(self) {
        let path = format!("/proc/self/fd/{}", self.nameless.as_raw_fd());
        let named = self.dir.join("named");
        rustix::fs::linkat(CWD, path, CWD, &named, AtFlags::SYMLINK_FOLLOW).unwrap();
        assert!(fs::metadata(&named).unwrap().len() > 0);
        rustix::fs::flock(&self.locked, FlockOperation::Unlock).unwrap();
        rustix::fs::flock(&self.contender, FlockOperation::NonBlockingLockShared).unwrap();
    }
}

/// Upgrades to one of `binaries` after the other for a while, with `work` going on in between.
fn upgrade_often(mount: &Mount, binaries: &[PathBuf; 2], work: &AtomicU64) {
    let pid = mount.daemon();
    let begin = Instant::now();
    for round in 0.. {
        if round >= UPGRADES_MIN && begin.elapsed() > LOAD_TIME {
            break;
        }
        let before = work.load(Ordering::SeqCst);
        upgrade(mount, &binaries[round % 2]);
        let running = fs::read_link(format!("/proc/{}/exe", pid.as_raw_nonzero())).unwrap();
        assert_eq!(running, binaries[round % 2]);
        eventually("work goes on", || work.load(Ordering::SeqCst) >= before + 10);
    }
    assert_eq!(mount.daemon(), pid, "the process stays the same");
}

#[test]
fn programs_go_on_over_upgrades() {
    let Some(mount) = mounted() else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let binaries = copies(elsewhere.path());
    let dir = mount.path();
    let files = OpenFiles::new(dir.clone());
    let mut programs =
        vec![program(&dir, "bash", &["-c", SQUATTER]), program(&dir, "bash", &["-c", COPIER])];
    if there_is("python3") {
        programs.push(program(&dir, "python3", &["-c", MAPPER]));
    }
    let (stop, lines, work) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let end = at_end(|| stop.store(true, Ordering::SeqCst));
        repeat(scope, &stop, |round| {
            files.rewrite_and_sync(round);
            work.fetch_add(1, Ordering::SeqCst);
        });
        repeat(scope, &stop, |round| files.touch_the_large(round));
        repeat(scope, &stop, |round| files.replace_and_contend(round));
        for _ in 0..2 {
            let mut end = File::options().append(true).create(true).open(dir.join("log")).unwrap();
            let lines = &lines;
            repeat(scope, &stop, move |_| {
                end.write_all(b"one line\n").unwrap();
                lines.fetch_add(1, Ordering::SeqCst);
            });
        }
        upgrade_often(&mount, &binaries, &work);
        drop(end);
    });
    programs.into_iter().for_each(succeeded);
    let log = fs::read_to_string(dir.join("log")).unwrap();
    assert!(log.lines().all(|line| line == "one line"));
    assert_eq!(log.lines().count() as u64, lines.load(Ordering::SeqCst));
    files.finish();
    mount.unmount();
    run(varve().arg("fsck").arg(mount.store()));
    mount.mount();
    assert_eq!(fs::metadata(dir.join("large")).unwrap().len(), LARGE as u64);
    assert!(fs::metadata(dir.join("removed")).is_err());
}

/// A refusal costs nothing: the daemon serves on and can be upgraded afterwards.
#[test]
fn what_cannot_take_over_is_refused_before_anything_stops() {
    let Some(mount) = mounted() else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let mut held = File::create(mount.path().join("held")).unwrap();
    let newer =
        script(elsewhere.path(), "newer", "echo '{\"handover_version\":99,\"format_version\":1}'");
    let older = script(elsewhere.path(), "older", "echo 'error: unexpected argument' >&2; exit 2");
    for (binary, reason) in [
        (Path::new("/bin/true"), "no varve"),
        (&newer, "handover version 99"),
        (&older, "unexpected argument"),
        (elsewhere.path(), "cannot take the mount over"),
    ] {
        let said = refused(&mount, binary);
        assert!(said.contains(reason), "{said}");
        held.write_all(b"x").unwrap();
    }
    upgrade(&mount, Path::new(BINARY));
    held.write_all(b"y").unwrap();
    assert_eq!(fs::read(mount.path().join("held")).unwrap(), b"xxxxy");
}

/// The program disappears between the question and the start.
#[test]
fn a_program_that_cannot_be_started_leaves_the_old_one_serving() {
    let Some(mount) = mounted() else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let mut held = File::create(mount.path().join("held")).unwrap();
    let body = format!("rm \"$0\"; exec {BINARY} \"$@\"");
    for _ in 0..2 {
        let fleeting = script(elsewhere.path(), "fleeting", &body);
        let said = refused(&mount, &fleeting);
        assert!(said.contains("continues"), "{said}");
        held.write_all(b"still here").unwrap();
    }
    upgrade(&mount, Path::new(BINARY));
    held.write_all(b".").unwrap();
    assert_eq!(fs::read(mount.path().join("held")).unwrap(), b"still herestill here.");
}

/// An upgrade took the mounts of views away and paused the session while a commit was under way, as requests about views have
/// threads of their own: the commit was cut off, and its client never heard of it.
#[test]
fn an_upgrade_waits_for_a_commit_under_way() {
    let Some(mount) = mounted() else { return };
    let _apart = without_namespaces();
    let (dir, elsewhere) = (mount.path().to_path_buf(), tempfile::tempdir().unwrap());
    fs::write(dir.join("file"), "before").unwrap();
    let begin = |isolation: &str| {
        let mut command = varve();
        let said = run(command.args(["txn", "begin", "--isolation", isolation]).arg(&dir)).stdout;
        PathBuf::from(String::from_utf8(said).unwrap().trim())
    };
    let (looks, writes) = (begin("serializable"), begin("snapshot"));
    fs::write(writes.join("file"), "after").unwrap();
    assert_eq!(fs::read(looks.join("file")).unwrap(), b"before");
    let spawn = |arguments: &[&str], last: &Path| {
        let mut command = varve();
        command.args(arguments).arg(&dir).arg(last);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    // The one who is refused knows that the other waits for the lock of who has looked.
    let id = |view: &Path| PathBuf::from(view.file_name().unwrap());
    let mut commits = [0; 2].map(|_| spawn(&["txn", "commit"], &id(&writes)));
    let mut refused = None;
    eventually("the other one is refused", || {
        refused = commits.iter_mut().position(|commit| commit.try_wait().unwrap().is_some());
        refused.is_some()
    });
    let [first, second] = commits;
    let (refused, commit) = if refused == Some(0) { (first, second) } else { (second, first) };
    let refused = refused.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("is being ended already"), "{said}");
    let heard = elsewhere.path().join("heard");
    let body = format!("touch {}; exec {BINARY} \"$@\"", heard.display());
    let binary = script(elsewhere.path(), "binary", &body);
    let mut command = varve();
    command.arg("upgrade").arg(&dir).arg("--binary").arg(&binary);
    let upgrade = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("the upgrade has begun", || heard.exists());
    run(varve().args(["txn", "commit"]).arg(&dir).arg(id(&looks)));
    succeeded(commit);
    succeeded(upgrade);
    assert_eq!(fs::read(dir.join("file")).unwrap(), b"after");
    assert_eq!(run(varve().args(["txn", "list"]).arg(&dir)).stdout, b"");
}

/// A program that says it can and then cannot: it must become the one before, even if that has no name any more.
#[test]
fn a_program_that_cannot_go_on_becomes_the_one_before() {
    let Some(mount) = mounted() else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let [first, _] = copies(elsewhere.path());
    upgrade(&mount, &first);
    fs::remove_file(&first).unwrap();
    let pid = mount.daemon();
    let mut held = File::create(mount.path().join("held")).unwrap();
    let body = format!(
        "case \"$*\" in *--successor*) set -- mount --daemon -o nonsense {0} {1} --successor;; esac\nexec {BINARY} \"$@\"",
        mount.store().display(),
        mount.path().display(),
    );
    let boaster = script(elsewhere.path(), "boaster", &body);
    let said = refused(&mount, &boaster);
    assert!(said.contains("nonsense"), "{said}");
    held.write_all(b"after").unwrap();
    drop(held);
    assert_eq!(fs::read(mount.path().join("held")).unwrap(), b"after");
    let running = fs::read_link(format!("/proc/{}/exe", pid.as_raw_nonzero())).unwrap();
    assert!(running.to_str().unwrap().contains("one (deleted)"), "{running:?}");
    upgrade(&mount, Path::new(BINARY));
    assert_eq!(fs::read(mount.path().join("held")).unwrap(), b"after");
}

/// The worst case: programs get errors instead of waiting for ever, and the store can be mounted again.
#[test]
fn a_program_that_crashes_leaves_a_dead_mount_which_the_next_replaces() {
    let Some(mount) = mounted() else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let mut held = File::create(mount.path().join("held")).unwrap();
    held.write_all(b"kept").unwrap();
    let body = format!("case \"$*\" in *--successor*) exit 1;; esac\nexec {BINARY} \"$@\"");
    let crashes = script(elsewhere.path(), "crashes", &body);
    let said = refused(&mount, &crashes);
    assert!(said.contains("does not answer"), "{said}");
    let dead = Some(Errno::NOTCONN.raw_os_error());
    assert_eq!(fs::read_dir(mount.path()).unwrap_err().raw_os_error(), dead);
    assert_eq!(held.write_all(b"lost").unwrap_err().raw_os_error(), dead);
    remount(&mount);
    assert_eq!(fs::read(mount.path().join("held")).unwrap(), b"kept");
    drop(held);
}

/// A killed daemon's mount is in nobody's way; another store's dead mount is not ours to take away.
#[test]
fn a_dead_mount_is_replaced_by_its_own_store_only() {
    let Some(mount) = mounted() else { return };
    fs::write(mount.path().join("f"), "kept").unwrap();
    mount.kill_daemon();
    let other = tempfile::tempdir().unwrap();
    run(varve().arg("format").arg(other.path()));
    let output = varve().arg("mount").arg(other.path()).arg(mount.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("has died"), "{output:?}");
    assert!(said.contains("varve umount"), "{said}");
    remount(&mount);
    assert_eq!(fs::read_to_string(mount.path().join("f")).unwrap(), "kept");
    mount.kill_daemon();
    mount.unmount();
    remount(&mount);
    assert_eq!(fs::read_to_string(mount.path().join("f")).unwrap(), "kept");
}

#[test]
fn only_root_and_the_owner_may_upgrade() {
    let Some(mount) = mounted() else { return };
    let store = mount.store();
    let try_as_user = || {
        let mut command = varve();
        command.arg("upgrade").arg(&store).uid(1000).gid(1000);
        let output = command.output().unwrap();
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    if !others_can_run() {
        return;
    }
    assert!(!try_as_user().is_empty());
    // Even if somebody opened the way.
    for path in [store.parent().unwrap(), &store, &store.join("control")] {
        fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
    }
    let said = try_as_user();
    assert!(said.contains("only root and the user who mounted"), "{said}");
    upgrade(&mount, Path::new(BINARY));
}

/// Over io_uring the mount says why not, and goes on.
#[test]
fn rings_are_refused_with_a_way_out() {
    let Some(mount) = Mount::new() else { return };
    mount.unmount();
    let mut command = varve();
    command.args(["mount", "-o", "transport=uring"]).arg(mount.store()).arg(mount.path());
    if !there_are_rings() {
        return;
    }
    run(&mut command);
    let said = refused(&mount, Path::new(BINARY));
    assert!(said.contains("io_uring") && said.contains("transport=dev"), "{said}");
    fs::write(mount.path().join("f"), "x").unwrap();
}

/// Programs in mount namespaces of their own were not seen: an upgrade took the mounts of views away for itself alone, and they got
/// errors from then on.
#[test]
fn an_upgrade_is_refused_while_a_view_is_used_in_another_namespace() {
    let Some(mount) = mounted() else { return };
    let _apart = without_namespaces();
    let (dir, beside) = (mount.path(), tempfile::tempdir().unwrap());
    fs::write(dir.join("file"), "before").unwrap();
    run(varve().args(["snapshot", "create"]).arg(&dir).arg("s"));
    let (started, goes_on) = (beside.path().join("started"), beside.path().join("goes-on"));
    let script = |work: &str| {
        let (started, goes_on) = (started.display(), goes_on.display());
        format!("touch {started}; while [ ! -e {goes_on} ]; do sleep 0.02; done; {work}")
    };
    let in_txn = |work: &str| {
        let mut command = varve();
        command.args(["txn", "run"]).arg(&dir).args(["--", "sh", "-c", &script(work)]);
        command.current_dir(&dir);
        command
    };
    let elsewhere = |work: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script(work)]);
        command.current_dir(dir.join(".varve/snapshots/s"));
        command
    };
    let bound = |work: &str| {
        let at = beside.path().join("at");
        let work = format!(
            "mount --bind {0}/.varve/snapshots/s {1} && cd {1} && {2}",
            dir.display(),
            at.display(),
            script(work)
        );
        fs::create_dir(&at).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &work]);
        command
    };
    let works =
        [in_txn("echo after > file"), elsewhere("grep before file"), bound("grep before file")];
    for mut program in works {
        let program = program.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        eventually("it works in the view", || started.exists());
        let said = refused(&mount, Path::new(BINARY));
        assert!(said.contains("is in use") || said.contains("is also mounted on"), "{said}");
        fs::write(&goes_on, "").unwrap();
        succeeded(program);
        upgrade(&mount, Path::new(BINARY));
        fs::read_dir(dir.join(".varve/snapshots/s")).unwrap().count();
        [&started, &goes_on].iter().for_each(|path| fs::remove_file(path).unwrap());
    }
    assert_eq!(fs::read(dir.join("file")).unwrap(), b"after\n");
}
