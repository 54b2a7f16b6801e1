//! What the kernel forgets of the present state after a commit changed it past the kernel.
//!
//! To forget a name the kernel takes the lock of its directory and waits for it as long as for any request there: a program that
//! creates a file may wait 10 seconds for what a transaction has locked. So inodes come first, and a thread for each directory, up to
//! [`TELLERS_MAX`], forgets its names.

use std::collections::BTreeMap;
use std::thread;

use parking_lot::Mutex;
use varve_fs::Committed;
use varve_types::InodeId;

use super::ViewService;

/// The most threads that have the kernel forget names.
const TELLERS_MAX: usize = 8;

impl ViewService {
    /// Has the kernel forget what `committed` changed.
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
                    log::debug!(
                        "one thread less has the kernel forget names after a commit: {error}"
                    );
                    break;
                }
            }
            tell();
        });
    }
}
