//! Transactions begun and ended by extended attributes.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, XattrFlags, getxattr, getxattr_query, setxattr};
use rustix::io::Errno;

use super::programs::shown;
use super::views::{LARGE, checked, text};
use super::{Place, as_user, names, pattern, refused, refused_io, semantics};
use crate::harness::{run, varve, without_namespaces};
use varve_testkit::{Command, at_end, there_is};

semantics!(transaction_attributes, transaction_attributes_meanwhile, transaction_attributes_wait);

/// Begins a transaction on a directory; gives its id.
fn begin(dir: &Path, options: &str) -> rustix::io::Result<String> {
    let mut id = [0; 20];
    let len = getxattr(dir, format!("varve.txn-begin{options}"), &mut id[..])?;
    Ok(String::from_utf8(id[..len].to_vec()).unwrap())
}

/// The file of a transaction on the mount at `dir`.
fn control(dir: &Path, id: &str) -> PathBuf {
    dir.join(".varve/control").join(id)
}

fn end(dir: &Path, id: &str, how: &str) -> rustix::io::Result<()> {
    setxattr(control(dir, id), format!("varve.txn-{how}"), b"", XattrFlags::empty())
}

fn within(dir: &Path, id: &str) -> PathBuf {
    dir.join(".varve/txn").join(id)
}

fn transaction_attributes(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    shown_programs(&dir);
    asking_begins_nothing(&dir);
    files(&dir);
    options(&dir);
    refusals(&dir);
    assert_eq!(names(&dir.join(".varve/control")), Vec::<&str>::new());
    read_only(place);
    checked(place);
}

/// The programs of docs/transactions-api.md do what it says, and say what is in the way.
fn shown_programs(dir: &Path) {
    let mut lines = String::new();
    let programs = [
        ("sh", shown("Shell"), &["getfattr", "setfattr"][..]),
        ("python3", shown("Python"), &["python3"][..]),
    ];
    for (language, program, needs) in programs {
        if !needs.iter().all(|program| there_is(program)) {
            continue;
        }
        let command = |at: &Path, line: &str| {
            let mut command = Command::new(language);
            command.args(["-c", program]).args((language == "sh").then_some("sh"));
            command.arg(at).arg(line);
            command
        };
        for n in 0..3 {
            let line = format!("{language} {n}");
            run(&mut command(dir, &line));
            lines = format!("{lines}{line}\n");
            assert_eq!(fs::read_to_string(dir.join("log")).unwrap(), lines);
        }
        // What fails in between is dropped.
        fs::rename(dir.join("log"), dir.join("kept")).unwrap();
        fs::create_dir(dir.join("log")).unwrap();
        assert!(!command(dir, "x").output().unwrap().status.success());
        fs::remove_dir(dir.join("log")).unwrap();
        fs::rename(dir.join("kept"), dir.join("log")).unwrap();
        let plain = tempfile::tempdir().unwrap();
        let said = command(plain.path(), "x").output().unwrap().stderr;
        let said = String::from_utf8(said).unwrap();
        assert!(said.contains("Operation not supported"), "{said}");
    }
    assert_eq!(text(&run(varve().args(["txn", "list"]).arg(dir))), "");
}

fn asking_begins_nothing(dir: &Path) {
    assert_eq!(getxattr_query(dir, "varve.txn-begin"), Ok(20));
    refused(getxattr(dir, "varve.txn-begin", &mut [0_u8; 19]), Errno::RANGE);
    let mut listed = [0; 1000];
    let len = rustix::fs::listxattr(dir, &mut listed[..]).unwrap();
    assert!(!String::from_utf8_lossy(&listed[..len]).contains("varve"));
    assert_eq!(names(&dir.join(".varve/txn")), Vec::<&str>::new());
}

