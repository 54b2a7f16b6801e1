//! Transactions begun and ended by programs on the mount, and those that nobody uses.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::io::Errno;

use super::views::{LARGE, begin, checked, commit, fails, id, text};
use super::{Place, names, pattern, refused_io, semantics};
use crate::harness::{run, varve, without_namespaces};
use varve_testkit::{Command, there_is};

semantics!(transaction_idle, transaction_ioctls, transaction_maps);

const BEGIN: u32 = 0x8010_5601;
const COMMIT: u32 = 0x4010_5602;
const ABORT: u32 = 0x4010_5603;

/// Does an ioctl about a transaction, by a program at `transact`, as the user `uid`.
fn transact_as(uid: u32, transact: &Path, dir: &File, command: u32, id: u64) -> Result<u64, Errno> {
    let mut command = {
        let mut run = Command::new(transact);
        run.args([command.to_string(), id.to_string()]);
        run
    };
    let output = command.uid(uid).gid(uid).stdin(dir.try_clone().unwrap()).output().unwrap();
    let told = text(&output).parse().unwrap();
    if output.status.success() { Ok(told) } else { Err(Errno::from_raw_os_error(told as i32)) }
}

fn transaction_idle(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let _apart = without_namespaces();
    let dir = place.dir();
    let begin_for = |time: &str| {
        PathBuf::from(text(&run(varve().args(["txn", "begin", "--idle-abort", time]).arg(&dir))))
    };
    for wrong in ["0s", "5", "h", "1y", "99999999999999999999d"] {
        let output = varve().args(["txn", "begin", "--idle-abort", wrong]).arg(&dir).output();
        assert_eq!(output.unwrap().status.code(), Some(2), "{wrong}");
    }
    let listed = |id: &str| -> Option<serde_json::Value> {
        let output = run(varve().args(["txn", "list", "--json"]).arg(&dir));
        let all: Vec<serde_json::Value> = serde_json::from_str(&text(&output)).unwrap();
        all.into_iter().find(|txn| txn["id"] == id)
    };
    let change = |view: PathBuf| {
        fs::write(view.join("file"), "x").unwrap();
        view
    };
    let (kept, patient) = (change(begin(&dir)), change(begin_for("1h")));
    let used = change(begin_for("5s"));
    let inside = File::open(&used).unwrap();
    let left = change(begin_for("5s"));
    assert_eq!(listed(id(&used)).unwrap()["in_use"], true);
    assert_eq!(listed(id(&left)).unwrap()["in_use"], false);
    varve_testkit::eventually("the one that nobody uses is aborted", || {
        listed(id(&left)).is_none()
    });
    refused_io(fs::metadata(&left), Errno::NOENT);
    let said = fails(&["txn", "commit"], &dir, &[id(&left)]);
    assert!(said.contains("was aborted, as no program had used it for 5 s"), "{said}");
    assert_eq!(fs::read(used.join("file")).unwrap(), b"x");
    drop(inside);
    assert!(listed(id(&kept)).is_some() && listed(id(&used)).is_some());
    let status = text(&run(varve().args(["txn", "status"]).arg(&dir).arg(id(&patient))));
    assert!(status.contains("after 3600 s without use"), "{status}");
    place.remount();
    assert_eq!(listed(id(&patient)).unwrap()["idle_abort_s"], 3600);
    varve_testkit::eventually("it is aborted after a remount", || listed(id(&used)).is_none());
    commit(place, &patient);
    run(varve().args(["txn", "abort"]).arg(&dir).arg(id(&kept)));
    assert_eq!(names(&dir), ["file"]);
}

/// Compiles a program.
fn compiled(source: &str, dir: &Path, name: &str) -> PathBuf {
    let (file, program) = (dir.join(format!("{name}.c")), dir.join(name));
    fs::write(&file, source).unwrap();
    run(Command::new("cc").args(["-Wall", "-Werror", "-o"]).args([&program, &file]));
    program
}

/// The program that docs/transactions-api.md shows below a heading.
pub(super) fn shown(heading: &str) -> &'static str {
    let page = include_str!("../../../../../docs/transactions-api.md");
    let (_, begin) = page.split_once(&format!("\n## {heading}\n\n```")).unwrap();
    let (_, program) = begin.split_once('\n').unwrap();
    program.split_once("```").unwrap().0
}

