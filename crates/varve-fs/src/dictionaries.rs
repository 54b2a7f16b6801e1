//! Dictionaries: pairs of keys and values that users keep in a store beside its files.
//!
//! 1. [`Dictionaries::create`] takes the lowest number that is free, empties its key space and names it in the key
//!    space [`varve_schema::DICTIONARIES`], durably.
//! 2. Changes to one dictionary are one batch of the store, so they are acknowledged, synced and recovered as those
//!    of files are.
//! 3. [`Dictionaries::remove`] marks the row as going, durably, empties the key space, and removes the row. A removal
//!    that a crash cut short is finished by the next mount.
//!
//! In a transaction ([`Dictionaries::within`]) pairs are read and changed in its own tree, so that they are committed or
//! dropped with its files. Names are those of the main tree: a transaction has the dictionaries that were there when it
//! began and still are; a serializable one has those that are there, and nobody makes or drops one that it has looked for until it ends.
//! Neither makes or drops any itself, as all have their numbers from one row of names.
//!
//! Invariant: a key space with pairs is named by one row. Costs: creating and removing cost the number of table files
//! of the dictionary, everything else what it reads or writes; names are kept in memory, at most
//! [`DICTIONARIES_MAX`].
//!
//! Source: KVFS thesis 3.1 and 3.3 (a key-value interface beside the file system, on the same store).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use varve_engine::{Batch, Direction, KeyRange, KeyspaceOptions, Pair, Store};
use varve_schema::{DICTIONARIES_MAX, DictionaryRow};
use varve_types::limits::KEY_BYTES_MAX;
use varve_types::{FileName, InodeId, KeyspaceId};
use varve_vfs::{FsError, FsResult};

use crate::epoch::Epoch;
use crate::error;
use crate::ids::IdAllocator;

/// The largest value of a pair, in bytes.
pub const PAIR_VALUE_BYTES_MAX: usize = 1 << 20;
/// What a pair counts in a page beside its bytes, so that many small ones take no more memory than few large ones.
const PAIR_OVERHEAD_BYTES: usize = 64;

/// A change of a pair: its key, and its value or nothing if it goes.
pub type PairChange = (Bytes, Option<Bytes>);

/// A part of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Pairs in the order of the scan.
    pub pairs: Vec<Pair>,
    /// Whether there are more after them.
    pub more: bool,
}

/// A dictionary in use.
#[derive(Clone, Copy, Debug)]
struct DictionaryInUse {
    number: u32,
    made: InodeId,
    pairs: KeyspaceId,
}

type Names = BTreeMap<Vec<u8>, DictionaryInUse>;

/// Which dictionaries of the main tree a transaction has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Seen {
    /// Those that were made before this epoch.
    Before(Epoch),
    /// All that are there, each name locked once it is looked for.
    Locked,
}

impl Seen {
    fn has(self, known: &DictionaryInUse) -> bool {
        match self {
            Seen::Before(epoch) => epoch.knows(known.made),
            Seen::Locked => true,
        }
    }
}

/// Keeps dictionaries from being made and dropped.
pub(crate) struct Held<'a>(RwLockReadGuard<'a, Option<Names>>);

impl Held<'_> {
    /// Those of the key spaces `changed`, of a transaction that has the dictionaries `seen`, that are no dictionary's any more, nor
    /// can become one as long as this is there.
    pub(crate) fn gone(&self, changed: &BTreeSet<KeyspaceId>, seen: Seen) -> Vec<KeyspaceId> {
        let known = self.0.iter().flat_map(Names::values).filter(|known| seen.has(known));
        let there: BTreeSet<KeyspaceId> = known.map(|known| known.pairs).collect();
        changed.difference(&there).copied().collect()
    }
}

/// Keeps dictionaries and their pairs as they are.
pub(crate) struct Stopped<'a>(
    #[allow(dead_code, reason = "a lock")] RwLockWriteGuard<'a, Option<Names>>,
);

