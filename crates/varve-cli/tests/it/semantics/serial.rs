//! Serializable transactions: what they keep others from, who waits for whom, who gives way.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::Signal;
use varve_testkit::{Command, eventually, there_is};

use super::views::MAPPER;
use super::{Place, names, pattern, refused_io, semantics};
use crate::harness::{run, varve, with_namespaces};

semantics!(
    serializable_transactions,
    serializable_conflicts,
    serializable_interrupts,
    serializable_pairs,
    serializable_runs,
    serializable_retries,
    serializable_large_files,
    serializable_mapped_files,
    serializable_large_runs,
    serializable_git,
    serializable_crashes
);

/// Larger than any file that is kept in the store.
const LARGE: usize = 300_000;

/// A transaction that has begun.
struct Txn {
    dir: PathBuf,
    path: PathBuf,
}

impl Txn {
    fn begin(dir: &Path, options: &[&str]) -> Txn {
        let mut command = varve();
        command.args(["txn", "begin", "--isolation", "serializable"]).args(options).arg(dir);
        let said = run(&mut command).stdout;
        let path = PathBuf::from(String::from_utf8_lossy(&said).trim_end());
        Txn { dir: dir.to_path_buf(), path }
    }

    fn id(&self) -> &str {
        self.path.file_name().unwrap().to_str().unwrap()
    }

    fn end(&self, how: &str) -> Output {
        varve().args(["txn", how]).arg(&self.dir).arg(self.id()).output().unwrap()
    }

