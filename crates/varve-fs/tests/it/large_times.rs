//! Times of large files on storage that keeps them less exactly.

use std::path::Path;
use std::sync::Arc;

use varve_env::Env;
use varve_env::sim::{FaultRule, SimOp};
use varve_fs::{FormatOptions, Isolation, MountOptions, TransactionOptions, VarveFs};
use varve_testkit::hooked::{AsKept, HookedEnv, Hooks};
use varve_types::Timestamp;
use varve_vfs::{Caller, SetAttr, SetTime, Vfs};

use crate::crash::{STORE, open, sim_store};
use crate::support::{Calls, ROOT, WRITE};

/// A machine that keeps times less exactly.
#[derive(Debug)]
struct Inexact(AsKept);

impl Hooks for Inexact {
    fn times_of(&self, _path: &Path) -> Option<AsKept> {
        Some(self.0)
    }
}

fn time(secs: i64, nanos: u32) -> Timestamp {
    Timestamp::new(secs, nanos).unwrap()
}

/// What the storage below made of a file's time was taken for a write, each time that somebody opened it for writing: its
/// mtime became that, and a time ahead of what can be kept became its ctime too.
#[test]
fn a_large_file_to_which_nobody_writes_keeps_times_that_the_storage_below_does_not() {
    let clamped: AsKept = |asked| asked.min(time(15_032_385_535, 0));
    let in_seconds: AsKept = |asked| time(asked.secs(), 0);
    for (as_kept, secs) in [(clamped, 16_725_225_600), (in_seconds, 1_000_000_000)] {
        let sim = sim_store(12, &FormatOptions::default());
        let env: Arc<dyn Env> = Arc::new(HookedEnv::new(&sim, Inexact(as_kept)));
        let fs = VarveFs::open(env, Path::new(STORE), MountOptions::default()).unwrap();
        let ino = fs.mk(ROOT, "f");
        fs.put_at(ino, 0, &[1; 100_000]);
        let set_mtime = |nanos| {
            let mtime = Some(SetTime::To(time(secs, nanos)));
            let attr = fs.setattr(Caller::ROOT, ino, SetAttr { mtime, ..SetAttr::default() });
            (time(secs, nanos), attr.unwrap().ctime)
        };
        let times = || {
            let attr = fs.getattr(ino).unwrap();
            (attr.mtime, attr.ctime)
        };
        let set = set_mtime(123_456_789);
        assert_eq!(times(), set);
        let handle = fs.open_as(ino, WRITE);
        assert_eq!(times(), set, "open");
        fs.release(ino, handle).unwrap();
        assert_eq!(times(), set, "closed");
        let handle = fs.open_as(ino, WRITE);
        let set = set_mtime(987_654_321);
        assert_eq!(times(), set, "set while it is open");
        fs.release(ino, handle).unwrap();
        assert_eq!(times(), set, "closed again");
        let handle = fs.open_as(ino, WRITE);
        fs.write(ino, handle, 0, &[2], false).unwrap();
        let written = times();
        assert!(written.0 != set.0 && written.1 > set.1, "{written:?}");
        fs.release(ino, handle).unwrap();
        assert_eq!(times(), written);
    }
}

/// It was known as long as somebody had the file open only, and a row can be behind for longer.
#[test]
fn a_large_file_that_waits_for_locks_keeps_its_times_once_it_is_closed() {
    let in_seconds: AsKept = |asked| time(asked.secs(), 0);
    let sim = sim_store(12, &FormatOptions::default());
    let env: Arc<dyn Env> = Arc::new(HookedEnv::new(&sim, Inexact(in_seconds)));
    let fs = VarveFs::open(env, Path::new(STORE), MountOptions::default()).unwrap();
    let dir = fs.mk_dir(ROOT, "dir");
    let ino = fs.mk(dir, "f");
    fs.put_at(ino, 0, &[1; 100_000]);
    let mtime = time(1_000_000_000, 123_456_789);
    let set = SetAttr { mtime: Some(SetTime::To(mtime)), ..SetAttr::default() };
    fs.setattr(Caller::ROOT, ino, set).unwrap();
    let handle = fs.open_as(ino, WRITE);
    let isolation = Isolation::Serializable;
    let options = TransactionOptions { isolation, ..TransactionOptions::default() };
    let txn = fs.begin_transaction(ROOT, &options).unwrap();
    let view = fs.open_view(&txn).unwrap();
    view.mv(ROOT, "dir", ROOT, "moved").unwrap();
    fs.release(ino, handle).unwrap();
    assert_eq!(fs.getattr(ino).unwrap().mtime, mtime);
    drop(view);
    fs.abort_transaction(&txn.name).unwrap();
    fs.mk_dir(ROOT, "elsewhere");
    fs.sync().unwrap();
    assert_eq!(fs.getattr(ino).unwrap().mtime, mtime);
}

/// Its row was changed by a call that was refused.
#[test]
fn times_of_a_large_file_that_cannot_be_opened_stay() {
    let env = sim_store(12, &FormatOptions::default());
    let fs = open(&env);
    let ino = fs.mk(ROOT, "f");
    fs.put_at(ino, 0, &[1; 100_000]);
    fs.close().unwrap();
    drop(fs);
    let fs = open(&env);
    assert_eq!(fs.find(ROOT, "f").unwrap().ino, ino);
    let before = fs.getattr(ino).unwrap();
    let path_suffix = ino.get().to_string();
    env.fail(FaultRule { path_suffix, op: SimOp::Open, nth: 1, errno: 24, sticky: false });
    let set = SetAttr {
        mtime: Some(SetTime::To(time(1_000_000_000, 0))),
        perm: Some(0o600),
        ..SetAttr::default()
    };
    assert!(fs.setattr(Caller::ROOT, ino, set).is_err());
    assert_eq!(fs.getattr(ino).unwrap(), before);
    assert_eq!(fs.setattr(Caller::ROOT, ino, set).unwrap().perm, 0o600);
}
