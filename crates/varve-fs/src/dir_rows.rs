//! The rows of directories that were used just now, taken apart.
//!
//! The row of a directory is asked for again and again while something happens in it: a create alone reads it three times
//! (for the kernel's check of permissions, for the name that is not there, for the counts that change) and writes it. So
//! rows are kept as they were read or written last, each with its version ([`varve_engine::RowVersion`]), and are read anew
//! if the store has another version by now: what is found here is what the store would say.
//!
//! 1. [`DirRows::read`] asks for the version first, then for the row.
//! 2. Whoever is about to write rows of directories calls [`DirRows::before`], and afterwards [`DirRows::keep`]: if nothing
//!    but this one write has happened to a row, it is as it was written.
//!
//! There are [`SLOTS`] places, a directory's being that of its id; they take some 140 KiB. A store that keeps no account
//! of versions, as those of views, has none.

use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;
use varve_engine::{RowVersion, Store};
use varve_schema::{Content, Inode, RowKey};
use varve_types::{InodeId, KeyspaceId};
use varve_vfs::FsResult;

use crate::rows::read_inode_row;

/// The number of directories that are kept.
const SLOTS: usize = 512;

struct Kept {
    version: RowVersion,
    row: Inode,
}

/// Versions of rows that are about to be written, in their order.
pub(crate) type Versions = SmallVec<[Option<RowVersion>; 2]>;

/// See the module's comment.
pub(crate) struct DirRows {
    store: Arc<dyn Store>,
    meta: KeyspaceId,
    slots: Box<[Mutex<Option<Kept>>]>,
}

impl DirRows {
    /// None yet, of directories in the key space `meta`.
    pub(crate) fn new(store: Arc<dyn Store>, meta: KeyspaceId) -> DirRows {
        let mut rows = DirRows { store, meta, slots: Box::default() };
        if rows.version(InodeId::ROOT).is_some() {
            rows.slots = (0..SLOTS).map(|_| Mutex::new(None)).collect();
        }
        rows
    }

    /// The inode `ino` as its own row has it now, if there is one.
    pub(crate) fn read(&self, ino: InodeId) -> FsResult<Option<Inode>> {
        let read = || read_inode_row(self.store.as_ref(), self.meta, ino);
        let Some(slot) = self.slot(ino) else { return read() };
        let Some(version) = self.version(ino) else { return read() };
        if let Some(kept) = &*slot.lock()
            && kept.row.ino == ino
            && kept.version == version
        {
            return Ok(Some(kept.row.clone()));
        }
        let row = read()?;
        if let Some(row) = &row
            && matches!(row.content, Content::Directory(_))
        {
            *slot.lock() = Some(Kept { version, row: row.clone() });
        }
        Ok(row)
    }

    /// The versions of `dirs`, which are about to be written.
    pub(crate) fn before(&self, dirs: &[Inode]) -> Versions {
        dirs.iter().map(|dir| self.version(dir.ino)).collect()
    }

    /// Keeps `dirs`, which were written as they are.
    pub(crate) fn keep(&self, dirs: impl Iterator<Item = Inode>, before: &Versions) {
        for (row, before) in dirs.zip(before) {
            let Some(slot) = self.slot(row.ino) else { continue };
            let Some((before, version)) = before.zip(self.version(row.ino)) else { continue };
            if version.is_next_after(before) {
                *slot.lock() = Some(Kept { version, row });
            }
        }
    }

    fn slot(&self, ino: InodeId) -> Option<&Mutex<Option<Kept>>> {
        self.slots.get(ino.get() as usize % SLOTS)
    }

    fn version(&self, ino: InodeId) -> Option<RowVersion> {
        self.store.version(self.meta, &RowKey::inode(ino).to_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};

    use varve_engine::Batch;
    use varve_env::Env;
    use varve_env::os::OsEnv;
    use varve_env::sim::SimEnv;
    use varve_schema::encode_inode_row;
    use varve_types::FileName;
    use varve_vfs::{Caller, RenameMode, SetAttr, Vfs};

    use super::*;
    use crate::{FormatOptions, MountOptions, VarveFs};

    fn made(env: Arc<dyn Env>, dir: &Path) -> VarveFs {
        crate::format(&env, dir, &FormatOptions::default()).unwrap();
        VarveFs::open(env, dir, MountOptions::default()).unwrap()
    }

    fn name(text: &str) -> FileName<'_> {
        FileName::new(text.as_bytes()).unwrap()
    }

    fn make_dir(fs: &VarveFs, text: &str) -> InodeId {
        fs.mkdir(Caller::ROOT, InodeId::ROOT, name(text), 0o755).unwrap().attr.ino
    }

