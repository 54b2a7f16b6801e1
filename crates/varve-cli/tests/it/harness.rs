//! Formats a store in a temporary directory, mounts it with the real binary, and takes both away again
//! whatever the test did.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustix::io::Errno;
use serde_json::Value;
use tempfile::TempDir;
use varve_testkit::{Command, eventually, skipped, there_is};

use crate::served::Server;

/// A store and where it is mounted. Unmounts when dropped.
pub(crate) struct Mount {
    dir: TempDir,
    /// Serves the store to the mount, if VARVE_TEST_SERVER asks for that.
    server: Mutex<Option<Server>>,
}

/// Whether stores are mounted through a server.
pub(crate) fn through_server() -> bool {
    std::env::var_os("VARVE_TEST_SERVER").is_some()
}

/// The `varve` binary under test.
pub(crate) fn varve() -> Command {
    Command::new(env!("CARGO_BIN_EXE_varve"))
}

/// Runs `command` and panics with its output unless it succeeds.
pub(crate) fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?} failed: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    output
}

/// What a program said on its standard error output.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs `command`, which must print JSON.
pub(crate) fn json(command: &mut Command) -> Value {
    serde_json::from_slice(&run(command).stdout).unwrap()
}

/// Runs `command`, which must fail with `status` and end with a hint.
pub(crate) fn fails(command: &mut Command, status: i32) -> String {
    let output = command.output().unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(status), "{command:?}: {text}");
    assert!(status == 2 || text.contains("\nhint: "), "{command:?}: no hint in {text}");
    text
}