    fn commit(&self) {
        let output = self.end("commit");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn status(&self) -> serde_json::Value {
        let output = run(varve().args(["txn", "status", "--json"]).arg(&self.dir).arg(self.id()));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    thread::spawn(work)
}

fn serializable_transactions(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    fs::create_dir(dir.join("d")).unwrap();
    fs::create_dir(dir.join("e")).unwrap();
    fs::write(dir.join("d/read"), "before").unwrap();
    let txn = Txn::begin(&dir, &[]);
    fs::write(dir.join("d/later"), "made after it began").unwrap();
    assert_eq!(fs::read(txn.path.join("d/later")).unwrap(), b"made after it began");
    assert_eq!(fs::read(txn.path.join("d/read")).unwrap(), b"before");
    assert!(!txn.path.join("d/absent").exists());
    // Neither is what the directory's counts say.
    fs::write(dir.join("d/other"), "x").unwrap();
    let (read, absent) = (dir.join("d/read"), dir.join("d/absent"));
    let write = beside(move || fs::write(read, "after"));
    let make = beside(move || fs::write(absent, "made"));
    let served = |n: usize| {
        for n in 0..n {
            fs::write(dir.join("beside"), n.to_string()).unwrap();
            assert_eq!(fs::read(dir.join("beside")).unwrap(), n.to_string().into_bytes());
        }
    };
    served(100);
    assert!(!write.is_finished() && !make.is_finished(), "they wait");
    assert_eq!(fs::read(dir.join("d/other")).unwrap(), b"x");
    fs::write(txn.path.join("d/read"), "by it").unwrap();
    assert!(names(&txn.path.join("e")).is_empty());
    let listed = dir.join("e/listed");
    let list = beside(move || fs::create_dir(listed));
    served(100);
    assert!(!list.is_finished(), "who lists a directory keeps names out of it");
    let status = txn.status();
    assert_eq!(status["isolation"], "serializable");
    assert!(status["locks"].as_u64().unwrap() > 3 && status["gave_way"].is_null(), "{status}");
    txn.commit();
    write.join().unwrap().unwrap();
    make.join().unwrap().unwrap();
    list.join().unwrap().unwrap();
    assert_eq!(fs::read(dir.join("d/read")).unwrap(), b"after");
    assert_eq!(names(&dir.join("d")), ["absent", "later", "other", "read"]);
    let txn = Txn::begin(&dir, &[]);
    place.remount();
    let output = txn.end("commit");
    assert!(!output.status.success(), "a mount ends it");
}

fn serializable_conflicts(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    for name in ["a", "b"] {
        fs::write(dir.join(name), "1").unwrap();
    }
    let (one, two) = (Txn::begin(&dir, &[]), Txn::begin(&dir, &[]));
    let [a, b] = ["a", "b"].map(|name| (one.path.join(name), two.path.join(name)));
    fs::read(&a.0).unwrap();
    fs::read(&b.1).unwrap();
    let to = b.0.clone();
    let waits = beside(move || fs::write(to, "2"));
    eventually("it waits", || one.status()["waits_for"] == serde_json::json!([two.id()]));
    refused_io(fs::write(&a.1, "3"), Errno::DEADLK);
    waits.join().unwrap().unwrap();
    refused_io(fs::read(&b.1).map(drop), Errno::DEADLK);
    let output = two.end("commit");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.contains(&format!("it and transaction {} waited", one.id())), "{said}");
    assert!(two.end("abort").status.success());
    one.commit();
    assert_eq!([fs::read(dir.join("a")).unwrap(), fs::read(dir.join("b")).unwrap()], [b"1", b"2"]);
    let (first, hasty) = (Txn::begin(&dir, &[]), Txn::begin(&dir, &["--on-conflict", "fail"]));
    let brief = Txn::begin(&dir, &["--lock-timeout", "0.1"]);
    let restarts = Txn::begin(&dir, &["--on-conflict", "restart", "--priority", "9"]);
    fs::write(first.path.join("a"), "4").unwrap();
    refused_io(fs::read(hasty.path.join("a")).map(drop), Errno::BUSY);
    refused_io(fs::read(brief.path.join("a")).map(drop), Errno::BUSY);
    refused_io(fs::read(restarts.path.join("a")).map(drop), Errno::DEADLK);
    assert_eq!(fs::read(hasty.path.join("b")).unwrap(), b"2");
    first.commit();
    assert_eq!(fs::read(hasty.path.join("a")).unwrap(), b"4");
    for txn in [hasty, brief, restarts] {
        assert!(txn.end("abort").status.success());
    }
}

/// Opens a file, and says how that ended and how many alarms came meanwhile.
const OPENS: &str = r#"
import ctypes, errno, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
alarms = []
signal.signal(signal.SIGALRM, lambda *_: alarms.append(1))
signal.signal(signal.SIGINT, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
opened = libc.open(sys.argv[1].encode(), os.O_RDONLY)
print("opened" if opened >= 0 else errno.errorcode[ctypes.get_errno()], len(alarms) > 0)
"#;

/// Programs that waited for locks could not be killed, as long as the transaction let them wait.
fn serializable_interrupts(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    let (first, second) = (Txn::begin(&dir, &[]), Txn::begin(&dir, &["--lock-timeout", "3600"]));
    let [made, waited_for] = [&first, &second].map(|txn| txn.path.join("made"));
    fs::write(made, "x").unwrap();
    let waits_for = |of: &[&str]| second.status()["waits_for"] == serde_json::json!(of);
    let waiting = |mut program: Command| {
        let program = program.arg(&waited_for).stdout(Stdio::piped()).spawn().unwrap();
        eventually("it waits", || waits_for(&[first.id()]));
        program
    };
    let kill = |program: &Child, signal| {
        let process = rustix::process::Pid::from_child(program);
        rustix::process::kill_process(process, signal).unwrap();
    };
    for signal in [Signal::INT, Signal::KILL] {
        let mut program = waiting(Command::new("cat"));
        kill(&program, signal);
        eventually("it has ended", || program.try_wait().unwrap().is_some());
        eventually("nobody waits", || waits_for(&[]));
    }
    if there_is("python3") {
        let opens = || {
            let mut python = Command::new("python3");
            python.args(["-c", OPENS]);
            waiting(python)
        };
        let said =
            |program: Child| String::from_utf8(program.wait_with_output().unwrap().stdout).unwrap();
        let interrupted = opens();
        kill(&interrupted, Signal::INT);
        assert!(said(interrupted).starts_with("EINTR"));
        let goes_on = opens();
        #[allow(clippy::disallowed_methods, reason = "alarms come meanwhile")]
        thread::sleep(Duration::from_millis(300));
        first.commit();
        assert_eq!(said(goes_on), "opened True\n");
    }
}

/// Requests about pairs wait as calls about files do.
fn serializable_pairs(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    let kv = {
        let dir = dir.clone();
        move |arguments: &[&str]| {
            let (action, rest) = arguments.split_first().unwrap();
            varve().args(["kv", action]).arg(&dir).args(rest).output().unwrap()
        }
    };
    let said = |output: &Output| {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    said(&kv(&["create", "tags"]));
    said(&kv(&["put", "tags", "k", "before"]));
    let (one, two) = (Txn::begin(&dir, &[]), Txn::begin(&dir, &[]));
    assert_eq!(said(&kv(&["get", "tags", "k", "--txn", one.id()])), "before");
    let put = kv.clone();
    let write = beside(move || put(&["put", "tags", "k", "after"]));
    let (put, id) = (kv.clone(), two.id().to_owned());
    let within = beside(move || put(&["put", "tags", "k", "by the second", "--txn", &id]));
    eventually("it waits", || two.status()["waits_for"] == serde_json::json!([one.id()]));
    for n in 0..20 {
        said(&kv(&["put", "tags", "beside", &n.to_string()]));
    }
    assert!(!write.is_finished() && !within.is_finished());
    assert_eq!(said(&kv(&["get", "tags", "k"])), "before", "readers do not wait");
    let brief = Txn::begin(&dir, &["--lock-timeout", "0.1"]);
    let refused = kv(&["put", "tags", "k", "x", "--txn", brief.id()]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("has locked it\nhint: "), "{told}");
    assert!(brief.end("abort").status.success());
    one.commit();
    said(&within.join().unwrap());
    two.commit();
    said(&write.join().unwrap());
    let last = said(&kv(&["get", "tags", "k"]));
    assert!(["after", "by the second"].contains(&last.as_str()), "{last}");
}

/// Runs two programs at once, each of which adds up two files and puts the sum into one of them.
fn sums(place: &Place, isolation: &str) -> [String; 2] {
    let (dir, ready) = (place.dir(), tempfile::tempdir().unwrap());
    fs::write(dir.join("a"), "1").unwrap();
    fs::write(dir.join("b"), "2").unwrap();
    let started = ["a", "b"].map(|to| {
        let ready = ready.path().display();
        let script = format!(
            "s=$(($(cat a) + $(cat b))); touch {ready}/{to}; \
             until [ -e {ready}/a ] && [ -e {ready}/b ]; do sleep 0.01; done; echo $s > {to}"
        );
        let mut command = varve();
        command.args(["txn", "run", "--retry", "9", "--isolation", isolation]).arg(&dir);
        command.args(["--", "sh", "-c", &script]).current_dir(&dir);
        beside(move || run(&mut command))
    });
    started.into_iter().for_each(|program| drop(program.join().unwrap()));
    ["a", "b"].map(|name| fs::read_to_string(dir.join(name)).unwrap().trim().to_owned())
}

fn serializable_runs(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let _copied = with_namespaces();
    // One after the other, in one order or the other.
    let found = sums(place, "serializable");
    assert!(found == ["3", "5"] || found == ["4", "3"], "{found:?}");
    // The canary: both see the beginning.
    assert_eq!(sums(place, "snapshot"), ["3", "3"]);
}

/// What a program met as an errno was its own matter: it was not run again, and a transaction without locks stayed open, which kept
/// snapshots from being deleted.
fn serializable_retries(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let _copied = with_namespaces();
    let (dir, beside) = (place.dir(), place.dir().parent().unwrap().to_path_buf());
    fs::write(dir.join("a"), "1").unwrap();
    let listed = || -> Vec<String> {
        let said = run(varve().args(["txn", "list"]).arg(&dir)).stdout;
        let said = String::from_utf8_lossy(&said).into_owned();
        said.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    };
    let runs = |options: &[&str], script: &str| {
        let mut command = varve();
        command.args(["txn", "run", "--isolation", "serializable"]).args(options).arg(&dir);
        command.args(["--", "sh", "-c", script]).current_dir(&dir);
        command.output().unwrap()
    };
    let holder = Txn::begin(&dir, &[]);
    fs::write(holder.path.join("a"), "2").unwrap();
    for (options, script, why) in [
        (&["--lock-timeout", "0.1"], "cat a", "a call of it had failed"),
        (&["--on-conflict", "fail"], "cat a", "a call of it had failed"),
        (&["--on-conflict", "restart"], "cat a", "its transaction gave way"),
        (&["--on-conflict", "restart"], "cat a; true", "as it gave way"),
    ] {
        let output = runs(options, script);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(5), "{options:?}, {script}: {said}");
        assert!(said.contains(why) && said.contains("--retry"), "{options:?}, {script}: {said}");
        assert_eq!(listed(), [holder.id()], "{options:?}, {script}");
    }
    let output = runs(&["--lock-timeout", "0.1"], "exit 7");
    assert_eq!(output.status.code(), Some(7), "it met nobody");
    for how in ["--lock-timeout=0.1", "--on-conflict=fail", "--on-conflict=restart"] {
        let holder = Txn::begin(&dir, &[]);
        fs::write(holder.path.join("b"), how).unwrap();
        let ran = beside.join("ran");
        let script = format!("echo x >> {}; cat b", ran.display());
        let commit = beside_when(ran.clone(), move || holder.commit());
        let output = runs(&["--retry", "1000000", how], &script);
        commit.join().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{how}: {said}");
        assert_eq!(String::from_utf8_lossy(&output.stdout).lines().last(), Some(how));
        fs::remove_file(ran).unwrap();
    }
    run(varve().args(["snapshot", "create"]).arg(&dir).arg("kept"));
    let lost = Txn::begin(&dir, &["--on-conflict", "restart"]);
    refused_io(fs::read(lost.path.join("a")).map(drop), Errno::DEADLK);
    run(varve().args(["snapshot", "delete"]).arg(&dir).arg("kept"));
    assert!(lost.end("abort").status.success());
    holder.commit();
}

/// Does `work` beside, once there is `path`.
fn beside_when(path: PathBuf, work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    beside(move || {
        eventually("it is there", || path.exists());
        work();
    })
}

fn serializable_large_files(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    fs::write(dir.join("large"), pattern(1, LARGE)).unwrap();
    let txn = Txn::begin(&dir, &[]);
    let writer = OpenOptions::new().write(true).open(dir.join("large")).unwrap();
    refused_io(fs::read(txn.path.join("large")).map(drop), Errno::BUSY);
    refused_io(fs::rename(txn.path.join("large"), txn.path.join("moved")), Errno::BUSY);
    refused_io(fs::remove_file(txn.path.join("large")), Errno::BUSY);
    drop(writer);
    eventually("the main view has let go of it", || fs::read(txn.path.join("large")).is_ok());
    assert_eq!(fs::read(txn.path.join("large")).unwrap(), pattern(1, LARGE));
    let path = dir.join("large");
    let waits = beside(move || fs::write(path, pattern(3, LARGE)));
    // An open that is about to meet the locks counts as a writer for a moment.
    let write = || fs::write(txn.path.join("large"), pattern(2, LARGE));
    eventually("the open outside waits", || write().is_ok());
    assert_eq!(fs::read(dir.join("large")).unwrap(), pattern(1, LARGE));
    assert!(!waits.is_finished());
    txn.commit();
    waits.join().unwrap().unwrap();
    assert_eq!(fs::read(dir.join("large")).unwrap(), pattern(3, LARGE));
    sizes_of_what_was_written_elsewhere(&dir);
}

/// A program had mapped a large file and closed it: a transaction read the bytes, and committed after they had changed.
fn serializable_mapped_files(place: &Place) {
    if !place.is_varve() || !there_is("python3") {
        return;
    }
    let (dir, before) = (place.dir(), pattern(1, LARGE));
    fs::write(dir.join("mapped"), &before).unwrap();
    let mut mapper = Command::new("python3")
        .args(["-c", MAPPER])
        .current_dir(&dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut order = mapper.stdin.take().unwrap();
    let mut said = BufReader::new(mapper.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(said.next().unwrap(), "closed");
    let txn = Txn::begin(&dir, &[]);
    // Somebody else may read it meanwhile, which is no writer.
    let reader = fs::File::open(dir.join("mapped")).unwrap();
    refused_io(fs::read(txn.path.join("mapped")).map(drop), Errno::BUSY);
    let cut = OpenOptions::new().write(true).open(txn.path.join("mapped"));
    refused_io(cut.map(drop), Errno::BUSY);
    assert_eq!(fs::metadata(txn.path.join("mapped")).unwrap().len(), LARGE as u64);
    order.write_all(b"\n").unwrap();
    assert_eq!(said.next().unwrap(), "changed");
    refused_io(fs::read(txn.path.join("mapped")).map(drop), Errno::BUSY);
    drop(order);
    assert!(mapper.wait().unwrap().success());
    let mut after = before;
    after[1000..1008].copy_from_slice(b"in place");
    eventually("the mapping is gone", || fs::read(txn.path.join("mapped")).is_ok());
    assert!(fs::read(txn.path.join("mapped")).unwrap() == after);
    drop(reader);
    fs::write(txn.path.join("mapped"), &after[1000..]).unwrap();
    txn.commit();
    assert!(fs::read(dir.join("mapped")).unwrap() == after[1000..]);
}

/// Runs so many programs at once, each of which runs `script` so many times in transactions of its own.
fn loops(dir: &Path, (programs, times): (usize, usize), script: fn(usize, usize) -> String) {
    let started: Vec<_> = (0..programs)
        .map(|program| {
            let dir = dir.to_path_buf();
            beside(move || {
                for time in 0..times {
                    let mut command = varve();
                    command.args(["txn", "run", "--retry", "1000", "--isolation", "serializable"]);
                    command.arg(&dir).args(["--", "sh", "-ec", &script(program, time)]);
                    run(command.current_dir(&dir));
                }
            })
        })
        .collect();
    started.into_iter().for_each(|program| program.join().unwrap());
}

/// Counters and amounts in large files lost what others had added.
fn serializable_large_runs(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let _copied = with_namespaces();
    let dir = place.dir();
    let counters = ["inplace", "replaced", "mapped", "from", "to"];
    for name in counters {
        fs::write(dir.join(name), [&b"00001000"[..], &pattern(1, LARGE)].concat()).unwrap();
    }
    fs::write(dir.join("appended"), pattern(1, LARGE)).unwrap();
    loops(&dir, (4, 4), |program, time| {
        let mapped = "import mmap; f = open('mapped', 'r+b'); m = mmap.mmap(f.fileno(), 0); \
                      m[:8] = b'%08d' % (int(m[:8]) + 1); m.flush(); m.close(); f.close()";
        let mapped = if there_is("python3") {
            format!("python3 -c \"{mapped}\"")
        } else {
            "add mapped 1".to_owned()
        };
        format!(
            "sum() {{ expr $(head -c 8 $1) + $2; }}; \
             add() {{ n=$(sum $1 $2); printf %08d $n | dd of=$1 conv=notrunc status=none; }}; \
             add inplace 1; \
             n=$(sum replaced 1); {{ printf %08d $n; tail -c +9 replaced; }} > new; mv new replaced; \
             {mapped}; \
             add from -{program}; add to {program}; \
             echo {program}.{time} >> appended"
        )
    });
    let value = |name: &str| {
        let bytes = fs::read(dir.join(name)).unwrap();
        assert!(bytes[8..] == pattern(1, LARGE), "{name}");
        String::from_utf8_lossy(&bytes[..8]).parse::<u64>().unwrap()
    };
    // 4 times 0 + 1 + 2 + 3.
    assert_eq!(counters.map(value), [1016, 1016, 1016, 976, 1024]);
    let appended = fs::read(dir.join("appended")).unwrap();
    let lines = String::from_utf8_lossy(&appended[LARGE..]).into_owned();
    let mut lines: Vec<&str> = lines.lines().collect();
    lines.sort_unstable();
    let all = (0..4).flat_map(|program| (0..4).map(move |time| format!("{program}.{time}")));
    assert_eq!(lines, all.collect::<Vec<_>>());
}

/// Commits to a repository with a large index that met each other got lost.
fn serializable_git(place: &Place) {
    if !place.is_varve() || !there_is("git") {
        return;
    }
    let _copied = with_namespaces();
    let repository = place.dir().join("repository");
    fs::create_dir(&repository).unwrap();
    for n in 0..1500 {
        fs::write(repository.join(format!("file{n}")), n.to_string()).unwrap();
    }
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        let output = run(git.arg("-C").arg(&repository).args(arguments));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    git(&["init", "-q"]);
    for (key, value) in [("user.name", "v"), ("user.email", "v@example.com"), ("gc.auto", "0")] {
        git(&["config", key, value]);
    }
    git(&["add", "."]);
    git(&["commit", "-qm", "all"]);
    assert!(fs::metadata(repository.join(".git/index")).unwrap().len() > 70_000);
    loops(&place.dir(), (4, 3), |program, time| {
        let made = format!("made{program}.{time}");
        format!("cd repository; echo {made} > {made}; git add {made}; git commit -qm {made}")
    });
    assert_eq!(git(&["rev-list", "--count", "HEAD"]).trim(), "13");
    assert_eq!(git(&["status", "--porcelain"]), "");
    git(&["fsck", "--strict"]);
    assert_eq!(git(&["ls-files", "made*"]).lines().count(), 12);
}

/// A transaction kept for ever the size that it had seen of a large file while that was being written in the main view: what was
/// appended after that was not read, and written over.
fn sizes_of_what_was_written_elsewhere(dir: &Path) {
    let (path, mut wanted) = (dir.join("grows"), pattern(4, LARGE));
    fs::write(&path, &wanted).unwrap();
    let append = |path: &Path| OpenOptions::new().append(true).open(path);
    for round in 0..2u64 {
        let txn = Txn::begin(dir, &[]);
        let within = txn.path.join("grows");
        let mut writer = append(&path).unwrap();
        assert_eq!(fs::metadata(&within).unwrap().len(), wanted.len() as u64);
        assert!(names(&txn.path).contains(&"grows".into()));
        writer.write_all(&pattern(5, 4096)).unwrap();
        wanted.extend_from_slice(&pattern(5, 4096));
        drop(writer);
        if round == 0 {
            let mut found = None;
            eventually("the main view has let go of it", || {
                found = fs::read(&within).ok();
                found.is_some()
            });
            assert!(found.unwrap() == wanted);
        } else {
            let mut found = None;
            eventually("the main view has let go of it", || {
                found = append(&within).ok();
                found.is_some()
            });
            found.unwrap().write_all(b"by it").unwrap();
            wanted.extend_from_slice(b"by it");
        }
        txn.commit();
        assert!(fs::read(&path).unwrap() == wanted);
    }
}

/// The daemon is killed at some moment of a commit: all of it is there afterwards, or nothing.
fn serializable_crashes(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    for round in 0..6u64 {
        let before = names(&dir);
        let txn = Txn::begin(&dir, &[]);
        let made = format!("made{round}");
        fs::create_dir(txn.path.join(&made)).unwrap();
        for n in 0..300 {
            fs::write(txn.path.join(&made).join(n.to_string()), pattern(n, 600)).unwrap();
        }
        fs::write(txn.path.join(format!("large{round}")), pattern(round, LARGE)).unwrap();
        let commit = beside(move || txn.end("commit"));
        #[allow(clippy::disallowed_methods, reason = "the moment is what differs")]
        thread::sleep(Duration::from_millis(4 * round));
        place.kill_daemon();
        let ended = commit.join().unwrap();
        let (acknowledged, said) = (ended.status.success(), String::from_utf8_lossy(&ended.stderr));
        let is_cut_off = said.contains("does not answer");
        assert!(!is_cut_off || said.contains("as a whole or not at all"), "{said}");
        place.mount_again();
        let after = names(&dir);
        assert!(after != before || !acknowledged, "what was acknowledged is there");
        if after != before {
            assert_eq!(after.len(), before.len() + 2);
            assert_eq!(names(&dir.join(&made)).len(), 300);
            let large = fs::read(dir.join(format!("large{round}"))).unwrap();
            assert_eq!(large, pattern(round, LARGE));
        }
        let listed = run(varve().args(["txn", "list"]).arg(&dir)).stdout;
        assert_eq!(listed, b"", "a crash ends it");
    }
}