    fn make_file(fs: &VarveFs, dir: InodeId, text: &str) {
        fs.mknod(Caller::ROOT, dir, name(text), 0o100_644, 0).unwrap();
    }

    #[test]
    fn the_store_is_asked_again_for_what_has_changed_and_for_nothing_else() {
        let fs = made(SimEnv::new(1), Path::new("/store"));
        let gets = || {
            let metrics: serde_json::Value =
                serde_json::from_str(&fs.store.metrics_json()).unwrap();
            metrics["counters"]["gets"].as_u64().unwrap()
        };
        let dir = make_dir(&fs, "d");
        make_file(&fs, dir, "f");
        let before = gets();
        assert_eq!(fs.getattr(dir).unwrap().size, 1);
        assert_eq!(gets(), before, "the row is as it was written");
        assert!(fs.lookup(dir, name("g")).is_err());
        make_file(&fs, dir, "g");
        assert_eq!(gets(), before + 1, "for the name that is not there");
        let mut row = fs.inode_row(dir).unwrap().unwrap();
        assert_eq!(gets(), before + 1);
        row.uid = 7;
        let (mut batch, key) = (Batch::new(), RowKey::inode(dir).to_bytes().to_vec());
        batch.put(fs.meta, key, encode_inode_row(&row));
        fs.store.write(batch).unwrap();
        assert_eq!(fs.getattr(dir).unwrap().uid, 7);
        assert_eq!(gets(), before + 2);
        fs.getattr(dir).unwrap();
        assert_eq!(gets(), before + 2, "the row is as it was read");
        // A full memtable, a flush and its end may all come between.
        fs.views.as_ref().unwrap().db().flush().unwrap();
        let before = gets();
        assert_eq!(fs.getattr(dir).unwrap().uid, 7);
        assert_eq!(gets(), before + 1);
    }

    /// More directories than there are places, and neighbours of one place.
    #[test]
    fn directories_of_one_place_take_turns() {
        let fs = made(SimEnv::new(2), Path::new("/store"));
        let dirs: Vec<InodeId> = (0..600).map(|i| make_dir(&fs, &format!("d{i}"))).collect();
        for (i, dir) in dirs.iter().enumerate() {
            (0..i % 3).for_each(|file| make_file(&fs, *dir, &format!("f{file}")));
        }
        for (i, dir) in dirs.iter().enumerate() {
            assert_eq!(fs.getattr(*dir).unwrap().size, i as u64 % 3);
        }
        fs.rmdir(InodeId::ROOT, name("d0")).unwrap();
        assert_eq!(fs.inode_row(dirs[0]).unwrap(), None);
    }

    /// Whoever has seen a change sees it from then on, and in the end all rows are the store's.
    #[test]
    fn what_is_kept_is_what_the_store_has_whoever_else_changes_it() {
        let temp = tempfile::tempdir().unwrap();
        let fs = made(OsEnv::new(), &temp.path().join("store"));
        let dirs: Vec<InodeId> = (0..3).map(|i| make_dir(&fs, &format!("d{i}"))).collect();
        let (fs, dirs, done) = (&fs, &dirs, &AtomicBool::new(false));
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3)
                .map(|thread| {
                    scope.spawn(move || {
                        for i in 0..600 {
                            // The first only grows.
                            make_file(fs, dirs[0], &format!("{thread}-{i}"));
                            let (from, to) = (dirs[1 + thread % 2], dirs[2 - thread % 2]);
                            let file = format!("{thread}-{i}");
                            make_file(fs, from, &file);
                            fs.rename(from, name(&file), to, name(&file), RenameMode::Replace)
                                .unwrap();
                            let perm = Some(0o700 + i % 8);
                            fs.setattr(Caller::ROOT, from, SetAttr { perm, ..SetAttr::default() })
                                .unwrap();
                            if i % 2 == 0 {
                                fs.unlink(to, name(&file)).unwrap();
                            }
                        }
                    })
                })
                .collect();
            scope.spawn(move || {
                let mut last = 0;
                while !done.load(Ordering::Relaxed) {
                    let size = fs.getattr(dirs[0]).unwrap().size;
                    assert!(size >= last, "{size} after {last}");
                    last = size;
                }
            });
            let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            done.store(true, Ordering::Relaxed);
            assert!(ended.iter().all(Result::is_ok));
        });
        assert_eq!(fs.getattr(dirs[0]).unwrap().size, 1800);
        for dir in dirs.iter().chain([&InodeId::ROOT]) {
            let stored = read_inode_row(fs.store.as_ref(), fs.meta, *dir).unwrap();
            assert_eq!(fs.inode_row(*dir).unwrap(), stored);
        }
        assert_eq!(fs.check(&mut |_| ()).unwrap().findings, []);
    }
}
