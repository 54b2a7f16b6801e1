//! Two mounts of one server: what one program does on one of them, another sees on the other at once.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use varve_testkit::rng::Rng;
use varve_testkit::{eventually, soak};

use crate::demo::is_mounted_below;
use crate::harness::{can_mount, fails, run, varve};
use crate::served::Server;

/// A store, its server, and the mounts of it, which are unmounted at the end.
pub(crate) struct Mounts {
    dir: TempDir,
    pub(crate) server: Option<Server>,
    pub(crate) address: String,
    pub(crate) names: Vec<String>,
}

impl Mounts {
    /// A new store with mounts of these names; `None` where tests cannot mount.
    pub(crate) fn new(names: &[&str], serve: &[&str]) -> Option<Mounts> {
        Mounts::of(names, |store| Server::start("serve", store, "127.0.0.1:0", serve))
    }

    /// A new store that `serve` serves, with mounts of these names.
    pub(crate) fn of(names: &[&str], serve: impl FnOnce(&Path) -> Server) -> Option<Mounts> {
        let dir = can_mount().then(|| tempfile::tempdir().unwrap())?;
        let store = dir.path().join("store");
        run(varve().arg("format").arg(&store));
        let server = serve(&store);
        let address = server.address.to_string();
        let mut mounts = Mounts { dir, server: Some(server), address, names: Vec::new() };
        for name in names {
            mounts.mount(name);
        }
        Some(mounts)
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A command that finds the daemons of these mounts.
    pub(crate) fn varve(&self) -> varve_testkit::Command {
        let mut command = varve();
        command.env("VARVE_ANCHORS", self.anchors());
        command
    }

    pub(crate) fn mount(&mut self, name: &str) {
        self.mount_with(name, "rw");
    }

    /// Mounts with these options.
    pub(crate) fn mount_with(&mut self, name: &str, options: &str) {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap();
        let source = format!("varve://{}/", self.address);
        run(self.varve().args(["mount", "-o", options]).arg(source).arg(path));
        self.names.push(name.to_owned());
    }

    /// Where mounts keep their messages.
    fn anchors(&self) -> PathBuf {
        self.dir.path().join("anchors")
    }

    /// Kills the server, and starts another one of the same store on the same address.
    pub(crate) fn restart(&mut self, serve: &[&str]) {
        self.server.take().unwrap().kill();
        self.serve_again(serve);
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let server = self.server.as_ref().unwrap();
        rustix::process::kill_process(server.pid(), signal).unwrap();
    }

    /// Starts another server of the same store on the same address.
    pub(crate) fn serve_again(&mut self, serve: &[&str]) {
        self.server = Some(Server::start("serve", &self.store(), &self.address, serve));
    }

    /// Unmounts, ends the server and checks the store.
    pub(crate) fn end(mut self) {
        for name in std::mem::take(&mut self.names) {
            run(self.varve().arg("umount").arg(self.path(&name)));
        }
        self.server.take().unwrap().stop();
        run(varve().arg("fsck").arg(self.store()));
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = rustix::mount::unmount(self.path(name), rustix::mount::UnmountFlags::DETACH);
        }
    }
}

#[test]
fn a_mount_needs_the_secret_of_its_server() {
    let secrets = tempfile::tempdir().unwrap();
    let [right, wrong] = ["right", "wrong"].map(|name| {
        let path = secrets.path().join(name);
        fs::write(&path, format!("{name}\n")).unwrap();
        path
    });
    let Some(mut mounts) = Mounts::new(&[], &["--token-file", right.to_str().unwrap()]) else {
        return;
    };
    fs::create_dir_all(mounts.path("a")).unwrap();
    for options in ["rw".to_owned(), format!("token_file={}", wrong.display())] {
        let mut mount = mounts.varve();
        mount.args(["mount", "-o", &options]).arg(format!("varve://{}/", mounts.address));
        let refused = fails(mount.arg(mounts.path("a")), 1);
        assert!(refused.contains("token"), "{refused}");
    }
    mounts.mount_with("a", &format!("token_file={}", right.display()));
    fs::write(mounts.path("a").join("f"), "one").unwrap();
    // A view has a connection of its own.
    run(mounts.varve().args(["snapshot", "create"]).arg(mounts.path("a")).arg("s"));
    assert_eq!(fs::read(mounts.path("a").join(".varve/snapshots/s/f")).unwrap(), b"one");
    mounts.end();
}