/// What lies in the directory of the files by which transactions end.
fn files(dir: &Path) {
    let controls = dir.join(".varve/control");
    refused_io(fs::metadata(control(dir, "77")), Errno::NOENT);
    let (one, two) = (begin(dir, "").unwrap(), begin(dir, "").unwrap());
    let mut both = [one.as_str(), &two];
    both.sort_unstable();
    assert_eq!(names(&controls), both);
    let facts = fs::metadata(control(dir, &one)).unwrap();
    assert!(facts.is_file() && facts.len() == 0 && facts.permissions().mode() & 0o777 == 0o666);
    assert_ne!(facts.ino(), fs::metadata(control(dir, &two)).unwrap().ino());
    for how in ["read", "write"] {
        let mut options = OpenOptions::new();
        let open = options.read(how == "read").write(how == "write").open(control(dir, &one));
        refused_io(open, Errno::PERM);
    }
    refused_io(fs::remove_file(control(dir, &one)), Errno::PERM);
    refused_io(fs::rename(control(dir, &one), dir.join("x")), Errno::PERM);
    refused_io(fs::set_permissions(control(dir, &one), facts.permissions()), Errno::PERM);
    end(dir, &one, "abort").unwrap();
    assert_eq!(names(&controls), [two.as_str()]);
    refused_io(fs::metadata(control(dir, &one)), Errno::NOENT);
    refused_io(fs::metadata(within(dir, &one)), Errno::NOENT);
    // Who has looked before it was there finds it.
    let next = (two.parse::<u64>().unwrap()..).take(200).map(|id| id.to_string());
    let missing = next.skip(1).filter(|id| fs::metadata(control(dir, id)).is_err()).count();
    assert_eq!(missing, 199);
    let third = begin(dir, "").unwrap();
    assert!(third.parse::<u64>().unwrap() < two.parse::<u64>().unwrap() + 200);
    for id in [two, third] {
        fs::metadata(control(dir, &id)).unwrap();
        run(varve().args(["txn", "commit"]).arg(dir).arg(&id));
        refused_io(fs::metadata(control(dir, &id)), Errno::NOENT);
    }
}

fn options(dir: &Path) {
    let all = ",isolation=serializable,on-conflict=fail,lock-timeout=2,priority=3,idle-abort=2h";
    let begun = begin(dir, all).unwrap();
    let status = text(&run(varve().args(["txn", "status", "--json"]).arg(dir).arg(&begun)));
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(
        (&status["isolation"], &status["idle_abort_s"]),
        (&"serializable".into(), &7200.into())
    );
    let other = begin(dir, ",isolation=serializable").unwrap();
    fs::write(within(dir, &other).join("held"), "by the other").unwrap();
    refused_io(fs::write(within(dir, &begun).join("held"), "x"), Errno::BUSY);
    end(dir, &begun, "abort").unwrap();
    end(dir, &other, "commit").unwrap();
    assert_eq!(fs::read(dir.join("held")).unwrap(), b"by the other");
    for wrong in [",,", ",isolation=none", ",idle-abort=2", ",colour=red", ",priority=1,"] {
        refused(begin(dir, wrong), Errno::INVAL);
    }
    refused(begin(dir, "ning"), Errno::NODATA);
}

/// What is refused, and by which errno.
fn refusals(dir: &Path) {
    let top = dir.join("top");
    fs::create_dir(&top).unwrap();
    fs::write(top.join("log"), "first\n").unwrap();
    // Limits, at the moment of the commit.
    run(varve().args(["quota", "set", "--bytes", "12"]).arg(&top));
    let id = begin(&top, "").unwrap();
    assert_eq!(names(&within(dir, &id)), ["log"]);
    fs::write(within(dir, &id).join("more"), "six...").unwrap();
    fs::write(top.join("other"), "x").unwrap();
    refused(end(dir, &id, "commit"), Errno::DQUOT);
    fs::remove_file(top.join("other")).unwrap();
    end(dir, &id, "commit").unwrap();
    assert_eq!(names(&top), ["log", "more"]);
    refused(end(dir, &id, "commit"), Errno::NOENT);
    refused(end(dir, &id, "abort"), Errno::NOENT);
    // Others, one of them with the file by which it ends still open.
    let [one, two] = [0; 2].map(|_| begin(&top, "").unwrap());
    for id in [&one, &two] {
        fs::write(within(dir, id).join("log"), &id[id.len() - 1..]).unwrap();
    }
    let kept = rustix::fs::open(control(dir, &one), OFlags::PATH, Mode::empty()).unwrap();
    let kept_path = PathBuf::from(format!("/proc/self/fd/{}", kept.as_raw_fd()));
    end(dir, &one, "commit").unwrap();
    let again = setxattr(&kept_path, "varve.txn-commit", b"", XattrFlags::empty());
    refused(again, Errno::STALE);
    refused(end(dir, &two, "commit"), Errno::BUSY);
    end(dir, &two, "abort").unwrap();
    fs::write(dir.join("large"), pattern(1, LARGE)).unwrap();
    varve_testkit::eventually("it is closed and committed", || {
        let id = begin(dir, "").unwrap();
        let file = within(dir, &id).join("large");
        let writer = OpenOptions::new().write(true).open(file).unwrap();
        writer.write_all_at(b"in the transaction", 0).unwrap();
        refused(end(dir, &id, "commit"), Errno::TXTBSY);
        drop(writer);
        let mut committed = Ok(());
        varve_testkit::eventually("it is closed there", || {
            committed = end(dir, &id, "commit");
            committed != Err(Errno::TXTBSY)
        });
        if committed.is_err() {
            // The kernel tells of the close after the write above when it likes; if that is after the begin, both have changed the file.
            refused(committed, Errno::BUSY);
            end(dir, &id, "abort").unwrap();
        }
        committed.is_ok()
    });
    assert_eq!(fs::read(dir.join("large")).unwrap()[..18], *b"in the transaction");
    gave_way(dir);
    misplaced(dir);
}