/// See the module's comment.
#[derive(Debug)]
pub struct Dictionaries {
    store: Arc<dyn Store>,
    names: KeyspaceId,
    options: KeyspaceOptions,
    read_only: bool,
    ids: Arc<IdAllocator>,
    /// Those of the main tree, and which of them the transaction has that these are in, if they are in one.
    main: Option<(Arc<Dictionaries>, Seen)>,
    /// `None` until they are first asked for. Held for reading by each operation, so that none ends in a key space
    /// that has another owner by then.
    known: RwLock<Option<Names>>,
    /// They are others now.
    expired: AtomicBool,
}

/// How the pairs of dictionaries are kept.
pub(crate) fn pairs_options(compression: bool) -> KeyspaceOptions {
    KeyspaceOptions { prefixed: false, compressed: compression }
}

/// Why a pair or a name is none.
pub(crate) fn check_pair(key: &[u8], value: Option<&[u8]>) -> FsResult<()> {
    if key.len() > KEY_BYTES_MAX {
        return Err(FsError::Invalid("a key of more than 65536 bytes"));
    }
    if value.is_some_and(|value| value.len() > PAIR_VALUE_BYTES_MAX) {
        return Err(FsError::Invalid("a value of more than 1048576 bytes"));
    }
    Ok(())
}

/// The error of a row of [`DICTIONARIES`](varve_schema::DICTIONARIES) that cannot be read.
pub(crate) fn unreadable(name: &[u8], cause: &dyn std::fmt::Display) -> FsError {
    let name = name.escape_ascii();
    FsError::Storage(format!("dictionary {name} cannot be found: {cause}; run `varve fsck`"))
}

