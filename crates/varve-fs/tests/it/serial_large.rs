//! Large files that the main tree writes to beside serializable transactions.

use std::io;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use varve_env::sim::SimOp;
use varve_env::{Env, OpenMode};
use varve_fs::{CommitError, FormatOptions, Isolation, MountOptions, TransactionOptions, VarveFs};
use varve_testkit::PATIENCE;
use varve_testkit::hooked::{Before, HookedEnv, Hooks};
use varve_types::InodeId;
use varve_vfs::{Caller, FsError, FsResult, Keep, RenameMode, SetAttr, Vfs, XattrMode};

use crate::concurrent::assert_sound;
use crate::crash::{STORE, open, sim_store};
use crate::support::{Calls, READ, ROOT, Rig, WRITE, name};
use crate::views::sound;

const LARGE: usize = 70_000;
/// How long a commit stands still for others.
pub(crate) const MOMENT: Duration = Duration::from_millis(100);

fn begin(fs: &VarveFs) -> (String, VarveFs) {
    begin_as(fs, Isolation::Serializable)
}

fn begin_as(fs: &VarveFs, isolation: Isolation) -> (String, VarveFs) {
    let options = TransactionOptions { isolation, ..TransactionOptions::default() };
    let txn = fs.begin_transaction(ROOT, &options).unwrap();
    let view = fs.open_view(&txn).unwrap();
    (txn.name, view)
}

fn chmod(fs: &VarveFs, ino: InodeId, perm: u32) -> FsResult<()> {
    let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
    fs.setattr(Caller::ROOT, ino, set).map(drop)
}

/// The row of a file that is being written to is changed once more when it is closed, past the locks of transactions: one that
/// had read it before and wrote it after put the old size back.
#[test]
fn a_large_file_that_is_being_written_to_is_not_changed_by_a_serializable_transaction() {
    for linked in [false, true] {
        let rig = Rig::new();
        let dir = rig.mk_dir(ROOT, "dir");
        let file = rig.mk(dir, "f");
        rig.put_at(file, 0, &vec![1; LARGE]);
        rig.mk(dir, "other");
        if linked {
            rig.link(file, dir, name("g")).unwrap();
        }
        let handle = rig.open_as(file, WRITE);
        rig.write(file, handle, LARGE as u64, &[1; 100], false).unwrap();
        let (id, view) = begin(&rig);
        let seen = view.find(dir, "f").unwrap().ino;
        assert_eq!(view.getattr(seen).unwrap().size, LARGE as u64 + 100);
        let calls: [(&str, &dyn Fn() -> FsResult<()>); 7] = [
            ("chmod", &|| chmod(&view, seen, 0o600)),
            ("cut", &|| {
                let set = SetAttr { size: Some(10), ..SetAttr::default() };
                view.setattr(Caller::ROOT, seen, set).map(drop)
            }),
            ("setxattr", &|| view.setxattr(seen, b"user.a", b"1", XattrMode::Set)),
            ("link", &|| view.link(seen, dir, name("h")).map(drop)),
            ("rename", &|| view.mv(dir, "f", dir, "h")),
            ("exchange", &|| view.rename(dir, name("other"), dir, name("f"), RenameMode::Exchange)),
            ("unlink", &|| view.unlink(dir, name("f"))),
        ];
        for (what, call) in &calls {
            let refused = call();
            assert!(matches!(refused, Err(FsError::Busy)), "{what}: {refused:?}");
        }
        rig.release(file, handle).unwrap();
        for (what, call) in &calls {
            call().unwrap_or_else(|error| panic!("{what}: {error}"));
            if *what == "link" {
                view.unlink(dir, name("h")).unwrap();
            } else if *what == "rename" {
                view.mv(dir, "h", dir, "f").unwrap();
            } else if *what == "exchange" {
                view.rename(dir, name("other"), dir, name("f"), RenameMode::Exchange).unwrap();
            }
        }
        rig.commit_transaction(&id, &view).unwrap();
        assert!(rig.find(dir, "f").is_err());
        assert_sound(&rig, "after the commit");
    }
}