/// The commit of a transaction that gave way says so, as its calls do.
fn gave_way(dir: &Path) {
    let holds = begin(dir, ",isolation=serializable").unwrap();
    let gives = begin(dir, ",isolation=serializable,on-conflict=restart").unwrap();
    fs::write(within(dir, &holds).join("gives"), "by the first").unwrap();
    refused_io(fs::write(within(dir, &gives).join("gives"), "x"), Errno::DEADLK);
    refused(end(dir, &gives, "commit"), Errno::DEADLK);
    end(dir, &gives, "abort").unwrap();
    end(dir, &holds, "commit").unwrap();
}

/// On other files, by other users, in views, with a value.
fn misplaced(dir: &Path) {
    // There unless no program could be tried.
    fs::OpenOptions::new().append(true).create(true).open(dir.join("log")).unwrap();
    let id = begin(dir, "").unwrap();
    let set =
        |path: &Path, value: &[u8]| setxattr(path, "varve.txn-commit", value, XattrFlags::empty());
    let view = within(dir, &id);
    fs::write(view.join("log"), "in the transaction").unwrap();
    for other in [dir, &dir.join("log"), &dir.join(".varve"), &dir.join(".varve/control"), &view] {
        refused(set(other, b""), Errno::OPNOTSUPP);
    }
    refused(set(&control(dir, &id), b"1"), Errno::INVAL);
    refused(begin(&view, ""), Errno::OPNOTSUPP);
    refused(begin(&dir.join(".varve"), ""), Errno::OPNOTSUPP);
    refused(begin(&dir.join("log"), ""), Errno::NOTDIR);
    let removed = rustix::fs::removexattr(control(dir, &id), "varve.txn-commit");
    refused(removed, Errno::OPNOTSUPP);
    fs::set_permissions(dir.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    as_user(1000, &[1000], || {
        refused(begin(dir, ""), Errno::PERM);
        refused(getxattr_query(dir, "varve.txn-begin"), Errno::PERM);
        refused(set(&control(dir, &id), b""), Errno::PERM);
        refused(end(dir, &id, "abort"), Errno::PERM);
    });
    end(dir, &id, "abort").unwrap();
    assert_ne!(fs::read(dir.join("log")).unwrap(), b"in the transaction");
}

fn read_only(place: &Place) {
    let Place::Mount(mount) = place else { return };
    let _apart = without_namespaces();
    let (dir, id) = (place.dir(), begin(&place.dir(), "").unwrap());
    // Another process of the same program knows it as well.
    mount.try_upgrade();
    let inside = within(&dir, &id);
    fs::write(inside.join("log"), "after the upgrade").unwrap();
    mount.unmount();
    mount.mount_with("ro");
    refused(begin(&dir, ""), Errno::ROFS);
    refused(end(&dir, &id, "commit"), Errno::ROFS);
    place.remount();
    end(&dir, &id, "commit").unwrap();
    assert_eq!(fs::read(dir.join("log")).unwrap(), b"after the upgrade");
}

/// Commits that wait for what one transaction has locked, more than there are threads for what a mount is asked.
const WAITERS: usize = 40;
/// So many of them wait, at most.
const WAITS_MAX: usize = 16;

/// Commits that waited for what a transaction had locked kept that one from ending.
fn transaction_attributes_wait(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    let file = |at: usize| format!("file{at}");
    (0..WAITERS).for_each(|at| fs::write(dir.join(file(at)), "before").unwrap());
    let waiter = |at: usize| {
        let id = begin(&dir, "").unwrap();
        fs::write(within(&dir, &id).join(file(at)), "after").unwrap();
        id
    };
    let waiters: Vec<String> = (0..WAITERS).map(waiter).collect();
    let locks = begin(&dir, ",isolation=serializable").unwrap();
    for at in 0..WAITERS {
        assert_eq!(fs::read(within(&dir, &locks).join(file(at))).unwrap(), b"before");
    }
    let ended = std::thread::scope(|scope| {
        let commits = waiters.iter().map(|id| scope.spawn(|| end(&dir, id, "commit")));
        let commits: Vec<_> = commits.collect();
        std::thread::sleep(Duration::from_millis(500));
        let asked = Instant::now();
        end(&dir, &locks, "commit").unwrap();
        assert!(asked.elapsed() < Duration::from_secs(5), "it waited for those that wait for it");
        commits.into_iter().map(|commit| commit.join().unwrap()).collect::<Vec<_>>()
    });
    let committed = ended.iter().filter(|ended| ended.is_ok()).count();
    assert!(committed >= WAITS_MAX, "{ended:?}");
    for (at, (ended, id)) in ended.iter().zip(&waiters).enumerate() {
        if ended.is_err() {
            refused(*ended, Errno::INTR);
            end(&dir, id, "commit").unwrap();
        }
        assert_eq!(fs::read(dir.join(file(at))).unwrap(), b"after");
    }
}

/// Threads that commit at the same time.
const COMMITTERS: usize = 4;
/// Commits of each.
const COMMITS: usize = 25;

fn transaction_attributes_meanwhile(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    for name in ["shared/a", "shared/b", "moved"] {
        fs::create_dir_all(dir.join(name)).unwrap();
    }
    let (progress, made) = mpsc::channel();
    let at = dir.clone();
    // Apart, since threads that wait for each other within the kernel cannot be joined.
    std::thread::spawn(move || {
        let committed = commits_meanwhile(&at, &progress);
        progress.send(Some(committed))
    });
    // However slow the machine is, one of them comes on.
    let committed = loop {
        match made.recv_timeout(varve_testkit::PATIENCE) {
            Ok(Some(committed)) => break committed,
            Ok(None) => {}
            Err(_) => {
                place.kill_daemon();
                panic!("commits wait for each other, or for who looks names up");
            }
        }
    };
    assert!(committed > 0);
    assert_eq!(names(&dir.join("shared")).len(), 2 + committed);
    assert_eq!(names(&dir.join(".varve/txn")), Vec::<&str>::new());
    checked(place);
}

/// Commits changes of the same directories over and over while others look at them; gives how many went well, and tells of
/// each that was ended.
fn commits_meanwhile(dir: &Path, progress: &mpsc::Sender<Option<usize>>) -> usize {
    let (committed, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let done = at_end(|| over.store(true, Ordering::Relaxed));
        for kind in 0..4 {
            let (over, dir) = (&over, &dir);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    look(dir, kind);
                }
            });
        }
        let committers = (0..COMMITTERS).map(|thread| {
            let (committed, progress) = (&committed, progress.clone());
            scope.spawn(move || {
                for n in 0..COMMITS {
                    // Some of the whole tree, some of a part of it.
                    let shown = if n % 2 == 0 { dir.to_path_buf() } else { dir.join("shared") };
                    let id = begin(&shown, "").unwrap();
                    let view = within(dir, &id);
                    let shared = if n % 2 == 0 { view.join("shared") } else { view.clone() };
                    // Others look at every transaction that they see listed, this one also while it begins. What they had mounted
                    // then was unmounted again at its begin, and this failed (ESTALE).
                    fs::write(shared.join(format!("{thread}-{n}")), "x").unwrap();
                    // Another may have moved it too, or removed what is in it.
                    let _ = fs::rename(shared.join("a"), shared.join("c"));
                    let _ = fs::rename(shared.join("c"), shared.join("a"));
                    let _ = fs::set_permissions(&shared, fs::Permissions::from_mode(0o755));
                    match end(dir, &id, "commit") {
                        Ok(()) => drop(committed.fetch_add(1, Ordering::Relaxed)),
                        Err(Errno::BUSY) => end(dir, &id, "abort").unwrap(),
                        Err(error) => panic!("{error}"),
                    }
                    let _ = progress.send(None);
                }
            })
        });
        let committers: Vec<_> = committers.collect();
        committers.into_iter().for_each(|thread| thread.join().unwrap());
        drop(done);
    });
    committed.into_inner()
}

/// Looks names up, lists directories and changes them, as a program of its own would.
fn look(dir: &Path, kind: usize) {
    let shared = dir.join("shared");
    match kind {
        0 => {
            for n in 0..COMMITS {
                let _ = fs::metadata(shared.join(format!("{}-{n}", n % COMMITTERS)));
                let _ = fs::metadata(shared.join("a/none"));
            }
        }
        1 => {
            for id in names(&dir.join(".varve/control")) {
                let _ = fs::metadata(dir.join(".varve/control").join(&id));
                let _ = fs::metadata(dir.join(".varve/txn").join(&id));
            }
        }
        2 => {
            let (made, moved) = (shared.join("made"), dir.join("moved/made"));
            fs::create_dir(&made).unwrap();
            fs::rename(&made, &moved).unwrap();
            fs::remove_dir(&moved).unwrap();
        }
        _ => {
            let _ = names(&shared);
            File::open(dir).unwrap().sync_all().unwrap();
        }
    }
}
