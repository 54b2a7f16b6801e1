//! Times that objects were given and that the storage below keeps otherwise: less exactly, or not so far from now.
//!
//! The time of a dirty file is that of its object, unless nobody has written since it was given one. Without what is noted here the
//! storage's version of the time would pass for that of a write.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use varve_types::{InodeId, Timestamp};

use varve_session::IdHash;

/// The most objects of which it is noted. The times of others become what the storage makes of them.
const STAMPS_MAX: usize = 1 << 16;

/// By object, while its row is dirty. On storage that keeps times as they are there are none.
#[derive(Debug, Default)]
pub(crate) struct Stamps {
    any: AtomicBool,
    stamps: Mutex<HashMap<InodeId, Stamp, IdHash>>,
}

/// A time that an object was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The time.
    pub(crate) mtime: Timestamp,
    /// What the object has instead.
    pub(crate) kept: Timestamp,
}

impl Stamps {
    /// Notes what became of the time that an object was given.
    pub(crate) fn note(&self, ino: InodeId, stamp: Stamp) {
        if stamp.kept == stamp.mtime {
            return self.forget(ino);
        }
        let mut stamps = self.stamps.lock();
        if stamps.len() < STAMPS_MAX || stamps.contains_key(&ino) {
            stamps.insert(ino, stamp);
            self.any.store(true, Ordering::Release);
        }
    }

    /// Whether that is what became of it.
    pub(crate) fn is_noted(&self, ino: InodeId, stamp: Stamp) -> bool {
        self.any.load(Ordering::Acquire) && self.stamps.lock().get(&ino) == Some(&stamp)
    }

    /// Its row is clean, or it is removed.
    pub(crate) fn forget(&self, ino: InodeId) {
        if self.any.load(Ordering::Acquire) {
            self.stamps.lock().remove(&ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use varve_env::Env;
    use varve_env::sim::SimEnv;
    use varve_testkit::hooked::{AsKept, HookedEnv, Hooks};
    use varve_types::FileName;
    use varve_vfs::{Caller, OpenFlags, SetAttr, SetTime, Vfs};

    use super::*;
    use crate::{FormatOptions, MountOptions, VarveFs};

    /// Storage that keeps seconds.
    #[derive(Debug)]
    struct Seconds;

    impl Hooks for Seconds {
        fn times_of(&self, _path: &Path) -> Option<AsKept> {
            Some(|asked| Timestamp::new(asked.secs(), 0).unwrap())
        }
    }

    /// Files that nobody writes to took the places of those that somebody does.
    #[test]
    fn nothing_is_noted_of_a_file_whose_row_is_clean() {
        let env: Arc<dyn Env> = Arc::new(HookedEnv::new(&SimEnv::new(1), Seconds));
        let dir = Path::new("/store");
        crate::format(&env, dir, &FormatOptions::default()).unwrap();
        let fs = VarveFs::open(env, dir, MountOptions::default()).unwrap();
        let name = FileName::new(b"f").unwrap();
        let both = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let (entry, made) = fs.create(Caller::ROOT, InodeId::ROOT, name, 0o644, both).unwrap();
        let ino = entry.attr.ino;
        let noted = || fs.objects.stamps.stamps.lock().len();
        let set = |set| {
            fs.setattr(Caller::ROOT, ino, set).unwrap();
        };
        let mtime = Timestamp::new(1_000_000_000, 123_456_789).map(SetTime::To);
        let times = || set(SetAttr { mtime, ..SetAttr::default() });
        fs.write(ino, made.handle, 0, &[1; 100_000], false).unwrap();
        times();
        assert_eq!(noted(), 1, "it is open for writing");
        fs.release(ino, made.handle).unwrap();
        assert_eq!(noted(), 0);
        times();
        assert_eq!(noted(), 0);
        set(SetAttr { mtime, size: Some(200_000), ..SetAttr::default() });
        assert_eq!(noted(), 0);
        // A small one that grows beyond what small ones may have.
        let name = FileName::new(b"small").unwrap();
        let small = fs.mknod(Caller::ROOT, InodeId::ROOT, name, 0o100_644, 0).unwrap().attr.ino;
        let grown = SetAttr { mtime, size: Some(200_000), ..SetAttr::default() };
        fs.setattr(Caller::ROOT, small, grown).unwrap();
        assert_eq!(noted(), 0);
    }
}
