//! What a view shows, as facts to compare.

use std::collections::{BTreeMap, BTreeSet};

use varve_fs::VarveFs;
use varve_types::InodeId;
use varve_vfs::{FileType, FsError, FsResult, Vfs};

use super::XATTRS;
use super::acts::{digest, names_in};
use crate::support::{Calls, READ, ROOT};

/// What a view shows, a fact at a time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    /// A name in a directory.
    Name(InodeId, String),
    /// Mode and kind.
    Mode(InodeId),
    /// The bytes of a file.
    Bytes(InodeId),
    /// An extended attribute.
    Xattr(InodeId, Vec<u8>),
    /// A pair of a dictionary, or the dictionary itself.
    Pair(Vec<u8>, Option<Vec<u8>>),
}

/// All that a view shows, by fact; values as numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Dump(pub(super) BTreeMap<Key, u64>);

impl Dump {
    pub(super) fn of(fs: &VarveFs) -> FsResult<Dump> {
        let (mut dump, mut left) = (Dump::default(), vec![ROOT]);
        let mut seen = BTreeSet::new();
        while let Some(dir) = left.pop() {
            dump.inode(fs, dir)?;
            for text in names_in(fs, dir)? {
                let attr = fs.find(dir, &text)?;
                dump.0.insert(Key::Name(dir, text), attr.ino.get());
                if seen.insert(attr.ino) {
                    match attr.kind {
                        FileType::Directory => left.push(attr.ino),
                        _ => dump.inode(fs, attr.ino)?,
                    }
                }
                fs.forget(attr.ino, 1);
            }
        }
        for dictionary in fs.dictionaries().list()? {
            for key in 0..3 {
                if let Some(value) = fs.dictionaries().get(&dictionary, &[key])? {
                    dump.0.insert(Key::Pair(dictionary.clone(), Some(vec![key])), digest(&value));
                }
            }
            dump.0.insert(Key::Pair(dictionary, None), 1);
        }
        Ok(dump)
    }

    fn inode(&mut self, fs: &VarveFs, ino: InodeId) -> FsResult<()> {
        let attr = fs.getattr(ino)?;
        self.0.insert(Key::Mode(ino), u64::from(attr.perm));
        if attr.kind == FileType::Regular {
            let handle = fs.open(ino, READ)?.handle;
            let bytes = fs.read(ino, handle, 0, 1 << 20);
            fs.release(ino, handle)?;
            self.0.insert(Key::Bytes(ino), digest(&bytes?));
        }
        for attribute in XATTRS {
            match fs.getxattr(ino, attribute) {
                Ok(value) => drop(self.0.insert(Key::Xattr(ino, attribute.into()), digest(&value))),
                Err(FsError::NoXattr) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What both sides' changes since `base` come to; the facts that they changed differently are an error.
    pub(super) fn merged(base: &Dump, theirs: &Dump, ours: &Dump) -> Result<Dump, Vec<Key>> {
        let (mut merged, mut both) = (Dump::default(), Vec::new());
        let keys: BTreeSet<&Key> =
            [base, theirs, ours].into_iter().flat_map(|dump| dump.0.keys()).collect();
        for key in keys {
            let [b, t, o] = [base, theirs, ours].map(|dump| dump.0.get(key));
            let value = match () {
                // It neither makes nor drops any, and has none that was made anew.
                () if matches!(key, Key::Pair(of, _) if !ours.has_dictionary(of)) => t,
                () if o == b || o == t => t,
                () if t == b => o,
                () => {
                    both.push(key.clone());
                    continue;
                }
            };
            value.map(|value| merged.0.insert(key.clone(), *value));
        }
        if both.is_empty() { Ok(merged) } else { Err(both) }
    }

    pub(super) fn has_dictionary(&self, name: &[u8]) -> bool {
        self.0.contains_key(&Key::Pair(name.to_vec(), None))
    }

    /// The facts in which they differ.
    pub(super) fn differences<'a>(
        &'a self,
        other: &'a Dump,
    ) -> Vec<(&'a Key, Option<&'a u64>, Option<&'a u64>)> {
        let keys: BTreeSet<&Key> = self.0.keys().chain(other.0.keys()).collect();
        let values = |key: &'a Key| (key, self.0.get(key), other.0.get(key));
        keys.into_iter().map(values).filter(|(_, one, other)| one != other).collect()
    }
}
