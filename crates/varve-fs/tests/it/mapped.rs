//! What programs have changed in mapped memory of files that a commit changes.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use varve_fs::{FormatOptions, TransactionOptions, VarveFs};
use varve_types::InodeId;
use varve_vfs::{RenameMode, Vfs, XattrMode};

use crate::crash::{open, sim_store};
use crate::support::{BOTH, Calls, ROOT, name};

/// That one file could not be written hid that another was elsewhere by now.
#[test]
fn a_file_that_cannot_be_written_hides_no_other_that_moves() {
    let fs = Arc::new(open(&sim_store(79, &FormatOptions::default())));
    let dir = fs.mk_dir(ROOT, "dir");
    let files = [(ROOT, "kept"), (dir, "moved")].map(|(dir, text)| {
        let ino = fs.mk(dir, text);
        fs.put_at(ino, 0, b"before");
        (ino, fs.open_as(ino, BOTH))
    });
    let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
    let changing = fs.open_view(&txn).unwrap();
    for (dir, text) in [(ROOT, "kept"), (changing.find(ROOT, "dir").unwrap().ino, "moved")] {
        changing.put_at(changing.find(dir, text).unwrap().ino, 0, b"later");
    }
    let looks = Arc::<Mutex<Vec<Vec<PathBuf>>>>::default();
    let (looked, weak) = (Arc::clone(&looks), Arc::downgrade(&fs));
    fs.write_back_by(move |files| {
        let mut looked = looked.lock();
        looked.push(files.iter().map(|(_, path)| path.clone()).collect());
        if looked.len() == 1 {
            // So the file itself stays as it is.
            let (old, new) = (name("dir"), name("new"));
            weak.upgrade().unwrap().rename(ROOT, old, ROOT, new, RenameMode::Replace).unwrap();
        }
        Err(ErrorKind::PermissionDenied.into())
    });
    fs.commit_transaction(&txn.name, &changing).unwrap();
    let looks = std::mem::take(&mut *looks.lock());
    assert_eq!(
        looks,
        [["kept", "dir/moved"], ["kept", "new/moved"]].map(|look| look.map(PathBuf::from))
    );
    for (ino, handle) in files {
        fs.release(ino, handle).unwrap();
        assert_eq!(fs.contents(ino), b"latere");
    }
}

/// Each file that was opened while mapped memory was being written had all begin again, until the commit was refused.
#[test]
fn programs_that_keep_opening_files_do_not_fail_a_commit_that_changes_these() {
    let fs = Arc::new(open(&sim_store(80, &FormatOptions::default())));
    let files: [InodeId; 20] = std::array::from_fn(|n| fs.mk(ROOT, &format!("file {n}")));
    let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
    let changing = fs.open_view(&txn).unwrap();
    for (n, file) in files.into_iter().enumerate() {
        assert_eq!(changing.find(ROOT, &format!("file {n}")).unwrap().ino, file);
        changing.setxattr(file, b"user.name", b"value", XattrMode::Set).unwrap();
    }
    let (other, opened) = (Arc::downgrade(&fs), Mutex::new(files.into_iter()));
    let open_next = move |other: &VarveFs| {
        opened.lock().next().map(|file| other.open_as(file, BOTH));
    };
    open_next(&fs);
    fs.write_back_by(move |_| {
        open_next(&other.upgrade().unwrap());
        Ok(())
    });
    fs.commit_transaction(&txn.name, &changing).unwrap();
    assert_eq!(fs.getxattr(files[19], b"user.name").unwrap(), b"value"[..]);
}
