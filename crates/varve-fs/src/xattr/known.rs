//! What the extended attributes of inodes take that were given some last, so that not all of them are read for each that
//! is added.
//!
//! Whoever changes attributes of an inode writes the row that it is in. So what is known counts as long as the store says that this row
//! has not changed ([`varve_engine::RowVersion`]). There are [`SLOTS`] places, an inode's being that of its id. A store that keeps
//! no account of versions, as those of views, has none.

use std::sync::Arc;

use parking_lot::Mutex;
use varve_engine::{RowVersion, Store};
use varve_schema::RowKey;
use varve_types::{InodeId, KeyspaceId};

use varve_namespace::xattr::XattrBytes;

/// The number of inodes of which it is known.
const SLOTS: usize = 64;

struct KnownBytes {
    row: InodeRow,
    bytes: XattrBytes,
}

/// An inode in a row at a moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct InodeRow {
    ino: InodeId,
    key: RowKey,
    version: RowVersion,
}

/// See the module's comment.
pub(crate) struct KnownXattrs {
    store: Arc<dyn Store>,
    meta: KeyspaceId,
    slots: Box<[Mutex<Option<KnownBytes>>]>,
}

impl KnownXattrs {
    /// Nothing is known yet of inodes in the key space `meta`.
    pub(crate) fn new(store: Arc<dyn Store>, meta: KeyspaceId) -> KnownXattrs {
        KnownXattrs { store, meta, slots: (0..SLOTS).map(|_| Mutex::new(None)).collect() }
    }

    /// The inode `ino`, which is in the row of `key`, as of now.
    pub(super) fn now(&self, ino: InodeId, key: RowKey) -> Option<InodeRow> {
        let version = self.store.version(self.meta, &key.to_bytes())?;
        Some(InodeRow { ino, key, version })
    }

    /// What the attributes take, if that is known.
    pub(super) fn get(&self, row: InodeRow) -> Option<XattrBytes> {
        let known = self.slot(row.ino).lock();
        known.as_ref().filter(|known| known.row == row).map(|known| known.bytes)
    }

    /// Notes what they take since the row, which was `before`, was written.
    pub(super) fn keep(&self, before: InodeRow, bytes: XattrBytes) {
        let Some(row) = self.now(before.ino, before.key) else { return };
        if row.version.is_next_after(before.version) {
            *self.slot(row.ino).lock() = Some(KnownBytes { row, bytes });
        }
    }

    fn slot(&self, ino: InodeId) -> &Mutex<Option<KnownBytes>> {
        &self.slots[ino.get() as usize % SLOTS]
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use varve_env::Env;
    use varve_env::sim::SimEnv;
    use varve_types::FileName;
    use varve_vfs::{Caller, Vfs, XattrMode};

    use super::*;
    use crate::{FormatOptions, MountOptions, VarveFs};

    /// Each new name read the values of all others.
    #[test]
    fn a_new_attribute_reads_no_others() {
        let (env, dir): (Arc<dyn Env>, _) = (SimEnv::new(1), Path::new("/store"));
        crate::format(&env, dir, &FormatOptions::default()).unwrap();
        let fs = VarveFs::open(env, dir, MountOptions::default()).unwrap();
        let name = |text: &'static str| FileName::new(text.as_bytes()).unwrap();
        let made = [
            fs.mknod(Caller::ROOT, InodeId::ROOT, name("f"), 0o100_644, 0).unwrap().attr.ino,
            fs.mkdir(Caller::ROOT, InodeId::ROOT, name("d"), 0o755).unwrap().attr.ino,
        ];
        let scans = || {
            let metrics: serde_json::Value =
                serde_json::from_str(&fs.store.metrics_json()).unwrap();
            metrics["counters"]["scans"].as_u64().unwrap()
        };
        for ino in made {
            let set = |attr: &str, len| {
                fs.setxattr(ino, attr.as_bytes(), &vec![3; len], XattrMode::Set).unwrap();
            };
            set("user.first", 1);
            let before = scans();
            (10..20).for_each(|i| set(&format!("user.{i}"), 65_536));
            (10..15).for_each(|i| set(&format!("user.{i}"), 100));
            (10..15).for_each(|i| set(&format!("user.{i}"), 65_536));
            assert_eq!(scans(), before);
            fs.removexattr(ino, b"user.10").unwrap();
            set("user.10", 65_536);
            (30..35).for_each(|i| set(&format!("user.{i}"), 65_536));
            let full = fs.setxattr(ino, b"user.40", &[3; 65_536], XattrMode::Set);
            assert!(full.is_err());
            let names = fs.listxattr(ino).unwrap();
            assert_eq!(names.iter().filter(|byte| **byte == 0).count(), 16);
        }
    }
}
