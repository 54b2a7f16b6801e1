//! The files and directories of a store, as its records make them.
//!
//! 1. A directory is read from its table when it is first looked at, and may be forgotten when it has not changed.
//! 2. [`Tree::apply`] does one change of a record. A live store does the same changes first and records them then.
//! 3. [`Tree::save`] makes tables of the directories that changed. Those that did not keep theirs.
//!
//! Invariant: what a change leaves behind is in [`Tree::garbage`] once, and nothing else refers to it, except for readers
//! of earlier states.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use varve_env::FileKind;
use varve_types::Timestamp;

use crate::blocks;
use crate::extents::{Extent, Extents, ObjectId, Source};
use crate::node::{Meta, Node};
use crate::record::{
    Change, Garbage, GarbageKind, Table, TableEntry, data_name, decode, dir_name, encode, puts_of,
};
use crate::requests::Requests;

/// The most bytes of a table that is read: a directory of some millions of names.
const TABLE_BYTES_MAX: u64 = 1 << 30;

/// The files of a store.
#[derive(Debug)]
pub(crate) struct Tree {
    requests: Arc<Requests>,
    root: Dir,
    /// The record that what is left behind waits for, and the time: for [`Tree::garbage`].
    pub(crate) seq: u64,
    pub(crate) at: i64,
    pub(crate) garbage: Vec<Garbage>,
    /// Names in memory.
    loaded: usize,
}

#[derive(Debug)]
struct Dir {
    /// `None` if its table was not read.
    entries: Option<BTreeMap<String, Entry>>,
    /// Its table as it was saved last; `None` if it was empty, or never saved.
    stored: Option<ObjectId>,
    changed: bool,
}

#[derive(Debug)]
enum Entry {
    Dir(Dir),
    File(Arc<Node>),
}

/// What a path stands for.
#[derive(Debug)]
pub(crate) enum Found {
    Dir,
    File(Arc<Node>),
}

/// Objects that a save makes.
#[derive(Debug, Default)]
pub(crate) struct Saved {
    store: u128,
    /// By name.
    pub(crate) objects: Vec<(String, Bytes)>,
    /// What is read as this data until it is there.
    pub(crate) staged: Vec<(ObjectId, Bytes)>,
}

impl Dir {
    fn empty() -> Dir {
        Dir { entries: Some(BTreeMap::new()), stored: None, changed: true }
    }

    fn saved(table: Option<ObjectId>) -> Dir {
        let entries = table.is_none().then(BTreeMap::new);
        Dir { entries, stored: table, changed: false }
    }

    fn load(&mut self, requests: &Requests, path: &str) -> io::Result<usize> {
        if self.entries.is_some() {
            return Ok(0);
        }
        let Some(id) = self.stored else {
            self.entries = Some(BTreeMap::new());
            return Ok(0);
        };
        let entries = load_table(requests, id, path)?;
        let count = entries.len();
        self.entries = Some(entries);
        Ok(count)
    }
}

fn load_table(
    requests: &Requests,
    id: ObjectId,
    path: &str,
) -> io::Result<BTreeMap<String, Entry>> {
    let name = dir_name(id);
    let damaged = |what: String| {
        let address = requests.address();
        let text = format!("{name} of {address}, the names in /{path}, is damaged: {what}");
        io::Error::new(io::ErrorKind::InvalidData, text)
    };
    let bytes = requests.read(&name, None)?;
    if bytes.len() as u64 > TABLE_BYTES_MAX {
        return Err(damaged(format!("{} bytes are too many", bytes.len())));
    }
    let Table(rows) = decode(&name, &bytes).map_err(damaged)?;
    let mut entries = BTreeMap::new();
    for (name, row) in rows {
        let entry = match row {
            TableEntry::Dir(table) => Entry::Dir(Dir::saved(table)),
            TableEntry::File { len, accessed, modified, puts } => {
                let mut extents = Extents::default();
                for put in puts {
                    let (offset, extent) =
                        put.into_extent().map_err(|what| damaged(format!("{name}: {what}")))?;
                    extents.put(offset, extent);
                }
                let (accessed, modified) = (accessed.into(), modified.into());
                let meta = Meta { len, accessed, modified, extents };
                Entry::File(Arc::new(Node::new(joined(path, &name), meta)))
            }
        };
        entries.insert(name, entry);
    }
    Ok(entries)
}

