//! The directory `.varve` in the root of a mount, through which its views are reached. No row stands for it: its
//! directories have made-up ids ([`MadeUp`]), and listings of the root do not show it.
//!
//! ```text
//! .varve/snapshots/NAME      a named snapshot, read-only
//! .varve/txn/ID              a transaction that is open
//! .varve/control/ID          an empty file, on which attributes are set that end the transaction
//! ```
//!
//! Behind each of the lowest names of the first two belongs a mount of its own, which the front end attaches when somebody
//! comes by ([`VarveFs::do_arrive`]). The third is a file for each transaction, and none of them on the way to the
//! mounts, as the kernel locks what attributes are set on until that is answered.

use std::collections::HashMap;

use parking_lot::Mutex;
use varve_schema::{Content, DirInfo, FileKind, Inode, Times};
use varve_types::{FileName, InodeId, Timestamp};
use varve_vfs::{DirEntry, Entry, FsError, FsResult};

use super::made_up::MadeUp;
use super::{ViewKind, ViewName};
use crate::attrs::file_type;
use crate::fs::VarveFs;

/// Name of the directory in the root.
const TOP_NAME: &[u8] = b".varve";
/// The directory of the files by which transactions end.
pub(super) const CONTROLS: InodeId = MadeUp::Controls.id();

/// The ids made up for views so far. An id stays with its name as long as the store is open.
#[derive(Debug, Default)]
pub(super) struct Places {
    table: Mutex<(HashMap<ViewName, MadeUp>, HashMap<InodeId, ViewName>)>,
}

impl Places {
    fn of(&self, name: &ViewName) -> MadeUp {
        let (places, names) = &mut *self.table.lock();
        if let Some(place) = places.get(name) {
            return *place;
        }
        let place = MadeUp::Place(places.len() as u64);
        places.insert(name.clone(), place);
        names.insert(place.id(), name.clone());
        place
    }

    pub(super) fn name(&self, id: InodeId) -> Option<ViewName> {
        self.table.lock().1.get(&id).cloned()
    }
}

/// Whether `id` stands for a place for a mount.
pub(crate) fn is_place(id: InodeId) -> bool {
    matches!(MadeUp::of(id), Some(MadeUp::Place(_)))
}

/// Whether what is known of `id` may end at any moment.
pub(crate) fn is_fleeting(id: InodeId) -> bool {
    MadeUp::of(id).is_some_and(MadeUp::is_fleeting)
}

