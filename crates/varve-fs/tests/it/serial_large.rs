//! Large files that the main view writes to beside serializable transactions.

use varve_env::sim::SimOp;
use varve_fs::{FormatOptions, Isolation, TransactionOptions, VarveFs};
use varve_types::InodeId;
use varve_vfs::{Caller, FsError, FsResult, RenameMode, SetAttr, Vfs, XattrMode};

use crate::concurrent::assert_sound;
use crate::crash::{open, sim_store};
use crate::support::{Calls, ROOT, Rig, WRITE, name};

const LARGE: usize = 70_000;

fn begin(fs: &VarveFs) -> (String, VarveFs) {
    let isolation = Isolation::Serializable;
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
    assert_eq!((attr.size, attr.is_fleeting), (LARGE as u64, false));
    assert_eq!(env.count_of(SimOp::Open), before);
    view.release(file, handle).unwrap();
}