/// The process that serves the mount on `dir`: it has that in its arguments.
pub(crate) fn daemon_of(dir: &Path) -> rustix::process::Pid {
    let found = varve_testkit::Command::new("pgrep").arg("-f").arg(dir).output().unwrap();
    let pids = String::from_utf8(found.stdout).unwrap();
    let pid = pids.lines().next().and_then(|pid| pid.parse().ok()).unwrap();
    rustix::process::Pid::from_raw(pid).unwrap()
}

/// What a program finds at a path.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    File { mode: u32, nlink: u64, bytes: Vec<u8> },
    Dir { mode: u32 },
    Link(PathBuf),
}

/// All that is found below a directory.
fn view(root: &Path) -> BTreeMap<PathBuf, Found> {
    let mut found = BTreeMap::new();
    let mut left = vec![PathBuf::new()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(root.join(&dir)).unwrap() {
            let path = dir.join(entry.unwrap().file_name());
            let at = root.join(&path);
            let meta = fs::symlink_metadata(&at).unwrap();
            let mode = meta.mode();
            let what = if meta.is_dir() {
                left.push(path.clone());
                Found::Dir { mode }
            } else if meta.is_symlink() {
                Found::Link(fs::read_link(&at).unwrap())
            } else {
                let bytes = fs::read(&at).unwrap();
                assert_eq!(bytes.len() as u64, meta.len(), "{}", at.display());
                Found::File { mode, nlink: meta.nlink(), bytes }
            };
            found.insert(path, what);
        }
    }
    found
}

#[derive(Clone, Debug)]
enum Op {
    Write(PathBuf, usize, u8),
    Append(PathBuf, usize, u8),
    Cut(PathBuf, u64),
    Unlink(PathBuf),
    Mkdir(PathBuf),
    Rmdir(PathBuf),
    Rename(PathBuf, PathBuf),
    Link(PathBuf, PathBuf),
    Symlink(PathBuf),
    Chmod(PathBuf, u32),
    /// Keeps a file open on this mount.
    Open(PathBuf),
    /// Writes to a file that is open.
    WriteOpen(u64, usize, u8),
}

fn path(rng: &mut Rng) -> PathBuf {
    let dir = ["", "", "d", "e", "d/f"][rng.below(5) as usize];
    Path::new(dir).join(["a", "b", "c", "d", "e", "f"][rng.below(6) as usize])
}

fn op(rng: &mut Rng) -> Op {
    let len = |rng: &mut Rng| if rng.below(8) == 0 { 200_000 } else { rng.below(3000) as usize };
    match rng.below(22) {
        0..=3 => Op::Write(path(rng), len(rng), rng.below(256) as u8),
        4..=6 => Op::Append(path(rng), len(rng), rng.below(256) as u8),
        7 => Op::Cut(path(rng), rng.below(4000)),
        8 => Op::Unlink(path(rng)),
        9..=10 => Op::Mkdir(path(rng)),
        11 => Op::Rmdir(path(rng)),
        12..=14 => Op::Rename(path(rng), path(rng)),
        15 => Op::Link(path(rng), path(rng)),
        16 => Op::Symlink(path(rng)),
        17 => Op::Chmod(path(rng), 0o600 + rng.below(64) as u32),
        18..=19 => Op::Open(path(rng)),
        _ => Op::WriteOpen(rng.below(300_000), len(rng), rng.below(256) as u8),
    }
}

/// A program that works below a directory.
struct Program {
    root: PathBuf,
    open: Option<File>,
}

impl Program {
    fn new(root: PathBuf) -> Program {
        Program { root, open: None }
    }