/// A file that was closed while a transaction had its directory locked counted with its old size until the next mount.
#[test]
fn a_large_file_that_is_closed_beside_locks_counts_once_they_have_gone() {
    for committed in [true, false] {
        let rig = Rig::new();
        let dir = rig.mk_dir(ROOT, "dir");
        let file = rig.mk(dir, "f");
        rig.put_at(file, 0, &vec![1; LARGE]);
        let handle = rig.open_as(file, WRITE);
        rig.write(file, handle, LARGE as u64, &[1; 100], false).unwrap();
        let (id, view) = begin(&rig);
        view.mv(ROOT, "dir", ROOT, "moved").unwrap();
        rig.release(file, handle).unwrap();
        rig.forget(file, 1);
        rig.mk_dir(ROOT, "elsewhere");
        assert_eq!(rig.usage(dir).unwrap().bytes, LARGE as u64, "it is locked");
        if committed {
            rig.commit_transaction(&id, &view).unwrap();
            drop(view);
        } else {
            drop(view);
            rig.abort_transaction(&id).unwrap();
        }
        rig.mk_dir(ROOT, "and again");
        assert_eq!(rig.usage(dir).unwrap().bytes, LARGE as u64 + 100);
        assert!(matches!(rig.getattr(file), Err(FsError::Stale)), "the kernel has forgotten it");
        assert_eq!(rig.check(&mut |_| ()).unwrap().findings, []);
    }
}

/// Each stat of a file that the transaction writes opened its object, and failed where no descriptor was left.
#[test]
fn a_stat_of_a_large_file_that_the_transaction_writes_opens_nothing() {
    let env = sim_store(83, &FormatOptions::default());
    let fs = open(&env);
    let (_, view) = begin(&fs);
    let file = view.mk(ROOT, "f");
    let handle = view.open_as(file, WRITE);
    view.write(file, handle, 0, &[2; LARGE], false).unwrap();
    let before = env.count_of(SimOp::Open);
    let attr = view.getattr(file).unwrap();
    assert_eq!((attr.size, attr.keep), (LARGE as u64, Keep::Forever));
    assert_eq!(env.count_of(SimOp::Open), before);
    view.release(file, handle).unwrap();
}

/// Something that happens at one of the calls that a commit makes for large files.
#[derive(Default)]
pub(crate) struct AtCall {
    /// Calls until it happens.
    pub(crate) left: u64,
    pub(crate) happens: Option<Box<dyn FnOnce() + Send>>,
}

#[derive(Clone, Default)]
pub(crate) struct OnLargeFiles(pub(crate) Arc<Mutex<AtCall>>);

impl OnLargeFiles {
    fn call(&self, path: &Path) {
        let of_large = ["objects", "views", "kept"].map(|dir| Path::new(STORE).join(dir));
        if !of_large.iter().any(|dir| path.starts_with(dir)) {
            return;
        }
        let happens = {
            let mut at = self.0.lock();
            at.left = at.left.saturating_sub(1);
            if at.left == 0 { at.happens.take() } else { None }
        };
        happens.into_iter().for_each(|happens| happens());
    }
}

impl Hooks for OnLargeFiles {
    fn before_open(&self, path: &Path, _mode: OpenMode) -> io::Result<()> {
        self.call(path);
        Ok(())
    }

    fn after_rename(&self, to: &Path) {
        self.call(to);
    }

    fn before_removal(&self, path: &Path) {
        self.call(path);
    }

    fn before_syncs_of(&self, path: &Path) -> Option<Before> {
        let (on, path) = (self.clone(), path.to_path_buf());
        Some(Arc::new(move || on.call(&path)))
    }
}

/// Does `work` in a thread of its own.
#[allow(
    clippy::disallowed_methods,
    reason = "what it does may wait for the commit that it is within"
)]
pub(crate) fn beside(work: impl FnOnce() + Send + 'static) {
    std::thread::spawn(work);
}

/// What a transaction does to a large file.
#[derive(Clone, Copy, Debug)]
enum Change {
    InPlace,
    Append,
    Replace,
    Grow,
    Cut,
    CutToSmall,
    Make,
    Exchange,
}

impl Change {
    const ALL: [Change; 8] = [
        Change::InPlace,
        Change::Append,
        Change::Replace,
        Change::Grow,
        Change::Cut,
        Change::CutToSmall,
        Change::Make,
        Change::Exchange,
    ];

    /// What there is before, of the file and of another.
    fn before(self) -> [Option<Vec<u8>>; 2] {
        let first = match self {
            Change::Grow => Some(vec![1; 100]),
            Change::Make => None,
            _ => Some(vec![1; LARGE]),
        };
        [first, Some(vec![5; LARGE])]
    }

    fn after(self) -> Vec<u8> {
        match self {
            Change::InPlace => [vec![2; 100], vec![1; LARGE - 100]].concat(),
            Change::Append => [vec![1; LARGE], vec![2; 100]].concat(),
            Change::Replace | Change::Make => vec![2; LARGE],
            Change::Grow => [vec![1; 100], vec![2; LARGE]].concat(),
            Change::Cut => vec![1; LARGE - 100],
            Change::CutToSmall => vec![1; 100],
            Change::Exchange => vec![5; LARGE],
        }
    }

