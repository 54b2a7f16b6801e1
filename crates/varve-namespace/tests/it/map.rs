//! Rows in a map, and an executor that locks no more than what operations ask for.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use bytes::Bytes;
use varve_namespace::directory::apply_charge;
use varve_namespace::{Changes, Decision, Effect, Locked, Need, Outcome, Rows, Space, Stop};
use varve_schema::key::MetaRow;
use varve_schema::{
    Content, DirInfo, EntryRow, FileKind, Inode, InodeLocation, NameHasher, ParentRow, RowKey,
    Times, Usage, XattrRow, decode_inode_row, encode_inode_row,
};
use varve_types::{FileFlags, InodeId, Timestamp};
use varve_vfs::{FsError, FsResult};

/// How often an operation may begin again.
const TRIES_MAX: usize = 20;

/// A file system without a machine.
pub(crate) struct Map {
    pub(crate) rows: BTreeMap<(Space, RowKey), Bytes>,
    pub(crate) places: HashMap<InodeId, InodeLocation>,
    pub(crate) open: HashSet<InodeId>,
    /// Open inodes must be found by who knows only where they were.
    pub(crate) finds_open: bool,
    hasher: NameHasher,
    next_ino: u64,
    clock: u64,
    /// Rows that are locked for the operation under way.
    locked: RefCell<BTreeSet<RowKey>>,
    tree: Cell<bool>,
    /// Inodes that the operation has read in this try and not claimed before.
    read: RefCell<BTreeSet<InodeId>>,
    claimed: RefCell<BTreeSet<InodeId>>,
    /// A directory that it claimed when it had read it already.
    claimed_late: Cell<Option<InodeId>>,
    /// It answers although rows are not locked: a fault.
    pub(crate) forgets_locks: bool,
}

impl Map {
    /// An empty file system, in which names of one directory often share a row.
    pub(crate) fn new() -> Map {
        let mut map = Map {
            rows: BTreeMap::new(),
            places: HashMap::from([(InodeId::ROOT, InodeLocation::Own)]),
            open: HashSet::new(),
            finds_open: false,
            hasher: NameHasher::new(7, 3),
            next_ino: InodeId::FIRST_FREE.get(),
            clock: 0,
            locked: RefCell::default(),
            tree: Cell::new(false),
            read: RefCell::default(),
            claimed: RefCell::default(),
            claimed_late: Cell::new(None),
            forgets_locks: false,
        };
        let root = Inode {
            ino: InodeId::ROOT,
            kind: FileKind::Directory,
            perm: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            times: Times::all(Timestamp::new(0, 0).unwrap()),
            has_xattrs: false,
            flags: FileFlags::default(),
            home: None,
            content: Content::Directory(DirInfo::new(InodeId::ROOT, None)),
        };
        map.put_inode(&root);
        map
    }

    fn put_inode(&mut self, inode: &Inode) {
        let key = (Space::Meta, RowKey::inode(inode.ino));
        self.rows.insert(key, encode_inode_row(inode).into());
    }

    /// The inode, wherever it is.
    pub(crate) fn find(&self, ino: InodeId) -> Option<Inode> {
        match self.places.get(&ino)? {
            InodeLocation::Own => self.own(ino),
            InodeLocation::Entry { key, slot } => match &self.names(*key).at(*slot)?.body {
                varve_schema::Body::Inline(inode) if inode.ino == ino => Some(inode.clone()),
                _ => None,
            },
            InodeLocation::Detached(_) => None,
        }
    }

    pub(crate) fn own(&self, ino: InodeId) -> Option<Inode> {
        let row = self.rows.get(&(Space::Meta, RowKey::inode(ino)))?;
        Some(decode_inode_row(row).unwrap())
    }

    pub(crate) fn names(&self, key: RowKey) -> EntryRow {
        let row = self.rows.get(&(Space::Meta, key));
        row.map_or_else(EntryRow::default, |row| EntryRow::decode(row).unwrap())
    }