    fn apply(&mut self, op: &Op) -> io::Result<()> {
        let at = |path: &PathBuf| self.root.join(path);
        match op {
            Op::Write(path, len, byte) => fs::write(at(path), vec![*byte; *len]),
            Op::Append(path, len, byte) => {
                let file = OpenOptions::new().append(true).open(at(path));
                file.and_then(|mut file| file.write_all(&vec![*byte; *len]))
            }
            Op::Cut(path, len) => {
                let file = OpenOptions::new().write(true).open(at(path));
                file.and_then(|file| file.set_len(*len))
            }
            Op::Unlink(path) => fs::remove_file(at(path)),
            Op::Mkdir(path) => fs::create_dir(at(path)),
            Op::Rmdir(path) => fs::remove_dir(at(path)),
            Op::Rename(from, to) => fs::rename(at(from), at(to)),
            Op::Link(from, to) => fs::hard_link(at(from), at(to)),
            Op::Symlink(path) => symlink("nowhere", at(path)),
            Op::Chmod(path, mode) => match fs::symlink_metadata(at(path)) {
                Ok(meta) if meta.is_file() => {
                    fs::set_permissions(at(path), Permissions::from_mode(*mode))
                }
                _ => Ok(()),
            },
            Op::Open(path) => {
                let opened = OpenOptions::new().read(true).write(true).open(at(path));
                let failed = opened.as_ref().err().and_then(io::Error::raw_os_error);
                self.open = opened.ok().or(self.open.take());
                failed.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
            }
            Op::WriteOpen(offset, len, byte) => match &self.open {
                Some(file) => file.write_all_at(&vec![*byte; *len], *offset),
                None => Ok(()),
            },
        }
    }

    /// What the open file says of itself.
    fn open_file(&self) -> Option<(u64, u64, Vec<u8>)> {
        let file = self.open.as_ref()?;
        let meta = file.metadata().unwrap();
        let mut bytes = vec![0; usize::try_from(meta.len()).unwrap()];
        file.read_exact_at(&mut bytes, 0).unwrap();
        Some((meta.len(), meta.nlink(), bytes))
    }
}

/// Programs on two mounts and on another file system do the same, one after the other, and must find the same.
fn run_both(seed: u64, steps: usize, policy: &str) {
    let Some(mounts) = Mounts::new(&["a", "b"], &["--lease-policy", policy]) else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(seed);
    let mut programs = ["a", "b"].map(|name| Program::new(mounts.path(name)));
    // Beside the program of each mount one that does the same elsewhere.
    let mut shadows = [0, 1].map(|_| Program::new(elsewhere.path().to_path_buf()));
    let mut history = Vec::new();
    for step in 0..steps {
        let at = rng.below(2) as usize;
        let op = op(&mut rng);
        history.push((at, op.clone()));
        let errno = |done: io::Result<()>| done.err().and_then(|error| error.raw_os_error());
        let done = errno(programs[at].apply(&op));
        let expected = errno(shadows[at].apply(&op));
        let recent = &history[history.len().saturating_sub(12)..];
        assert_eq!(done, expected, "seed {seed}, step {step}: {recent:?}");
        let expected = view(elsewhere.path());
        for (program, shadow) in programs.iter().zip(&shadows) {
            let name = program.root.file_name().unwrap();
            assert_eq!(
                view(&program.root),
                expected,
                "seed {seed}, step {step} on {name:?}: {recent:?}"
            );
            let (open, expected) = (program.open_file(), shadow.open_file());
            assert!(open == expected, "seed {seed}, step {step}, open on {name:?}: {recent:?}");
        }
    }
    drop(programs);
    mounts.end();
}

#[test]
fn what_one_mount_does_another_sees_at_once() {
    run_both(1, 150, "rate");
    run_both(2, 150, "fixed");
    run_both(3, 150, "depth");
}

/// Other seeds, for as long as `varve_testkit::soak` says.
#[test]
#[ignore = "a soak"]
fn soak_of_two_mounts() {
    println!(
        "{}",
        soak(|seed| run_both(seed, 200, ["rate", "fixed", "depth", "none"][(seed % 4) as usize]))
    );
}