    fn make(self, fs: &VarveFs, dir: InodeId) {
        let file = || fs.find(dir, "f").unwrap().ino;
        match self {
            Change::InPlace => fs.put_at(file(), 0, &[2; 100]),
            Change::Append => fs.put_at(file(), LARGE as u64, &[2; 100]),
            Change::Replace => {
                let made = fs.mk(dir, "made");
                fs.put_at(made, 0, &[2; LARGE]);
                fs.mv(dir, "made", dir, "f").unwrap();
            }
            Change::Grow => fs.put_at(file(), 100, &[2; LARGE]),
            Change::Cut => fs.cut(file(), LARGE as u64 - 100),
            Change::CutToSmall => fs.cut(file(), 100),
            Change::Make => {
                let made = fs.mk(dir, "f");
                fs.put_at(made, 0, &[2; LARGE]);
            }
            Change::Exchange => {
                fs.rename(dir, name("f"), dir, name("other"), RenameMode::Exchange).unwrap();
            }
        }
    }
}

/// The bytes of `f`, if there is one.
fn bytes_of(fs: &VarveFs, dir: InodeId) -> FsResult<Option<Vec<u8>>> {
    let ino = match fs.find(dir, "f") {
        Err(FsError::NotFound) => return Ok(None),
        found => found?.ino,
    };
    let handle = fs.open(ino, READ)?.handle;
    let size = fs.getattr(ino)?.size;
    let bytes = fs.read(ino, handle, 0, 1 << 20)?;
    assert_eq!(bytes.len() as u64, size);
    fs.release(ino, handle)?;
    Ok(Some(bytes.to_vec()))
}

/// A serializable transaction that met another one's commit between its rows and its large files read the new row with the old
/// bytes, and committed, or got EIO.
#[test]
fn a_serializable_transaction_reads_no_large_file_in_the_middle_of_a_commit() {
    let (mut calls, mut refused, mut read_before) = (0, 0, 0);
    for isolation in [Isolation::Serializable, Isolation::Snapshot] {
        for change in Change::ALL {
            for at in 1.. {
                let on = OnLargeFiles::default();
                let sim = sim_store(at, &FormatOptions::default());
                let env: Arc<dyn Env> = Arc::new(HookedEnv::new(&sim, on.clone()));
                let fs = VarveFs::open(env, Path::new(STORE), MountOptions::default()).unwrap();
                let dir = fs.mk_dir(ROOT, "dir");
                for (text, bytes) in ["f", "other"].into_iter().zip(change.before()) {
                    bytes.into_iter().for_each(|bytes| fs.put_at(fs.mk(dir, text), 0, &bytes));
                }
                let (writer, writing) = begin_as(&fs, isolation);
                change.make(&writing, dir);
                let (reader, reading) = begin(&fs);
                let reading = Arc::new(reading);
                let (view, (tell, found)) = (Arc::clone(&reading), mpsc::channel());
                let happens = Box::new(move || {
                    let (done, is_done) = mpsc::channel();
                    beside(move || {
                        let bytes = bytes_of(&view, dir);
                        drop(view);
                        let _ = tell.send(bytes);
                        let _ = done.send(());
                    });
                    // It may need what the commit has in its hands, and comes through later.
                    let _ = is_done.recv_timeout(MOMENT);
                });
                *on.0.lock() = AtCall { left: at, happens: Some(happens) };
                let committed = fs.commit_transaction(&writer, &writing);
                if on.0.lock().happens.take().is_some() {
                    // It makes no more calls.
                    committed.unwrap();
                    break;
                }
                let what = format!("{isolation:?}, {change:?}, at call {at}");
                let found = found.recv_timeout(PATIENCE).unwrap();
                let after = Some(change.after());
                calls += 1;
                match (&committed, &found) {
                    (Ok(_), Err(FsError::Blocked(blocked))) => {
                        refused += 1;
                        reading.wait_is_over(blocked);
                    }
                    // It ends in between.
                    (Ok(_), Ok(bytes)) => assert!(*bytes == after, "{what}"),
                    (Err(CommitError::Failed(FsError::Blocked(_))), Ok(bytes)) => {
                        read_before += 1;
                        assert!(*bytes == change.before()[0], "{what}");
                    }
                    _ => panic!("{what}: {committed:?}, {:?}", found.as_ref().err()),
                }
                if committed.is_ok() {
                    assert!(bytes_of(&reading, dir).unwrap() == after, "{what}");
                }
                reading.mk(dir, "read");
                fs.commit_transaction(&reader, &reading)
                    .unwrap_or_else(|e| panic!("{what}: {e:?}"));
                if committed.is_err() {
                    fs.commit_transaction(&writer, &writing).unwrap();
                }
                assert!(bytes_of(&fs, dir).unwrap() == after, "{what}");
                assert_eq!(fs.lock_status().unwrap(), []);
                sound(&fs);
            }
        }
    }
    assert!(calls > 60 && refused > 40 && read_before > 10, "{calls}, {refused}, {read_before}");
}
