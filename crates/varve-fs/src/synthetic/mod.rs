//! The directory `.varve` in the root of a mount, through which its views are reached. No row stands for it: its
//! directories have synthetic ids ([`SyntheticId`]), and listings of the root do not show it.
//!
//! In: a name or an id below `.varve`. Out: attributes, names, the target of a link, the view to mount there. Never: writes a row, or lets
//! anybody change what is there.
//!
//! ```text
//! .varve/snapshots/NAME      a named snapshot, read-only
//! .varve/txn/ID              a transaction that is open
//! .varve/control/ID          an empty file, on which attributes are set that end the transaction
//! ```
//!
//! Behind each of the lowest names of the first two belongs a mount of its own, which the front end attaches when somebody
//! comes by ([`VarveFs::do_arrive`]). The third is a file for each transaction, and none of them on the way to the
//! mounts, as the kernel locks what attributes are set on until that is answered. Directories below the root have a
//! `.varve` of another kind ([`below`]).

mod below;
mod id;
mod links;

use varve_namespace::attrs::file_type;
use varve_schema::{Content, DirInfo, Inode, Times};
use varve_types::{FileFlags, FileName, InodeId, Timestamp};
use varve_vfs::{DirEntry, Entry, FileType, FsError, FsResult, Keep};

use crate::epoch::Epoch;
use crate::fs::VarveFs;
use crate::transactions::Transaction;
use crate::views::{ViewKind, ViewName};
pub(crate) use below::is_synthetic_below;
use id::{Numbered, SyntheticId, TOP_NAME, text};
pub(crate) use links::Links;

/// The directory of the files by which transactions end.
const CONTROLS: InodeId = SyntheticId::Controls.id();

/// The cookie of the last of `.` and `..`.
const DOTS_END: u64 = 2;

/// Whether `id` stands for a place for a mount.
pub fn is_place(id: InodeId) -> bool {
    matches!(SyntheticId::of(id), Some(SyntheticId::ViewPlace(..)))
}

/// Whether what is known of `id` may end at any moment.
pub fn is_fleeting(id: InodeId) -> bool {
    SyntheticId::of(id).is_some_and(SyntheticId::is_fleeting)
}

/// The transaction that attributes set on `id` end.
pub fn controlled(id: InodeId) -> FsResult<u64> {
    match SyntheticId::of(id) {
        Some(SyntheticId::Control(transaction)) => Ok(transaction),
        _ => Err(FsError::NotSupported("the end of a transaction by this file")),
    }
}

/// The directory of all views of a kind.
pub(crate) fn dir_of(kind: ViewKind) -> InodeId {
    match kind {
        ViewKind::Snapshot => SyntheticId::Snapshots.id(),
        ViewKind::Transaction => SyntheticId::Transactions.id(),
    }
}

impl ViewName {
    /// The directory of the main tree in which its place is.
    pub fn dir(&self) -> InodeId {
        dir_of(self.kind)
    }

    /// The directories of the main tree whose listings show it.
    pub fn listed_in(&self) -> impl Iterator<Item = InodeId> {
        let control = (self.kind == ViewKind::Transaction).then_some(CONTROLS);
        [self.dir()].into_iter().chain(control)
    }
}

impl VarveFs {
    /// `NotPermitted` for a name in `parent` that is not to be given away.
    pub(crate) fn check_name(&self, parent: InodeId, name: FileName<'_>) -> FsResult<()> {
        let reserved =
            parent.is_synthetic() || (parent == InodeId::ROOT && name.as_bytes() == TOP_NAME);
        if reserved { Err(FsError::NotPermitted) } else { Ok(()) }
    }

    /// The synthetic inode behind `name` in `parent`; `None` if that is not for us to say.
    pub(crate) fn look_up_synthetic(
        &self,
        parent: InodeId,
        name: FileName<'_>,
    ) -> Option<FsResult<Entry>> {
        let found = match (SyntheticId::of(parent), name.as_bytes()) {
            (None, TOP_NAME) if parent == InodeId::ROOT && self.views.is_some() => {
                Ok(SyntheticId::Top)
            }
            (None, _) => return None,
            (Some(SyntheticId::Top), b"snapshots") => Ok(SyntheticId::Snapshots),
            (Some(SyntheticId::Top), b"txn") => Ok(SyntheticId::Transactions),
            (Some(SyntheticId::Top), b"control") => Ok(SyntheticId::Controls),
            (Some(SyntheticId::Snapshots), name) => self.place(ViewKind::Snapshot, name),
            (Some(SyntheticId::Transactions), name) => self.place(ViewKind::Transaction, name),
            (Some(SyntheticId::Controls), name) => self.control(name),
            (Some(SyntheticId::Below(dir)), b"snapshots") => Ok(SyntheticId::SnapshotsOf(dir)),
            (Some(SyntheticId::SnapshotsOf(dir)), name) => self.link_of(dir, name),
            (Some(_), _) => Err(FsError::NotFound),
        };
        let inode = found.and_then(|what| self.synthetic(what.id()).ok_or(FsError::NotFound));
        Some(inode.and_then(|inode| Ok(Entry::of(self.attr(&inode)?))))
    }

