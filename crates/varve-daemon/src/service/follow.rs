//! What the kernel is told of the main view when that has changed by a commit.
//!
//! To forget a name the kernel takes the lock of its directory, for which it waits as long as any request there does: a program that
//! makes a file may wait 10 seconds for what a transaction has locked. So inodes come first, and the names of a directory keep
//! none but each other waiting, unless requests wait in as many directories as there are threads.

use std::collections::BTreeMap;
use std::thread;

use parking_lot::Mutex;
use varve_fs::Committed;
use varve_types::InodeId;

use super::ViewDesk;

/// The most threads that tell of names.
const TELLERS_MAX: usize = 8;

impl ViewDesk {
    /// Has the kernel forget what it knows of the main view that has changed without it.
    pub(super) fn follow(&self, committed: &Committed) {
        for ino in &committed.inodes {
            self.told(self.notifier.inode_changed(*ino));
        }
        let mut names: BTreeMap<InodeId, Vec<&[u8]>> = BTreeMap::new();
        for (dir, name) in &committed.names {
            names.entry(*dir).or_default().push(name);
        }
        let tellers = names.len().min(TELLERS_MAX);
        let left = Mutex::new(names.into_iter());
        let next = || left.lock().next();
        let tell = || {
            while let Some((dir, names)) = next() {
                self.told(self.notifier.names_changed(dir, names));
            }
        };
        thread::scope(|scope| {
            for _ in 1..tellers {
                let teller = thread::Builder::new().name("varve-follow".to_owned());
                if let Err(error) = teller.spawn_scoped(scope, tell) {
                    log::debug!("one thread less tells the kernel of a commit: {error}");
                    break;
                }
            }
            tell();
        });
    }
}
