//! The directory `.varve` in the root of a mount, through which its views are reached. No row stands for it: its
//! directories have made-up ids, and listings of the root do not show it.
//!
//! ```text
//! .varve/snapshots/NAME      a named snapshot, read-only
//! .varve/txn/ID              a transaction that is open
//! ```
//!
//! Behind each of the lowest names belongs a mount of its own, which the front end attaches when somebody comes by
//! ([`VarveFs::do_arrive`]).

use std::collections::HashMap;

use parking_lot::Mutex;
use varve_schema::{Content, DirInfo, FileKind, Inode, Times};
use varve_types::{FileName, InodeId, Timestamp};
use varve_vfs::{Attr, DirEntry, Entry, FileType, FsError, FsResult};

use super::{ViewKind, ViewName};
use crate::fs::VarveFs;

/// Name of the directory in the root.
const TOP_NAME: &[u8] = b".varve";

const TOP: InodeId = InodeId::FIRST_MADE_UP;
const SNAPSHOTS: InodeId = InodeId::new(TOP.get() + 1);
const TRANSACTIONS: InodeId = InodeId::new(TOP.get() + 2);
/// The first id of a place for a mount.
const FIRST_PLACE: InodeId = InodeId::new(TOP.get() + 16);

/// The ids made up for views so far. An id stays with its name as long as the store is open.
#[derive(Debug, Default)]
pub(super) struct Places {
    table: Mutex<(HashMap<ViewName, InodeId>, HashMap<InodeId, ViewName>)>,
}

impl Places {
    fn id(&self, name: &ViewName) -> InodeId {
        let (ids, names) = &mut *self.table.lock();
        if let Some(id) = ids.get(name) {
            return *id;
        }
        let id = InodeId::new(FIRST_PLACE.get() + ids.len() as u64);
        ids.insert(name.clone(), id);
        names.insert(id, name.clone());
        id
    }

    pub(super) fn name(&self, id: InodeId) -> Option<ViewName> {
        self.table.lock().1.get(&id).cloned()
    }
}

/// Whether `id` stands for a place for a mount.
pub(crate) fn is_place(id: InodeId) -> bool {
    id >= FIRST_PLACE
}

/// The directory of all views of a kind.
pub(super) fn dir_of(kind: ViewKind) -> InodeId {
    match kind {
        ViewKind::Snapshot => SNAPSHOTS,
        ViewKind::Transaction => TRANSACTIONS,
    }
}

impl VarveFs {
    /// `NotPermitted` for a name in `parent` that is not to be given away.
    pub(crate) fn check_name(&self, parent: InodeId, name: FileName<'_>) -> FsResult<()> {
        let reserved =
            parent.is_made_up() || (parent == InodeId::ROOT && name.as_bytes() == TOP_NAME);
        if reserved { Err(FsError::NotPermitted) } else { Ok(()) }
    }

    /// The made-up inode behind `name` in `parent`; `None` if that is not for us to say.
    pub(crate) fn look_up_made_up(
        &self,
        parent: InodeId,
        name: FileName<'_>,
    ) -> Option<FsResult<Entry>> {
        let found = match (parent, name.as_bytes()) {
            (InodeId::ROOT, TOP_NAME) if self.views.is_some() => Some(TOP),
            (TOP, b"snapshots") => Some(SNAPSHOTS),
            (TOP, b"txn") => Some(TRANSACTIONS),
            (SNAPSHOTS, name) => self.place(ViewKind::Snapshot, name),
            (TRANSACTIONS, name) => self.place(ViewKind::Transaction, name),
            (TOP, _) => None,
            _ => return None,
        };
        let entry = found.and_then(|id| self.made_up(id)).ok_or(FsError::NotFound);
        Some(entry.and_then(|inode| Ok(Entry { attr: self.attr(&inode)? })))
    }

    fn place(&self, kind: ViewKind, name: &[u8]) -> Option<InodeId> {
        let name = ViewName { kind, name: String::from_utf8(name.to_vec()).ok()? };
        let exists = match kind {
            ViewKind::Snapshot => self.find_snapshot(&name.name).ok()?.is_some(),
            ViewKind::Transaction => self.transaction(&name.name).is_ok(),
        };
        exists.then(|| self.views.as_ref().map(|views| views.places.id(&name)))?
    }

    /// The inode with a made-up id.
    pub(crate) fn made_up(&self, id: InodeId) -> Option<Inode> {
        let parent = match id {
            TOP => InodeId::ROOT,
            SNAPSHOTS | TRANSACTIONS => TOP,
            _ => dir_of(self.views.as_ref()?.places.name(id)?.kind),
        };
        Some(Inode {
            ino: id,
            kind: FileKind::Directory,
            perm: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            times: Times::all(Timestamp::default()),
            has_xattrs: false,
            home: None,
            content: Content::Directory(DirInfo::new(parent, None)),
        })
    }

    /// Lists a made-up directory. Cookies count.
    pub(crate) fn list_made_up(
        &self,
        dir: InodeId,
        cookie: u64,
        with_attr: bool,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> FsResult<()> {
        let Content::Directory(info) = self.made_up(dir).ok_or(FsError::Stale)?.content else {
            return Err(FsError::NotDirectory);
        };
        let names = match dir {
            TOP => vec![(SNAPSHOTS, "snapshots".to_owned()), (TRANSACTIONS, "txn".to_owned())],
            SNAPSHOTS => self.places_of(ViewKind::Snapshot)?,
            TRANSACTIONS => self.places_of(ViewKind::Transaction)?,
            _ => Vec::new(),
        };
        let dots = [(dir, ".".to_owned()), (info.parent, "..".to_owned())];
        for (at, (ino, name)) in dots.into_iter().chain(names).enumerate().skip(cookie as usize) {
            let attr = match self.made_up(ino).filter(|_| with_attr && at > 1) {
                Some(inode) => Some(self.attr(&inode)?),
                None => None,
            };
            let entry = DirEntry {
                ino,
                kind: FileType::Directory,
                name: name.as_bytes(),
                cookie: at as u64 + 1,
                attr: attr as Option<Attr>,
            };
            if !emit(&entry) {
                break;
            }
        }
        Ok(())
    }

    fn places_of(&self, kind: ViewKind) -> FsResult<Vec<(InodeId, String)>> {
        let Some(views) = &self.views else { return Ok(Vec::new()) };
        let names = self.view_names(kind)?;
        Ok(names.into_iter().map(|name| (views.places.id(&name), name.name)).collect())
    }
}