fn joined(dir: &str, name: &str) -> String {
    if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") }
}

/// The directory of a path, and the name in it.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

fn not_found() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl Tree {
    /// The tree whose root has the given table, after the record `seq`.
    pub(crate) fn new(
        requests: Arc<Requests>,
        table: Option<ObjectId>,
        seq: u64,
        garbage: Vec<Garbage>,
    ) -> Tree {
        Tree { requests, root: Dir::saved(table), seq, at: 0, garbage, loaded: 0 }
    }

    /// The directory `path`; `change` if it, and so all above it, will change.
    fn dir(&mut self, path: &str, change: bool) -> io::Result<&mut BTreeMap<String, Entry>> {
        let mut dir = &mut self.root;
        self.loaded += dir.load(&self.requests, "")?;
        dir.changed |= change;
        let mut end = 0;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            end = if end == 0 { name.len() } else { end + 1 + name.len() };
            let entries = dir.entries.as_mut().ok_or_else(not_found)?;
            dir = match entries.get_mut(name) {
                Some(Entry::Dir(dir)) => dir,
                Some(Entry::File(_)) => return Err(io::ErrorKind::NotADirectory.into()),
                None => return Err(not_found()),
            };
            self.loaded += dir.load(&self.requests, &path[..end])?;
            dir.changed |= change;
        }
        dir.entries.as_mut().ok_or_else(not_found)
    }

    pub(crate) fn find(&mut self, path: &str) -> io::Result<Found> {
        if path.is_empty() {
            return Ok(Found::Dir);
        }
        let (dir, name) = split(path);
        match self.dir(dir, false)?.get(name) {
            Some(Entry::Dir(_)) => Ok(Found::Dir),
            Some(Entry::File(node)) => Ok(Found::File(Arc::clone(node))),
            None => Err(not_found()),
        }
    }

    pub(crate) fn file(&mut self, path: &str) -> io::Result<Arc<Node>> {
        match self.find(path)? {
            Found::File(node) => Ok(node),
            Found::Dir => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    pub(crate) fn list(&mut self, path: &str) -> io::Result<Vec<(String, FileKind)>> {
        let kind = |entry: &Entry| match entry {
            Entry::Dir(_) => FileKind::Dir,
            Entry::File(_) => FileKind::File,
        };
        let entries = self.dir(path, false)?;
        Ok(entries.iter().map(|(name, entry)| (name.clone(), kind(entry))).collect())
    }

    fn insert(&mut self, path: &str, entry: Entry) -> io::Result<()> {
        let (dir, name) = split(path);
        // Looked at first, so that a refusal changes nothing.
        if name.is_empty() || self.dir(dir, false)?.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.dir(dir, true)?.insert(name.to_owned(), entry);
        self.loaded += 1;
        Ok(())
    }

    fn take(&mut self, path: &str) -> io::Result<Entry> {
        let (dir, name) = split(path);
        let entry = self.dir(dir, true)?.remove(name).ok_or_else(not_found)?;
        self.loaded = self.loaded.saturating_sub(1);
        Ok(entry)
    }

    pub(crate) fn make_dir(&mut self, path: &str) -> io::Result<()> {
        self.insert(path, Entry::Dir(Dir::empty()))
    }

    pub(crate) fn remove_dir(&mut self, path: &str) -> io::Result<()> {
        match self.find(path)? {
            Found::File(_) => return Err(io::ErrorKind::NotADirectory.into()),
            Found::Dir if path.is_empty() => return Err(io::ErrorKind::InvalidInput.into()),
            Found::Dir if !self.dir(path, false)?.is_empty() => {
                return Err(io::ErrorKind::DirectoryNotEmpty.into());
            }
            Found::Dir => {}
        }
        if let Entry::Dir(Dir { stored: Some(id), .. }) = self.take(path)? {
            self.leave(GarbageKind::Dir(id));
        }
        Ok(())
    }

    pub(crate) fn make(&mut self, path: &str, now: Timestamp) -> io::Result<Arc<Node>> {
        let node = Arc::new(Node::new(path.to_owned(), Meta::empty(now)));
        self.insert(path, Entry::File(Arc::clone(&node)))?;
        Ok(node)
    }

    pub(crate) fn remove(&mut self, path: &str) -> io::Result<()> {
        self.file(path)?;
        if let Entry::File(node) = self.take(path)? {
            self.unlink(&node);
        }
        Ok(())
    }

    fn unlink(&mut self, node: &Node) {
        let mut state = node.lock();
        state.path = None;
        if state.handles == 0 {
            let objects = state.own_objects();
            drop(state);
            self.leave_data(objects);
        }
    }

    pub(crate) fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        if from == to {
            return self.find(from).map(drop);
        }
        let moved = self.find(from)?;
        let (dir, name) = split(to);
        let is_below = to.strip_prefix(from).is_some_and(|rest| rest.starts_with('/'));
        if name.is_empty() || from.is_empty() || is_below {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        match (self.dir(dir, false)?.get(name), &moved) {
            (None, _) | (Some(Entry::File(_)), Found::File(_)) => {}
            (Some(Entry::Dir(_)), Found::File(_)) => {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            (Some(Entry::File(_)), Found::Dir) => {
                return Err(io::ErrorKind::NotADirectory.into());
            }
            (Some(Entry::Dir(_)), Found::Dir) => self.remove_dir(to)?,
        }
        let mut entry = self.take(from)?;
        set_path(&mut entry, to);
        if let Some(Entry::File(was)) = self.dir(dir, true)?.insert(name.to_owned(), entry) {
            self.unlink(&was);
        } else {
            self.loaded += 1;
        }
        Ok(())
    }

    /// A new file `to` with the bytes that the record of `from` has: what was written to it since must be recorded first.
    pub(crate) fn link(&mut self, from: &str, to: &str) -> io::Result<()> {
        let node = self.file(from)?;
        let mut state = node.lock();
        state.share();
        let copy = Arc::new(Node::new(to.to_owned(), state.base.clone()));
        drop(state);
        self.dir(split(from).0, true)?;
        self.insert(to, Entry::File(copy))
    }

    /// Marks the objects of a file as shared.
    pub(crate) fn share(&mut self, path: &str) -> io::Result<()> {
        self.file(path)?.lock().share();
        self.dir(split(path).0, true).map(drop)
    }

    /// Does a change of a record.
    pub(crate) fn apply(&mut self, change: &Change) -> io::Result<()> {
        match change {
            Change::MakeDir(path) => self.make_dir(path),
            Change::RemoveDir(path) => self.remove_dir(path),
            Change::Make(path, time) => self.make(path, (*time).into()).map(drop),
            Change::Remove(path) => self.remove(path),
            Change::Rename { from, to } => self.rename(from, to),
            Change::Link { from, to } => self.link(from, to),
            Change::Share(path) => self.share(path),
            Change::Content { path, cut, len, accessed, modified, puts } => {
                if puts.iter().any(|put| put.clone().into_extent().is_err()) {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                let node = self.file(path)?;
                let mut left = Vec::new();
                let mut state = node.lock();
                state.base.apply(*cut, puts, &mut left);
                state.base.len = *len;
                state.base.accessed = (*accessed).into();
                state.base.modified = (*modified).into();
                drop(state);
                self.changed(path)?;
                self.leave_data(left);
                Ok(())
            }
        }
    }

    /// Notes that the file `path` has changed.
    pub(crate) fn changed(&mut self, path: &str) -> io::Result<()> {
        self.dir(split(path).0, true).map(drop)
    }

    pub(crate) fn leave_data(&mut self, objects: Vec<ObjectId>) {
        objects.into_iter().for_each(|id| self.leave(GarbageKind::Data(id)));
    }

    pub(crate) fn leave(&mut self, what: GarbageKind) {
        self.garbage.push(Garbage { seq: self.seq, at: self.at, what });
    }

    /// Notes that what record `seq` and later ones leave behind is needed until `at`, when that record came into its place.
    pub(crate) fn left_later(&mut self, seq: u64, at: i64) {
        let of_it = self.garbage.iter_mut().rev().take_while(|garbage| garbage.seq >= seq);
        of_it.for_each(|garbage| garbage.at = garbage.at.max(at));
    }

    /// Makes tables of the directories that changed, and objects of the bytes that only the journal has. Returns the
    /// table of the root.
    pub(crate) fn save(
        &mut self,
        store: u128,
        id: &mut dyn FnMut() -> ObjectId,
    ) -> (Option<ObjectId>, Saved) {
        let (mut saved, mut left) = (Saved { store, ..Saved::default() }, Vec::new());
        let table = save_dir(&mut self.root, id, &mut saved, &mut left);
        left.into_iter().for_each(|id| self.leave(GarbageKind::Dir(id)));
        (table, saved)
    }

    /// Gives `visit` the name of every object that a directory or a file needs. What is not in memory is read, and not kept.
    pub(crate) fn each_object(&mut self, visit: &mut dyn FnMut(String)) -> io::Result<()> {
        each_object(&self.requests, &self.root, "", visit)
    }

    /// Forgets directories that are as their tables say and have no open file, if more than `keep` names are in memory.
    pub(crate) fn forget(&mut self, keep: usize) {
        if self.loaded > keep {
            self.loaded = forget_dir(&mut self.root);
        }
    }
}

fn each_object(
    requests: &Requests,
    dir: &Dir,
    path: &str,
    visit: &mut dyn FnMut(String),
) -> io::Result<()> {
    if let Some(id) = dir.stored {
        visit(dir_name(id));
    }
    let read = match (&dir.entries, dir.stored) {
        (None, Some(id)) => load_table(requests, id, path)?,
        _ => BTreeMap::new(),
    };
    for (name, entry) in dir.entries.as_ref().unwrap_or(&read) {
        match entry {
            Entry::Dir(below) => each_object(requests, below, &joined(path, name), visit)?,
            Entry::File(node) => {
                node.lock().objects().into_iter().for_each(|id| visit(data_name(id)));
            }
        }
    }
    Ok(())
}

fn set_path(entry: &mut Entry, path: &str) {
    match entry {
        Entry::File(node) => node.lock().path = Some(path.to_owned()),
        Entry::Dir(dir) => {
            for (name, entry) in dir.entries.iter_mut().flatten() {
                set_path(entry, &joined(path, name));
            }
        }
    }
}

fn save_dir(
    dir: &mut Dir,
    id: &mut dyn FnMut() -> ObjectId,
    saved: &mut Saved,
    left: &mut Vec<ObjectId>,
) -> Option<ObjectId> {
    let (true, Some(entries)) = (dir.changed, &mut dir.entries) else { return dir.stored };
    let mut rows = Vec::with_capacity(entries.len());
    for (name, entry) in entries.iter_mut() {
        let row = match entry {
            Entry::Dir(below) => TableEntry::Dir(save_dir(below, id, saved, left)),
            Entry::File(node) => {
                let base = &mut node.lock().base;
                pack(base, id, saved);
                TableEntry::File {
                    len: base.len,
                    accessed: base.accessed.into(),
                    modified: base.modified.into(),
                    puts: puts_of(&base.extents),
                }
            }
        };
        rows.push((name.clone(), row));
    }
    left.extend(dir.stored.take());
    dir.changed = false;
    if !rows.is_empty() {
        let id = id();
        let name = dir_name(id);
        saved.objects.push((name.clone(), encode(&name, &Table(rows))));
        dir.stored = Some(id);
    }
    dir.stored
}

/// Makes one object of the bytes of a file that only the journal has.
fn pack(base: &mut Meta, id: &mut dyn FnMut() -> ObjectId, saved: &mut Saved) {
    let mut parts = Vec::new();
    let mut object = None;
    let mut from = 0;
    for (_, extent) in base.extents.iter_mut() {
        let Extent { len, source } = extent;
        let Source::Memory(bytes) = source else { continue };
        let id = *object.get_or_insert_with(&mut *id);
        parts.push(bytes.clone());
        *source = Source::Object { id, from, shared: false };
        from += *len;
    }
    if let Some(id) = object {
        saved.objects.push((data_name(id), blocks::encode(saved.store, id, &parts)));
        saved.staged.push((id, parts.concat().into()));
    }
}

/// Returns how many names are left in memory.
fn forget_dir(dir: &mut Dir) -> usize {
    let Some(entries) = &mut dir.entries else { return 0 };
    let (mut names, mut below, mut is_used) = (entries.len(), 0, dir.changed);
    for entry in entries.values_mut() {
        match entry {
            Entry::Dir(inner) => {
                below += forget_dir(inner);
                is_used |= inner.entries.is_some() && inner.stored.is_some() || inner.changed;
            }
            Entry::File(node) => is_used |= Arc::strong_count(node) > 1,
        }
    }
    if !is_used && dir.stored.is_some() {
        dir.entries = None;
        (names, below) = (0, 0);
    }
    names + below
}