    fn place(&self, kind: ViewKind, name: &[u8]) -> FsResult<SyntheticId> {
        let name = text(name)?;
        let epoch = match kind {
            ViewKind::Snapshot => self.find_snapshot(name)?.ok_or(FsError::NotFound)?.0,
            ViewKind::Transaction => self.transaction(name)?.epoch,
        };
        Ok(SyntheticId::ViewPlace(kind, epoch))
    }

    /// The view whose place is `id`, if there is one.
    pub fn view_at(&self, id: InodeId) -> Option<ViewName> {
        let SyntheticId::ViewPlace(kind, epoch) = SyntheticId::of(id)? else { return None };
        let mut views = self.views_of(kind).ok()?.into_iter();
        views.find(|(known, _)| *known == epoch).map(|(_, name)| name)
    }

    fn control(&self, name: &[u8]) -> FsResult<SyntheticId> {
        Ok(SyntheticId::Control(self.transaction(text(name)?)?.epoch.get()))
    }

    /// The inode with a synthetic id, if what it stands for is there.
    pub(crate) fn synthetic(&self, id: InodeId) -> Option<Inode> {
        let what = SyntheticId::of(id)?;
        let is_there = match what {
            SyntheticId::ViewPlace(..) => self.view_at(id).is_some(),
            SyntheticId::Control(transaction) => self.transaction(&transaction.to_string()).is_ok(),
            SyntheticId::Below(of) | SyntheticId::SnapshotsOf(of) => self.is_there(of),
            _ => true,
        };
        if is_there { self.inode_of(what) } else { None }
    }

    /// The inode of what is there.
    fn inode_of(&self, what: SyntheticId) -> Option<Inode> {
        let views = self.views.as_ref()?;
        let dir = |parent| Content::Directory(DirInfo::new(parent, None));
        let content = match what {
            SyntheticId::Top => dir(InodeId::ROOT),
            SyntheticId::Snapshots | SyntheticId::Transactions | SyntheticId::Controls => {
                dir(SyntheticId::Top.id())
            }
            SyntheticId::ViewPlace(kind, _) => dir(dir_of(kind)),
            SyntheticId::Control(_) => Content::None,
            SyntheticId::Below(of) => dir(of),
            SyntheticId::SnapshotsOf(of) => dir(SyntheticId::Below(of).id()),
            SyntheticId::Link(link) => Content::Symlink(views.links.target(link)?),
        };
        let time = match what {
            SyntheticId::Snapshots
            | SyntheticId::Transactions
            | SyntheticId::Controls
            | SyntheticId::SnapshotsOf(_) => self.time_of_listing(what),
            _ => Timestamp::default(),
        };
        let (perm, nlink, size) = match &content {
            Content::Directory(_) => (0o755, 2, 0),
            Content::Symlink(target) => (0o777, 1, target.len() as u64),
            // The right to set attributes on it is checked when they are set, so that all callers get the same answer.
            _ => (0o666, 1, 0),
        };
        Some(Inode {
            ino: what.id(),
            kind: what.kind(),
            perm,
            nlink,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            times: Times::all(time),
            has_xattrs: false,
            flags: FileFlags::default(),
            home: None,
            content,
        })
    }

