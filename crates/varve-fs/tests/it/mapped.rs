//! What programs have changed in mapped memory of files that a commit changes.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use varve_fs::{FormatOptions, TransactionOptions};
use varve_vfs::{RenameMode, Vfs};

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