/// The server took the end of a file from the mount that appended, and two that appended at once overwrote each other's lines.
#[test]
fn appends_of_two_mounts_overwrite_nothing() {
    const LINES: usize = 300;
    let Some(mounts) = Mounts::new(&["a", "b"], &[]) else { return };
    std::thread::scope(|scope| {
        for name in ["a", "b"] {
            let path = mounts.path(name).join("log");
            scope.spawn(move || {
                for line in 0..LINES {
                    let mut file =
                        OpenOptions::new().append(true).create(true).open(&path).unwrap();
                    file.write_all(format!("{name} {line}\n").as_bytes()).unwrap();
                }
            });
        }
    });
    for at in ["a", "b"] {
        let found = fs::read_to_string(mounts.path(at).join("log")).unwrap();
        for name in ["a", "b"] {
            let lines = found.lines().filter(|line| line.starts_with(name));
            assert!(lines.eq((0..LINES).map(|line| format!("{name} {line}"))), "{at}: {found}");
        }
        assert_eq!(found.lines().count(), 2 * LINES);
    }
    mounts.end();
}

/// Programs wait while the server is away, and go on with their open files when it is back.
#[test]
fn programs_go_on_when_the_server_is_back() {
    let Some(mut mounts) = Mounts::new(&["a", "b"], &[]) else { return };
    let (a, b) = (mounts.path("a"), mounts.path("b"));
    let mut file = File::create(a.join("log")).unwrap();
    file.write_all(b"one ").unwrap();
    mounts.restart(&[]);
    file.write_all(b"two ").unwrap();
    fs::create_dir(b.join("dir")).unwrap();
    mounts.restart(&[]);
    fs::rename(b.join("log"), b.join("dir/log")).unwrap();
    file.write_all(b"three").unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(fs::read(b.join("dir/log")).unwrap(), b"one two three");
    assert_eq!(fs::read(a.join("dir/log")).unwrap(), b"one two three");
    mounts.end();
}

/// A mount that was told to end waited for ever, with the programs that used it, for a server that had gone too.
#[test]
fn a_mount_that_is_told_to_end_does_not_wait_for_a_server_that_is_away() {
    let Some(mut mounts) = Mounts::new(&["a"], &[]) else { return };
    let path = mounts.path("a");
    let daemon = daemon_of(&path);
    mounts.server.take().unwrap().kill();
    let program = {
        let path = path.clone();
        std::thread::spawn(move || fs::create_dir(path.join("dir")))
    };
    // It waits, or has not begun: the end is the same.
    std::thread::sleep(Duration::from_millis(200));
    assert!(!program.is_finished());
    rustix::process::kill_process(daemon, rustix::process::Signal::TERM).unwrap();
    eventually("the program has an error", || program.is_finished());
    let error = program.join().unwrap().unwrap_err();
    // The connection of the mount was ended.
    assert_eq!(error.raw_os_error(), Some(103), "{error}");
    eventually("the mount is gone", || !is_mounted_below(mounts.dir.path()));
    eventually("its process has ended", || {
        !Path::new(&format!("/proc/{}", daemon.as_raw_nonzero())).exists()
    });
    mounts.names.clear();
    mounts.serve_again(&[]);
    mounts.end();
}

/// A file that is removed while a program has it open lives as long as that, over deaths of the server.
#[test]
fn a_removed_file_outlives_the_server() {
    let Some(mut mounts) = Mounts::new(&["a", "b"], &[]) else { return };
    let (a, b) = (mounts.path("a"), mounts.path("b"));
    for size in [1000, 300_000] {
        let make = |path: PathBuf| {
            File::options().read(true).write(true).create_new(true).open(path).unwrap()
        };
        let (mine, others) = (make(a.join("mine")), make(a.join("others")));
        for file in [&mine, &others] {
            file.write_all_at(&vec![1; size], 0).unwrap();
        }
        fs::remove_file(a.join("mine")).unwrap();
        fs::remove_file(b.join("others")).unwrap();
        for byte in 2..4 {
            mounts.restart(&[]);
            for file in [&mine, &others] {
                let mut bytes = vec![0; size + 10];
                let read = file.read_at(&mut bytes, 0).unwrap();
                assert!(bytes[..read] == vec![byte - 1; size], "{size}, {byte}: {read}");
                file.write_all_at(&vec![byte; size], 0).unwrap();
                file.sync_all().unwrap();
                assert_eq!(file.metadata().unwrap().nlink(), 0);
            }
        }
        drop((mine, others));
        assert_eq!(fs::read_dir(&b).unwrap().count(), 0);
    }
    // No object is left, though no session has ended.
    let objects = mounts.store().join("objects");
    eventually("the files are gone", || {
        let found = varve_testkit::Command::new("find").arg(&objects).args(["-type", "f"]).output();
        found.unwrap().stdout.is_empty()
    });
    mounts.end();
}