    /// Lets `operation` decide, with `first` locked from the first try on, and writes what it decides.
    pub(crate) fn run<T>(
        &mut self,
        first: &[RowKey],
        operation: impl Fn(&Map, &mut Decision, Timestamp) -> Outcome<T>,
    ) -> FsResult<T> {
        *self.locked.get_mut() = first.iter().copied().collect();
        self.tree.set(false);
        self.clock += 1;
        let now = Timestamp::new(self.clock as i64, 0).unwrap();
        for _ in 0..TRIES_MAX {
            let mut decision = Decision::default();
            self.read.get_mut().clear();
            self.claimed.get_mut().clear();
            self.claimed_late.set(None);
            match operation(self, &mut decision, now) {
                Ok(decided) => {
                    assert_eq!(self.claimed_late.get(), None, "it was read before it was claimed");
                    self.apply(decision.changes);
                    decision.effects.into_iter().for_each(|effect| self.follow(effect));
                    return Ok(decided);
                }
                Err(Stop::Refused(error)) => return Err(error),
                Err(Stop::Needs(Need::Rows(keys))) => {
                    assert!(!keys.iter().all(|key| self.locked.borrow().contains(key)));
                    self.locked.get_mut().extend(keys);
                }
                Err(Stop::Needs(Need::Tree)) => self.tree.set(true),
                Err(Stop::Needs(need)) => panic!("nothing here needs {need:?}"),
            }
        }
        panic!("an operation began {TRIES_MAX} times");
    }

    /// Writes changes; every row of names and inodes that is written must be locked.
    fn apply(&mut self, mut changes: Changes) {
        let locked = self.locked.borrow().clone();
        for (dir, change) in std::mem::take(&mut changes.charges) {
            assert!(locked.contains(&RowKey::inode(dir)), "directory {dir} is charged, not locked");
            let mut inode = match changes.dirs.iter().find(|known| known.ino == dir) {
                Some(known) => known.clone(),
                None => self.own(dir).unwrap(),
            };
            apply_charge(&mut inode, change).unwrap();
            changes.put_dir(inode);
        }
        let before = changes.writes.len();
        changes.put_dirs();
        assert!(changes.writes.len() - before == changes.dirs.len());
        for write in changes.writes {
            let is_guarded = write.space == Space::Meta
                && matches!(write.key.meta_kind(), MetaRow::Inode(_) | MetaRow::Entry(..));
            let excused = match write.key.meta_kind() {
                MetaRow::Inode(ino) => self.begins(ino, &locked),
                _ => false,
            };
            let key = write.key;
            assert!(
                !is_guarded || excused || locked.contains(&key),
                "row ({}, {:#x}) is written, not locked",
                key.prefix(),
                key.suffix()
            );
            match write.value {
                Some(value) => drop(self.rows.insert((write.space, key), value)),
                None => drop(self.rows.remove(&(write.space, key))),
            }
        }
    }

    /// Whether `ino` has no row of its own yet, and nobody else can give it one: it is new, or in a row of names that is locked.
    fn begins(&self, ino: InodeId, locked: &BTreeSet<RowKey>) -> bool {
        let guarded = match self.places.get(&ino) {
            Some(InodeLocation::Entry { key, .. }) => locked.contains(key),
            Some(_) => false,
            None => ino.get() == self.next_ino,
        };
        guarded && self.own(ino).is_none()
    }

    fn follow(&mut self, effect: Effect) {
        match effect {
            Effect::Moved { ino, to } => drop(self.places.insert(ino, to)),
            Effect::Orphaned(ino) | Effect::Named(ino) => {
                self.places.insert(ino, InodeLocation::Own);
            }
            Effect::Gone { inode, .. } => drop(self.places.remove(&inode.ino)),
        }
    }

    fn check_locked(&self, key: RowKey) -> Outcome<()> {
        match self.forgets_locks || self.locked.borrow().contains(&key) {
            true => Ok(()),
            false => Err(Stop::row(key)),
        }
    }
}

impl Rows for Map {
    type Error = Stop;

    fn hasher(&self) -> &NameHasher {
        &self.hasher
    }

    fn obeys_lists(&self) -> bool {
        true
    }

    fn peek_inode(&self, ino: InodeId) -> Outcome<Option<Inode>> {
        Ok(self.own(ino))
    }

    fn xattr_row(&self, key: RowKey) -> Outcome<XattrRow> {
        let row = self.rows.get(&(Space::Data, key));
        Ok(row.map_or_else(XattrRow::default, |row| XattrRow::decode(row).unwrap()))
    }