/// The directory of all views of a kind.
pub(super) fn dir_of(kind: ViewKind) -> InodeId {
    match kind {
        ViewKind::Snapshot => MadeUp::Snapshots.id(),
        ViewKind::Transaction => MadeUp::Transactions.id(),
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
        let found = match (MadeUp::of(parent), name.as_bytes()) {
            (None, TOP_NAME) if parent == InodeId::ROOT && self.views.is_some() => {
                Some(MadeUp::Top)
            }
            (None, _) => return None,
            (Some(MadeUp::Top), b"snapshots") => Some(MadeUp::Snapshots),
            (Some(MadeUp::Top), b"txn") => Some(MadeUp::Transactions),
            (Some(MadeUp::Top), b"control") => Some(MadeUp::Controls),
            (Some(MadeUp::Snapshots), name) => self.place(ViewKind::Snapshot, name),
            (Some(MadeUp::Transactions), name) => self.place(ViewKind::Transaction, name),
            (Some(MadeUp::Controls), name) => self.control(name),
            (Some(_), _) => None,
        };
        let entry = found.and_then(|what| self.made_up(what.id())).ok_or(FsError::NotFound);
        Some(entry.and_then(|inode| Ok(Entry { attr: self.attr(&inode)? })))
    }

    fn place(&self, kind: ViewKind, name: &[u8]) -> Option<MadeUp> {
        let name = ViewName { kind, name: String::from_utf8(name.to_vec()).ok()? };
        let exists = match kind {
            ViewKind::Snapshot => self.find_snapshot(&name.name).ok()?.is_some(),
            ViewKind::Transaction => self.transaction(&name.name).is_ok(),
        };
        exists.then(|| self.views.as_ref().map(|views| views.places.of(&name)))?
    }

    fn control(&self, name: &[u8]) -> Option<MadeUp> {
        let name = std::str::from_utf8(name).ok()?;
        let transaction = self.transaction(name).ok()?;
        Some(MadeUp::Control(transaction.epoch.get()))
    }

    /// The transaction that attributes set on `id` end.
    pub(crate) fn do_controlled(&self, id: InodeId) -> FsResult<u64> {
        match MadeUp::of(id) {
            Some(MadeUp::Control(transaction)) => Ok(transaction),
            _ => Err(FsError::NotSupported("the end of a transaction by this file")),
        }
    }

    /// The inode with a made-up id.
    pub(crate) fn made_up(&self, id: InodeId) -> Option<Inode> {
        let what = MadeUp::of(id)?;
        let parent = match what {
            MadeUp::Top => InodeId::ROOT,
            MadeUp::Snapshots | MadeUp::Transactions | MadeUp::Controls => MadeUp::Top.id(),
            MadeUp::Place(_) => dir_of(self.views.as_ref()?.places.name(id)?.kind),
            MadeUp::Control(transaction) => {
                self.transaction(&transaction.to_string()).ok()?;
                MadeUp::Controls.id()
            }
        };
        let is_dir = what.kind() == FileKind::Directory;
        Some(Inode {
            ino: id,
            kind: what.kind(),
            // Who may set attributes on a file is asked when it is done, so that all are told the same.
            perm: if is_dir { 0o755 } else { 0o666 },
            nlink: if is_dir { 2 } else { 1 },
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            times: Times::all(Timestamp::default()),
            has_xattrs: false,
            home: None,
            content: match is_dir {
                true => Content::Directory(DirInfo::new(parent, None)),
                false => Content::None,
            },
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
        let dots = [(dir, "."), (info.parent, "..")]
            .map(|(ino, name)| (ino, FileKind::Directory, name.to_owned()));
        let names = self.names_in(dir)?.into_iter();
        let names = names.map(|(what, name)| (what.id(), what.kind(), name));
        let all = dots.into_iter().chain(names).enumerate();
        for (at, (ino, kind, name)) in all.skip(cookie as usize) {
            let attr = match with_attr && at > 1 {
                // What is gone by now is listed as a mere name.
                true => self.made_up(ino).map(|inode| self.attr(&inode)).transpose()?,
                false => None,
            };
            let (name, cookie) = (name.as_bytes(), at as u64 + 1);
            if !emit(&DirEntry { ino, kind: file_type(kind), name, cookie, attr }) {
                break;
            }
        }
        Ok(())
    }

    /// What lies in a made-up directory.
    fn names_in(&self, dir: InodeId) -> FsResult<Vec<(MadeUp, String)>> {
        let places = |kind| -> FsResult<Vec<(MadeUp, String)>> {
            let Some(views) = &self.views else { return Ok(Vec::new()) };
            let names = self.view_names(kind)?.into_iter();
            Ok(names.map(|name| (views.places.of(&name), name.name)).collect())
        };
        let fixed = |(what, name): (MadeUp, &str)| (what, name.to_owned());
        match MadeUp::of(dir) {
            Some(MadeUp::Top) => Ok([
                (MadeUp::Controls, "control"),
                (MadeUp::Snapshots, "snapshots"),
                (MadeUp::Transactions, "txn"),
            ]
            .map(fixed)
            .to_vec()),
            Some(MadeUp::Snapshots) => places(ViewKind::Snapshot),
            Some(MadeUp::Transactions) => places(ViewKind::Transaction),
            Some(MadeUp::Controls) => {
                let open = self.transactions()?.into_iter();
                let id = |txn: super::Transaction| txn.epoch.get();
                Ok(open.map(|txn| (MadeUp::Control(id(txn)), id(txn).to_string())).collect())
            }
            _ => Ok(Vec::new()),
        }
    }
}