fn transaction_ioctls(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let beside = place.dir().parent().unwrap().join("beside");
    fs::create_dir(&beside).unwrap();
    shown_programs(&place.dir(), &beside);
    let helper = compiled(include_str!("transact.c"), &beside, "transact");
    refusals(&place.dir(), &helper);
    checked(place);
}

/// The programs of docs/transactions-api.md do what it says, and say what is in the way.
fn shown_programs(dir: &Path, beside: &Path) {
    let in_c = compiled(shown("C, by ioctl"), beside, "in_c");
    let mut lines = String::new();
    for language in ["c", "python"] {
        if language == "python" && !there_is("python3") {
            continue;
        }
        for n in 0..3 {
            let line = format!("{language} {n}");
            let mut command = match language {
                "c" => Command::new(&in_c),
                _ => Command::new("python3"),
            };
            if language == "python" {
                command.args(["-c", shown("Python, by ioctl")]);
            }
            run(command.arg(dir).arg(&line));
            lines = format!("{lines}{line}\n");
            assert_eq!(fs::read_to_string(dir.join("log")).unwrap(), lines);
        }
    }
    assert_eq!(text(&run(varve().args(["txn", "list"]).arg(dir))), "");
    // In a view, by another user, and on another file system.
    let view = begin(dir);
    let fails = |at: &Path| {
        let output = Command::new(&in_c).arg(at).arg("line").output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(fails(&view), "begin: Operation not supported\n");
    assert_eq!(fails(beside), "begin: Inappropriate ioctl for device\n");
    run(varve().args(["txn", "abort"]).arg(dir).arg(id(&view)));
}

/// What is refused, and by which errno.
fn refusals(dir: &Path, helper: &Path) {
    let transact = |dir: &File, command, id| transact_as(0, helper, dir, command, id);
    // Limits, at the moment of the commit.
    fs::create_dir(dir.join("top")).unwrap();
    fs::write(dir.join("top/log"), "first\n").unwrap();
    run(varve().args(["quota", "set", "--bytes", "12"]).arg(dir.join("top")));
    let open = File::open(dir.join("top")).unwrap();
    let id = transact(&open, BEGIN, 0).unwrap();
    let within = dir.join(format!(".varve/txn/{id}"));
    fs::write(within.join("more"), "seven..").unwrap_err();
    fs::write(within.join("more"), "six...").unwrap();
    fs::write(dir.join("top/other"), "x").unwrap();
    assert_eq!(transact(&open, COMMIT, id), Err(Errno::DQUOT));
    fs::remove_file(dir.join("top/other")).unwrap();
    transact(&open, COMMIT, id).unwrap();
    assert_eq!(transact(&open, COMMIT, id), Err(Errno::NOENT));
    assert_eq!(transact(&open, ABORT, id), Err(Errno::NOENT));
    assert_eq!(transact(&open, COMMIT + (1 << 16), id), Err(Errno::NOTTY));
    assert_eq!(names(&dir.join("top")), ["log", "more"]);
    let [one, two] = [0; 2].map(|_| transact(&open, BEGIN, 0).unwrap());
    for id in [one, two] {
        fs::write(dir.join(format!(".varve/txn/{id}/log")), format!("{}", id % 10)).unwrap();
    }
    transact(&open, COMMIT, one).unwrap();
    assert_eq!(transact(&open, COMMIT, two), Err(Errno::BUSY));
    transact(&open, ABORT, two).unwrap();
    fs::write(dir.join("large"), pattern(1, LARGE)).unwrap();
    let root = File::open(dir).unwrap();
    let id = transact(&root, BEGIN, 0).unwrap();
    let large = dir.join(format!(".varve/txn/{id}/large"));
    let writer = OpenOptions::new().write(true).open(large).unwrap();
    writer.write_all_at(b"in the transaction", 0).unwrap();
    assert_eq!(transact(&root, COMMIT, id), Err(Errno::TXTBSY));
    drop(writer);
    varve_testkit::eventually("it is closed", || transact(&root, COMMIT, id).is_ok());
    assert_eq!(fs::read(dir.join("large")).unwrap()[..18], *b"in the transaction");
    gave_way(dir, |command, id| transact(&root, command, id));
    at_once(dir, helper, &root);
    drop(root);
    fs::set_permissions(dir.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(transact_as(1000, helper, &open, BEGIN, 0), Err(Errno::PERM));
}

/// The commit of a transaction that gave way says so, as its calls do.
fn gave_way(dir: &Path, transact: impl Fn(u32, u64) -> Result<u64, Errno>) {
    let serializable = |options: &[&str]| {
        let mut command = varve();
        command.args(["txn", "begin", "--isolation", "serializable"]).args(options).arg(dir);
        PathBuf::from(text(&run(&mut command)))
    };
    let (holds, gives) = (serializable(&[]), serializable(&["--on-conflict", "restart"]));
    fs::write(holds.join("held"), "by the first").unwrap();
    refused_io(fs::write(gives.join("held"), "by the second"), Errno::DEADLK);
    let [holds, gives] = [holds, gives].map(|view| id(&view).parse().unwrap());
    assert_eq!(transact(COMMIT, gives), Err(Errno::DEADLK));
    transact(ABORT, gives).unwrap();
    transact(COMMIT, holds).unwrap();
    assert_eq!(fs::read(dir.join("held")).unwrap(), b"by the first");
}

/// Of several who end a transaction at once one does, and the others were told that the storage had failed.
fn at_once(dir: &Path, helper: &Path, root: &File) {
    for round in 0..4 {
        let id = transact_as(0, helper, root, BEGIN, 0).unwrap();
        let within = dir.join(format!(".varve/txn/{id}"));
        (0..20).for_each(|n| fs::write(within.join(format!("{n}")), pattern(n, LARGE)).unwrap());
        let ends = [COMMIT, COMMIT, COMMIT, [COMMIT, ABORT][round % 2]];
        let ended = std::thread::scope(|scope| {
            let end = |end| scope.spawn(move || transact_as(0, helper, root, end, id));
            ends.map(end).map(|ended| ended.join().unwrap())
        });
        let late = ended.iter().filter(|ended| match ended {
            Ok(_) => false,
            Err(error) => [Errno::AGAIN, Errno::NOENT].contains(error),
        });
        assert_eq!(late.count(), ends.len() - 1, "{ended:?}");
    }
}

/// What was changed in mapped memory is committed: of a file that is still open, that is still mapped, that nobody has any more.
fn transaction_maps(place: &Place) {
    if !place.is_varve() {
        return;
    }
    // How the file is called, where it is at the end, and what becomes of it.
    let script = r#"
import mmap, os, sys
name = sys.argv[1]
fd = os.open(name, os.O_RDWR)
shared = mmap.mmap(fd, 0)
if name != "open":
    os.close(fd)
shared[20000:20007] = b"changed"
if name == "gone":
    os._exit(0)
if name == "renamed":
    os.mkdir("d")
    os.rename(name, "d/renamed")
if name == "linked":
    os.mkdir("d")
    os.link(name, "d/linked")
    os.unlink(name)
if name == "removed":
    os.unlink(name)
if name == "many":
    maps = []
    for number in range(1000):
        with open(f"{number}", "wb+") as file:
            file.truncate(30000)
            maps.append(mmap.mmap(file.fileno(), 0))
        maps[-1][20000:20007] = b"changed"
print("changed", flush=True)
sys.stdin.read()
"#;
    let dir = place.dir();
    let others = dir.join("others");
    let within = dir.join("within");
    fs::create_dir(&others).unwrap();
    for name in ["open", "mapped", "gone", "renamed", "linked", "removed", "many"] {
        fs::create_dir(&within).unwrap();
        fs::write(within.join(name), pattern(3, 30_000)).unwrap();
        if name != "removed" {
            // Another name is where the transaction does not see it.
            fs::hard_link(within.join(name), others.join(name)).unwrap();
        }
        let view = begin(&within);
        let mut program = Command::new("python3");
        program.args(["-c", script, name]).current_dir(&view);
        let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(program.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, if name == "gone" { "" } else { "changed\n" });
        if name == "gone" {
            assert!(program.wait().unwrap().success());
        }
        commit(place, &view);
        let found = match name {
            "renamed" | "linked" => within.join("d").join(name),
            _ => within.join(name),
        };
        if name == "removed" {
            refused_io(fs::metadata(found), Errno::NOENT);
        } else {
            assert_eq!(&fs::read(found).unwrap()[20_000..20_007], b"changed", "{name}");
        }
        for number in 0..if name == "many" { 1000 } else { 0 } {
            let found = fs::read(within.join(number.to_string())).unwrap();
            assert_eq!(&found[20_000..20_007], b"changed", "{number}");
        }
        drop(program.stdin.take());
        program.wait().unwrap();
        fs::remove_dir_all(&within).unwrap();
    }
    checked(place);
}