    fn xattr_rows(
        &self,
        ino: InodeId,
        visit: &mut dyn FnMut(RowKey, XattrRow) -> bool,
    ) -> Outcome<()> {
        let first = (Space::Data, RowKey::xattr(ino, 0));
        for ((_, key), row) in self.rows.range(first..) {
            if key.prefix() != ino.get() || !visit(*key, XattrRow::decode(row).unwrap()) {
                break;
            }
        }
        Ok(())
    }

    fn xattr_keys(&self, ino: InodeId, visit: &mut dyn FnMut(RowKey) -> bool) -> Outcome<()> {
        self.xattr_rows(ino, &mut |key, _| visit(key))
    }

    fn parent_row(&self, key: RowKey) -> Outcome<ParentRow> {
        let row = self.rows.get(&(Space::Meta, key));
        Ok(row.map_or_else(ParentRow::default, |row| ParentRow::decode(row).unwrap()))
    }

    fn parent_rows(
        &self,
        key: RowKey,
        visit: &mut dyn FnMut(RowKey, ParentRow) -> bool,
    ) -> Outcome<()> {
        for ((_, at), row) in self.rows.range((Space::Meta, key)..) {
            let is_one =
                at.prefix() == key.prefix() && matches!(at.meta_kind(), MetaRow::Parent(..));
            if !is_one || !visit(*at, ParentRow::decode(row).unwrap()) {
                break;
            }
        }
        Ok(())
    }
}

impl Locked for Map {
    fn inode(&self, ino: InodeId) -> Outcome<Option<Inode>> {
        self.check_locked(RowKey::inode(ino))?;
        if !self.claimed.borrow().contains(&ino) {
            self.read.borrow_mut().insert(ino);
        }
        Ok(self.own(ino))
    }

    fn entry_row(&self, key: RowKey) -> Outcome<EntryRow> {
        self.check_locked(key)?;
        Ok(self.names(key))
    }

    fn not_a_directory(&self, ino: InodeId) -> FsError {
        if self.places.contains_key(&ino) { FsError::NotDirectory } else { FsError::NotFound }
    }

    fn new_ino(&self) -> Outcome<InodeId> {
        Ok(InodeId::new(self.next_ino))
    }

    fn place(&self, ino: InodeId) -> Outcome<InodeLocation> {
        Ok(self.places.get(&ino).cloned().unwrap_or(InodeLocation::Own))
    }

    fn must_outlive_its_name(&self, ino: InodeId, _has_more_rows: bool) -> Outcome<bool> {
        Ok(self.open.contains(&ino))
    }

    fn is_linkable(&self, _ino: InodeId) -> bool {
        false
    }

    fn must_be_found(&self, ino: InodeId) -> bool {
        self.finds_open && self.open.contains(&ino)
    }

    fn tree_stands_still(&self) -> bool {
        self.tree.get()
    }

    fn all_rows_are_locked(&self) -> bool {
        false
    }

    fn crosses_limits(&self, _from: InodeId, _to: InodeId) -> Outcome<bool> {
        Ok(false)
    }

    fn usage_below(&self, dir: InodeId) -> Outcome<Usage> {
        match self.own(dir).map(|inode| inode.content) {
            Some(Content::Directory(info)) => Ok(info.usage),
            _ => Err(FsError::NotFound.into()),
        }
    }

    fn claim_directory(&self, dir: InodeId) -> Outcome<()> {
        if self.read.borrow().contains(&dir) {
            self.claimed_late.set(Some(dir));
        }
        self.claimed.borrow_mut().insert(dir);
        self.check_locked(RowKey::inode(dir))
    }

    fn check_written_elsewhere(&self, _inode: &Inode) -> Outcome<()> {
        Ok(())
    }

    fn check_none_written_elsewhere(&self, _row: &EntryRow) -> Outcome<()> {
        Ok(())
    }

    fn refresh_from_object(&self, _inode: &mut Inode) {}

    fn object_bytes(&self, _ino: InodeId) -> Outcome<u64> {
        Ok(0)
    }
}

impl Map {
    /// The id of the inode that is made next.
    pub(crate) fn next_ino(&self) -> InodeId {
        InodeId::new(self.next_ino)
    }

    /// The next inode gets another id.
    pub(crate) fn used_ino(&mut self) {
        self.next_ino += 1;
    }
}