    /// Lists a synthetic directory. Cookies are made of the numbers of the names, so that a listing that goes on behind a name that
    /// is gone misses none.
    pub(crate) fn list_synthetic(
        &self,
        dir: InodeId,
        cookie: u64,
        with_attr: bool,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> FsResult<()> {
        let Content::Directory(info) = self.synthetic(dir).ok_or(FsError::Stale)?.content else {
            return Err(FsError::NotDirectory);
        };
        let dots = [(dir, "."), (info.parent, "..")];
        for (at, (ino, name)) in (1..).zip(dots).filter(|(at, _)| *at > cookie) {
            let (kind, name) = (FileType::Directory, name.as_bytes());
            if !emit(&DirEntry { ino, kind, name, cookie: at, attr: None, keep: Keep::Forever }) {
                return Ok(());
            }
        }
        for named in self.names_from(dir, cookie.saturating_sub(DOTS_END))? {
            let (number, what, name) = named?;
            let attr = match with_attr {
                // A link that is not known any more is listed as a mere name.
                true => self.inode_of(what).map(|inode| self.attr(&inode)).transpose()?,
                false => None,
            };
            let (kind, name) = (file_type(what.kind()), name.as_bytes());
            let cookie = DOTS_END + 1 + number;
            if !emit(&DirEntry { ino: what.id(), kind, name, cookie, attr, keep: Keep::Forever }) {
                break;
            }
        }
        Ok(())
    }

    /// What lies in a synthetic directory from the number `from` on, in the order of the numbers.
    fn names_from<'a>(
        &'a self,
        dir: InodeId,
        from: u64,
    ) -> FsResult<Box<dyn Iterator<Item = FsResult<Numbered>> + 'a>> {
        if let Some(SyntheticId::SnapshotsOf(dir)) = SyntheticId::of(dir) {
            return Ok(Box::new(self.links_from(dir, Epoch::new(from))?));
        }
        let mut names = self.names_in(dir)?;
        names.retain(|(number, ..)| *number >= from);
        names.sort_unstable_by_key(|(number, ..)| *number);
        Ok(Box::new(names.into_iter().map(Ok)))
    }

    /// What lies in a synthetic directory that is not of links, each with a number that it keeps.
    fn names_in(&self, dir: InodeId) -> FsResult<Vec<Numbered>> {
        let places = |kind| -> FsResult<Vec<Numbered>> {
            let views = self.views_of(kind)?.into_iter();
            let place = |epoch| SyntheticId::ViewPlace(kind, epoch);
            Ok(views.map(|(epoch, name)| (epoch.get(), place(epoch), name.name)).collect())
        };
        let fixed = |number, what, name: &str| (number, what, name.to_owned());
        match SyntheticId::of(dir) {
            Some(SyntheticId::Top) => Ok(vec![
                fixed(0, SyntheticId::Controls, "control"),
                fixed(1, SyntheticId::Snapshots, "snapshots"),
                fixed(2, SyntheticId::Transactions, "txn"),
            ]),
            Some(SyntheticId::Snapshots) => places(ViewKind::Snapshot),
            Some(SyntheticId::Transactions) => places(ViewKind::Transaction),
            Some(SyntheticId::Controls) => {
                let open = self.transactions()?.into_iter();
                let id = |txn: Transaction| txn.epoch.get();
                let control = |id: u64| (id, SyntheticId::Control(id), id.to_string());
                Ok(open.map(|txn| control(id(txn))).collect())
            }
            Some(SyntheticId::Below(dir)) => {
                Ok(vec![fixed(0, SyntheticId::SnapshotsOf(dir), "snapshots")])
            }
            _ => Ok(Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use varve_env::Env;
    use varve_env::sim::SimEnv;
    use varve_vfs::Vfs;

    use super::*;
    use crate::{FormatOptions, MountOptions};

    /// A listing in pieces left out the names behind one that went in between.
    #[test]
    fn a_listing_in_pieces_tells_all_that_stay() {
        let (machine, dir): (Arc<dyn Env>, _) = (SimEnv::new(1), Path::new("/store"));
        crate::format(&machine, dir, &FormatOptions::default()).unwrap();
        let fs = VarveFs::open(machine, dir, MountOptions::default()).unwrap();
        let names: Vec<String> = (0..6).map(|n| format!("s{n}")).collect();
        names.iter().for_each(|name| fs.create_snapshot(name).unwrap());
        let (mut seen, mut cookie) = (Vec::new(), 0);
        loop {
            let mut next = None;
            let mut one = |entry: &DirEntry<'_>| {
                let is_first = next.is_none();
                next.get_or_insert((text(entry.name).unwrap().to_owned(), entry.cookie));
                is_first
            };
            fs.readdir(dir_of(ViewKind::Snapshot), cookie, false, &mut one).unwrap();
            let Some((name, at)) = next else { break };
            if names.contains(&name) {
                fs.delete_snapshot(&name).unwrap();
            }
            seen.push(name);
            cookie = at;
        }
        assert_eq!(seen[2..], names);
    }
}