impl Dictionaries {
    /// Those of a store whose key space [`DICTIONARIES`](varve_schema::DICTIONARIES) is `names`.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        names: KeyspaceId,
        compression: bool,
        read_only: bool,
        ids: Arc<IdAllocator>,
    ) -> Dictionaries {
        Dictionaries {
            store,
            names,
            options: pairs_options(compression),
            read_only,
            ids,
            main: None,
            known: RwLock::new(None),
            expired: AtomicBool::new(false),
        }
    }

    /// The same as a transaction has them that has `seen`, and whose tree is `store`.
    pub(crate) fn within(self: &Arc<Self>, store: Arc<dyn Store>, seen: Seen) -> Dictionaries {
        let ids = Arc::clone(&self.ids);
        let of_store =
            Dictionaries::new(store, self.names, self.options.compressed, self.read_only, ids);
        Dictionaries { main: Some((Arc::clone(self), seen)), ..of_store }
    }

    /// The key space of the names.
    pub(crate) fn names(&self) -> KeyspaceId {
        self.names
    }

    fn writable(&self) -> FsResult<()> {
        if self.read_only { Err(FsError::ReadOnly) } else { Ok(()) }
    }

    fn changeable(&self) -> FsResult<()> {
        self.writable()?;
        match self.main {
            None => Ok(()),
            Some(_) => Err(FsError::Invalid(
                "dictionaries are made and dropped outside of transactions; name a directory of the mount itself, and no transaction",
            )),
        }
    }

    /// The key space with a number.
    pub(crate) fn pairs(&self, row: DictionaryRow) -> FsResult<KeyspaceId> {
        self.store.keyspace(&row.keyspace(), self.options).map_err(error::store)
    }

    /// Reads the names, and finishes removals.
    fn load(&self) -> FsResult<Names> {
        let rows = self.store.scan(self.names, KeyRange::all(), Direction::Forward);
        let mut names = Names::new();
        for row in rows.map_err(error::store)? {
            let (name, value) = row.map_err(error::store)?;
            let row = DictionaryRow::decode(&value).map_err(|cause| unreadable(&name, &cause))?;
            if !row.going {
                let DictionaryRow { number, made, .. } = row;
                names.insert(
                    name.to_vec(),
                    DictionaryInUse { number, made, pairs: self.pairs(row)? },
                );
            } else if !self.read_only {
                self.finish_removal(&name, row)?;
            }
        }
        Ok(names)
    }

    /// Has the names read again, after rows changed by another way. Whoever has them held goes on with what was.
    pub(crate) fn expire_names(&self) {
        self.expired.store(true, Ordering::Release);
    }

    /// The names, for reading. Whoever waits to change them does not stand in the way, as the commit of a transaction, which
    /// reads them, lets go of locks that such a one may wait for.
    fn known(&self) -> FsResult<RwLockReadGuard<'_, Option<Names>>> {
        if let Some((main, _)) = &self.main {
            return main.known();
        }
        let known = self.known.read_recursive();
        if known.is_some() && !self.expired.load(Ordering::Acquire) {
            return Ok(known);
        }
        drop(known);
        Ok(RwLockWriteGuard::downgrade(self.known_mut()?))
    }

    /// The names, for changing; read under the same lock, as nobody may take a name or number for free before.
    fn known_mut(&self) -> FsResult<RwLockWriteGuard<'_, Option<Names>>> {
        let mut known = self.known.write();
        if self.expired.swap(false, Ordering::AcqRel) || known.is_none() {
            *known = Some(self.load()?);
        }
        Ok(known)
    }

    /// Runs `with` on the key space of `name`, which stays its own meanwhile.
    fn with<T>(&self, name: &[u8], with: impl FnOnce(KeyspaceId) -> FsResult<T>) -> FsResult<T> {
        let known = self.known()?;
        if self.locks_names() {
            self.store.get(self.names, name).map_err(error::store)?;
        }
        let found = known.as_ref().and_then(|names| names.get(name));
        with(found.filter(|found| self.has(found)).ok_or(FsError::NotFound)?.pairs)
    }

    /// Whether a dictionary of the main tree is one here, too.
    fn has(&self, known: &DictionaryInUse) -> bool {
        self.main.as_ref().is_none_or(|(_, seen)| seen.has(known))
    }

    /// Whether reading the row of a name keeps it as it is.
    fn locks_names(&self) -> bool {
        matches!(self.main, Some((_, Seen::Locked)))
    }

    /// None is made or dropped as long as the guard is there.
    pub(crate) fn stand_still(&self) -> FsResult<Held<'_>> {
        self.known().map(Held)
    }

    /// The same, and no pair is read or changed either.
    pub(crate) fn stop(&self) -> FsResult<Stopped<'_>> {
        self.known_mut().map(Stopped)
    }

    /// The name of the dictionary whose pairs `keyspace` has, or had in `before`.
    pub(crate) fn name_of(&self, keyspace: KeyspaceId, before: &dyn Store) -> FsResult<String> {
        let shown = |name: &[u8]| name.escape_ascii().to_string();
        let rows = before.scan(self.names, KeyRange::all(), Direction::Forward);
        for row in rows.map_err(error::store)? {
            let (name, value) = row.map_err(error::store)?;
            let row = DictionaryRow::decode(&value).map_err(|cause| unreadable(&name, &cause))?;
            if self.pairs(row)? == keyspace {
                return Ok(shown(&name));
            }
        }
        Ok("that is gone".to_owned())
    }

    /// Makes an empty dictionary, durably. `Exists` if there is one of that name.
    pub fn create(&self, name: &[u8]) -> FsResult<()> {
        self.changeable()?;
        if name.is_empty() {
            return Err(FsError::Invalid("the name of a dictionary cannot be empty"));
        }
        FileName::new(name)?;
        let mut known = self.known_mut()?;
        let names = known.get_or_insert_default();
        if names.contains_key(name) {
            return Err(FsError::Exists);
        }
        let used: BTreeSet<u32> = names.values().map(|known| known.number).collect();
        let Some(number) = (0..DICTIONARIES_MAX).find(|number| !used.contains(number)) else {
            return Err(FsError::NoSpace(format!(
                "a store has at most {DICTIONARIES_MAX} dictionaries"
            )));
        };
        let made = self.ids.allocate()?;
        let row = DictionaryRow { number, going: false, made };
        let pairs = self.pairs(row)?;
        self.store.clear_keyspace(pairs).map_err(error::store)?;
        self.put_row(name, row, false)?;
        names.insert(name.to_vec(), DictionaryInUse { number, made, pairs });
        Ok(())
    }

    /// Removes a dictionary with all of its pairs, durably.
    pub fn remove(&self, name: &[u8]) -> FsResult<()> {
        self.changeable()?;
        let mut known = self.known_mut()?;
        let names = known.get_or_insert_default();
        let was = *names.get(name).ok_or(FsError::NotFound)?;
        let DictionaryInUse { number, made, .. } = was;
        let row = DictionaryRow { number, going: true, made };
        self.put_row(name, row, true)?;
        names.remove(name);
        let finished = self.finish_removal(name, row);
        match finished {
            Err(FsError::Blocked(_)) => {
                // Transactions have locked pairs of it, of which none has gone: it stays as it was.
                if let Err(error) = self.put_row(name, DictionaryRow { going: false, ..row }, true)
                {
                    *known = None;
                    return Err(error);
                }
                names.insert(name.to_vec(), was);
            }
            // The number stays taken until the removal is finished, at the next question.
            Err(_) => *known = None,
            Ok(()) => {}
        }
        finished
    }

    fn finish_removal(&self, name: &[u8], row: DictionaryRow) -> FsResult<()> {
        self.store.clear_keyspace(self.pairs(row)?).map_err(error::store)?;
        let mut batch = Batch::new();
        batch.delete(self.names, Bytes::copy_from_slice(name));
        batch.reclaims_space();
        self.store.write(batch).map_err(error::store)
    }

    /// Writes the row of a dictionary, durably. What a removal writes takes its room from what frees some.
    fn put_row(&self, name: &[u8], row: DictionaryRow, is_removal: bool) -> FsResult<()> {
        let mut batch = Batch::new();
        batch.put(self.names, Bytes::copy_from_slice(name), row.encode());
        if is_removal {
            batch.reclaims_space();
        }
        self.store.write(batch).and_then(|()| self.store.sync()).map_err(error::store)
    }

    /// The names, in the order of their bytes.
    pub fn list(&self) -> FsResult<Vec<Vec<u8>>> {
        let known = self.known()?;
        if self.locks_names() {
            let mut rows = self.store.keys(self.names, KeyRange::all()).map_err(error::store)?;
            rows.try_for_each(|row| row.map(drop)).map_err(error::store)?;
        }
        let here = known.iter().flatten().filter(|(_, known)| self.has(known));
        Ok(here.map(|(name, _)| name.clone()).collect())
    }

    /// The value of `key`.
    pub fn get(&self, name: &[u8], key: &[u8]) -> FsResult<Option<Bytes>> {
        self.with(name, |pairs| self.store.get(pairs, key).map_err(error::store))
    }

    /// Makes all `changes` or none. When it returns they survive the death of the process, and a power cut once
    /// [`Dictionaries::sync`] returns, or within 5 seconds.
    pub fn change(&self, name: &[u8], changes: Vec<PairChange>) -> FsResult<()> {
        self.writable()?;
        for (key, value) in &changes {
            check_pair(key, value.as_deref())?;
        }
        self.with(name, |pairs| {
            let mut batch = Batch::new();
            if changes.iter().all(|(_, value)| value.is_none()) {
                batch.reclaims_space();
            }
            for (key, value) in changes {
                match value {
                    Some(value) => batch.put(pairs, key, value),
                    None => batch.delete(pairs, key),
                }
            }
            self.store.write(batch).map_err(error::store)
        })
    }

    /// Pairs of `range` in `direction` as of now, until their keys and values have `bytes_max` bytes, each pair some more; at least one.
    pub fn scan(
        &self,
        name: &[u8],
        range: KeyRange,
        direction: Direction,
        bytes_max: usize,
    ) -> FsResult<Page> {
        self.with(name, |pairs| {
            let mut page = Page::default();
            let mut bytes = 0;
            for pair in self.store.scan(pairs, range, direction).map_err(error::store)? {
                let (key, value) = pair.map_err(error::store)?;
                bytes += key.len() + value.len() + PAIR_OVERHEAD_BYTES;
                if bytes > bytes_max && !page.pairs.is_empty() {
                    page.more = true;
                    break;
                }
                page.pairs.push((key, value));
            }
            Ok(page)
        })
    }

    /// Makes everything durable that was changed before, in files too.
    pub fn sync(&self) -> FsResult<()> {
        self.store.sync().map_err(error::store)
    }
}