/// Does `work` as the user `uid` with the main group `gid` and `groups`. It has a thread of its own, since to the kernel a user is a
/// matter of threads.
pub(crate) fn as_user<T: Send>(
    uid: u32,
    gid: u32,
    groups: &[u32],
    work: impl FnOnce() -> T + Send,
) -> T {
    use rustix::process::{Gid, Uid};
    let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    std::thread::scope(|scope| {
        let work = scope.spawn(move || {
            rustix::thread::set_thread_groups(&groups).unwrap();
            rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            work()
        });
        work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Who has, and who minds, mount namespaces beside that of the tests.
static NAMESPACES: RwLock<()> = RwLock::new(());

/// For tests whose programs have mount namespaces of their own, as those of `varve txn run`: they have copies of the mounts of all
/// tests that are there when they start, which last as long as they do.
pub(crate) fn with_namespaces() -> RwLockReadGuard<'static, ()> {
    NAMESPACES.read()
}

/// For tests of what such copies are in the way of: upgrades while views are mounted, the end of a mount at once, what is told of use.
pub(crate) fn without_namespaces() -> RwLockWriteGuard<'static, ()> {
    NAMESPACES.write()
}

/// Whether this machine lets tests mount; says why not.
pub(crate) fn can_mount() -> bool {
    if !Path::new("/dev/fuse").exists() {
        skipped("there is no /dev/fuse on this machine");
        return false;
    }
    if !rustix::process::geteuid().is_root() {
        skipped("these tests change owners and make device nodes, which takes root");
        return false;
    }
    true
}

/// Runs `program`, which is Python, in `dir`. False, which is said, where there is no Python.
pub(crate) fn python(dir: &Path, program: &str) -> bool {
    let found = there_is("python3");
    if found {
        run(Command::new("python3").arg("-c").arg(program).current_dir(dir));
    }
    found
}

/// What varve, run in `dir` with `words`, tells whoever looks on at a terminal where nobody types, until it ends with `status`. `None`, which
/// is said, where there is no Python.
pub(crate) fn told_a_terminal(dir: &Path, words: &[&str], status: i32) -> Option<String> {
    let program = "import os, pty, signal, subprocess, sys\n\
         terminal, end = pty.openpty()\n\
         run = subprocess.Popen(sys.argv[2:], stdin=end, stdout=subprocess.DEVNULL, stderr=end)\n\
         os.close(end)\n\
         signal.alarm(60)\n\
         told = b''\n\
         try:\n\
        \x20   while True: told += os.read(terminal, 65536)\n\
         except OSError:\n\
        \x20   sys.stdout.buffer.write(told)\n\
         assert run.wait() == int(sys.argv[1]), (run.returncode, told)\n";
    there_is("python3").then(|| {
        let mut command = Command::new("python3");
        command.args(["-c", program, &status.to_string(), env!("CARGO_BIN_EXE_varve")]);
        String::from_utf8(run(command.args(words).current_dir(dir)).stdout).unwrap()
    })
}

/// Whether other users can run the program under test; says if not.
pub(crate) fn others_can_run() -> bool {
    let binary = Path::new(env!("CARGO_BIN_EXE_varve"));
    let open = |dir: &Path| {
        std::fs::metadata(dir).is_ok_and(|meta| meta.permissions().mode() & 0o5 == 0o5)
    };
    let can = binary.ancestors().all(open);
    if !can {
        skipped("other users cannot run the program under test");
    }
    can
}

impl Mount {
    /// A new store, mounted; `None`, which is said, where mounting is not possible.
    pub(crate) fn new() -> Option<Mount> {
        if !can_mount() {
            return None;
        }
        let mount = Mount { dir: tempfile::tempdir().unwrap(), server: Mutex::default() };
        std::fs::create_dir(mount.path()).unwrap();
        run(varve().arg("format").arg(mount.store()));
        mount.mount();
        Some(mount)
    }

    /// A place for a store and its mount, where mounting is possible.
    pub(crate) fn unformatted() -> Mount {
        let mount = Mount { dir: tempfile::tempdir().unwrap(), server: Mutex::default() };
        std::fs::create_dir(mount.path()).unwrap();
        mount
    }

    /// Where the store lies.
    pub(crate) fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// Where it is mounted.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    /// Mounts the store, over the transport that VARVE_TEST_TRANSPORT names (auto, dev or uring), with further options of
    /// VARVE_TEST_OPTIONS.
    pub(crate) fn mount(&self) {
        let transport = std::env::var("VARVE_TEST_TRANSPORT").unwrap_or_else(|_| "auto".to_owned());
        let further = std::env::var("VARVE_TEST_OPTIONS").unwrap_or_default();
        self.mount_with(&format!("transport={transport},{further}"));
    }

    /// Mounts the store with options.
    pub(crate) fn mount_with(&self, options: &str) {
        let source = if through_server() { self.served() } else { self.store().into() };
        run(varve().args(["mount", "-o", options]).arg(source).arg(self.path()));
    }

    /// The address of the server of the store, which starts unless it runs.
    fn served(&self) -> OsString {
        let mut server = self.server.lock();
        let start = || Server::start("serve", &self.store(), "127.0.0.1:0", [""; 0]);
        format!("varve://{}/", server.get_or_insert_with(start).address).into()
    }

    /// Unmounts and waits for the daemon.
    pub(crate) fn unmount(&self) {
        // Its daemon looks at it for a moment, once it serves.
        eventually("nobody uses the mount", || {
            let output = varve().arg("umount").arg(self.path()).output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            let in_use = error.contains(" is in use");
            assert!(output.status.success() || in_use, "umount: {}: {error}", output.status);
            !in_use
        });
        if let Some(server) = self.server.lock().take() {
            server.stop();
        }
    }

    /// The process that serves the mount.
    pub(crate) fn daemon(&self) -> rustix::process::Pid {
        let output = run(varve().args(["status", "--json"]).arg(self.store()));
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let pid = i32::try_from(status["holder"]["pid"].as_i64().unwrap()).unwrap();
        rustix::process::Pid::from_raw(pid).unwrap()
    }

    /// The number of large files in the storage below.
    pub(crate) fn count_objects(&self) -> usize {
        let found =
            run(Command::new("find").arg(self.store().join("objects")).args(["-type", "f"]));
        String::from_utf8(found.stdout).unwrap().lines().count()
    }

    /// Kills the daemon and waits until its mount is dead.
    pub(crate) fn kill_daemon(&self) {
        rustix::process::kill_process(self.daemon(), rustix::process::Signal::KILL).unwrap();
        // What is under way when the daemon dies may end with another error, by which its death must be known too.
        eventually("the mount is dead", || {
            let error = rustix::fs::statfs(self.path()).err();
            let is_known = |error| varve_fuse::DEAD.contains(&error) || error == Errno::IO;
            assert!(error.is_none_or(is_known), "{error:?}");
            error == Some(Errno::NOTCONN)
        });
    }

    /// Has another process image take over; over io_uring that is refused.
    pub(crate) fn try_upgrade(&self) {
        let output = varve().arg("upgrade").arg(self.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() || said.contains("io_uring"), "{said}");
    }

    /// Unmounts and mounts again.
    pub(crate) fn remount(&self) {
        self.unmount();
        self.mount();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let unmounted = varve().arg("umount").arg(self.path()).output();
        if !unmounted.is_ok_and(|output| output.status.success()) {
            // A dead daemon leaves its mount behind; detach it so that the directory can go.
            let _ = rustix::mount::unmount(self.path(), rustix::mount::UnmountFlags::DETACH);
        }
    }
}
