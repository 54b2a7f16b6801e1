//! What commits cost.

use varve_env::sim::SimOp;
use varve_fs::{FormatOptions, TransactionOptions, VarveFs};
use varve_vfs::Vfs;

use crate::crash::{open, sim_store};
use crate::snapshots::view;
use crate::support::{Calls, ROOT};
use crate::views::sound;

const LARGE: usize = 70_000;

/// Everybody waits for a commit. It synced four directories for each large file.
#[test]
fn a_commit_syncs_each_directory_once_however_many_large_files_change() {
    let mut syncs = Vec::new();
    for count in [10, 60, 100] {
        let env = sim_store(72, &FormatOptions::default());
        let fs = open(&env);
        for n in 0..count {
            fs.put_at(fs.mk(ROOT, &format!("changed {n}")), 0, &[1; LARGE]);
            fs.put_at(fs.mk(ROOT, &format!("replaced {n}")), 0, &[1; LARGE]);
        }
        fs.create_snapshot("before").unwrap();
        let then = view(&fs, "before");
        let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
        let changing = fs.open_view(&txn).unwrap();
        for n in 0..count {
            let changed = changing.find(ROOT, &format!("changed {n}")).unwrap().ino;
            changing.put_at(changed, 10, b"changed");
            let replaced = changing.find(ROOT, &format!("replaced {n}")).unwrap().ino;
            changing.cut(replaced, 0);
            changing.put_at(replaced, 0, &[2; LARGE]);
        }
        changing.sync().unwrap();
        let before = env.count_of(SimOp::SyncDir);
        fs.commit_transaction(&txn.name, &changing).unwrap();
        syncs.push(env.count_of(SimOp::SyncDir) - before);
        let mut expected = vec![1; LARGE];
        expected[10..17].copy_from_slice(b"changed");
        for n in 0..count {
            let bytes = |fs: &VarveFs, text: &str| {
                fs.contents(fs.find(ROOT, &format!("{text} {n}")).unwrap().ino)
            };
            assert!(bytes(&fs, "changed") == expected && bytes(&fs, "replaced") == [2; LARGE]);
            assert!(
                bytes(&then, "changed") == [1; LARGE] && bytes(&then, "replaced") == [1; LARGE]
            );
        }
        sound(&fs);
    }
    assert!(syncs.iter().all(|syncs| *syncs < 60) && syncs[1] <= syncs[0] + 5, "{syncs:?}");
}