/// The files of a client that is gone are closed when its session ends.
#[test]
fn a_client_that_is_killed_leaves_nothing_behind() {
    let Some(mut mounts) = Mounts::new(&["a"], &["--session", "1"]) else { return };
    mounts.mount("b");
    let (a, b) = (mounts.path("a"), mounts.path("b"));
    let file = File::create(b.join("open")).unwrap();
    file.write_all_at(&vec![1; 300_000], 0).unwrap();
    let daemon = daemon_of(&b);
    fs::remove_file(a.join("open")).unwrap();
    rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
    drop(file);
    let objects = mounts.store().join("objects");
    eventually("its file is gone", || {
        let found = varve_testkit::Command::new("find").arg(&objects).args(["-type", "f"]).output();
        found.unwrap().stdout.is_empty()
    });
    let _ = rustix::mount::unmount(&b, rustix::mount::UnmountFlags::DETACH);
    mounts.names.retain(|name| name != "b");
    mounts.end();
}

/// On a soft mount a call that has waited for `timeo` fails. When the server is there again the mount works as before.
#[test]
fn programs_on_a_soft_mount_get_errors_while_the_server_is_away() {
    const TIMEOUT: Duration = Duration::from_secs(3);
    let Some(mut mounts) = Mounts::new(&["hard"], &[]) else { return };
    mounts.mount_with("soft", "soft,timeo=3");
    let (hard, soft) = (mounts.path("hard"), mounts.path("soft"));
    let open = File::create(soft.join("open")).unwrap();
    open.write_all_at(b"before", 0).unwrap();
    let fails = |what: &str, call: &dyn Fn() -> io::Result<()>| {
        let begin = Instant::now();
        let failed = call().expect_err(what).raw_os_error();
        assert_eq!(failed, Some(rustix::io::Errno::IO.raw_os_error()), "{what}");
        let waited = begin.elapsed();
        assert!(waited >= TIMEOUT && waited < TIMEOUT * 4, "{what}: {waited:?}");
    };
    let works = |text: &str| {
        let made = soft.join(text);
        eventually("the mount works again", || fs::create_dir(&made).is_ok());
        open.write_all_at(text.as_bytes(), 0).unwrap();
        assert_eq!(fs::read(hard.join("open")).unwrap()[..text.len()], *text.as_bytes());
        assert!(hard.join(text).is_dir());
    };
    works("begin");
    for is_killed in [false, true] {
        match is_killed {
            true => mounts.server.as_mut().unwrap().kill(),
            false => mounts.signal(rustix::process::Signal::STOP),
        }
        let (text, large) = (format!("killed {is_killed}"), vec![b'x'; 1 << 20]);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| fs::write(hard.join("waits"), &text).unwrap());
            let (fails, open, soft, text, large) = (&fails, &open, &soft, &text, &large);
            // Large ones: no buffer holds them.
            let writes: Vec<_> = (0..3)
                .map(|_| scope.spawn(|| open.write_all_at(large, 0).unwrap_err().raw_os_error()))
                .collect();
            fails("a lookup", &|| fs::metadata(soft.join("absent")).map(drop));
            fails("a new file", &|| File::create(soft.join(format!("new {text}"))).map(drop));
            for write in writes {
                assert_eq!(write.join().unwrap(), Some(rustix::io::Errno::IO.raw_os_error()));
            }
            assert!(!waiting.is_finished(), "a program on a hard mount waits");
            match is_killed {
                true => mounts.serve_again(&[]),
                false => mounts.signal(rustix::process::Signal::CONT),
            }
            waiting.join().unwrap();
        });
        works(&format!("again {is_killed}"));
        assert_eq!(fs::read_to_string(soft.join("waits")).unwrap(), text);
    }
    let found = varve_testkit::Command::new("grep")
        .args(["-r", "did not answer within 3s"])
        .arg(mounts.anchors())
        .output();
    assert!(!found.unwrap().stdout.is_empty(), "the log says nothing");
    drop(open);
    mounts.end();
}
