//! Listing a directory: a scan of the rows that share its id as prefix.
//!
//! Names come in the order of their cookies, which are their hashes: stable while others come and go.
//! `.` has cookie 1, `..` has 2. The scan holds no lock. With attributes, each accepted entry counts as
//! a lookup, for which the entry's place must be right: if no inode was moved anywhere since before the
//! scan began (`VarveFs::moves`), the scanned row tells it; else the row is read again, under its lock.
//!
//! Source: TableFS 4.2.2 and 4.2.4.

use std::ops::Bound;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use varve_engine::KeyRange;
use varve_namespace::attrs::file_type;
use varve_schema::{Body, Content, EntryRow, InodeLocation, Listed, META, Named, RowKey};
use varve_types::InodeId;
use varve_vfs::{Attr, DirEntry, FileType, FsResult, Keep};

use crate::error;
use crate::fs::VarveFs;

const COOKIE_SELF: u64 = 1;
const COOKIE_PARENT: u64 = 2;

impl VarveFs {
    pub(crate) fn do_readdir(
        &self,
        ino: InodeId,
        cookie: u64,
        with_attr: bool,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> FsResult<()> {
        if ino.is_synthetic() {
            return self.list_synthetic(ino, cookie, with_attr, emit);
        }
        let dir = self.unfolded_row(ino)?;
        let Content::Directory(info) = &dir.content else { return Ok(()) };
        if cookie == 0 && self.options.dir_atime {
            self.touch_atime(&dir);
        }
        let dots: [(u64, InodeId, &[u8]); 2] =
            [(COOKIE_SELF, ino, b"."), (COOKIE_PARENT, info.parent, b"..")];
        for (dot, ino, name) in dots {
            let entry = DirEntry {
                ino,
                kind: FileType::Directory,
                name,
                cookie: dot,
                attr: None,
                keep: Keep::Forever,
            };
            if cookie < dot && !emit(&entry) {
                return Ok(());
            }
        }
        let moves = self.moves.load(Ordering::Acquire);
        let mut range = KeyRange::prefix(&RowKey::prefix_bytes(ino));
        let first = (cookie & !0xff).max(1);
        range.start = Bound::Included([RowKey::prefix_bytes(ino), first.to_be_bytes()].concat());
        let mut listed = Ok(());
        let mut visit = |key: &[u8], value: Bytes| {
            let Some(key) = RowKey::from_bytes(key) else { return true };
            let emitted = match with_attr {
                true => self.emit_row(key, &value, cookie, moves, emit),
                false => emit_names(key, &value, cookie, emit),
            };
            emitted.unwrap_or_else(|error| {
                listed = Err(error);
                false
            })
        };
        self.store.each_row(self.meta, range, &mut visit).map_err(error::store)?;
        listed
    }

    /// Emits the names of a row behind `cookie` with their attributes; false once one was not taken.
    fn emit_row(
        &self,
        key: RowKey,
        value: &Bytes,
        cookie: u64,
        moves: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> FsResult<bool> {
        let damaged = |error| error::unreadable(META, key, error);
        if let Some(only) = EntryRow::only(value).transpose().map_err(damaged)? {
            return self.emit_entry(key, &only, cookie, moves, emit);
        }
        for named in EntryRow::decode(value).map_err(damaged)?.names() {
            if !self.emit_entry(key, named, cookie, moves, emit)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Emits an entry behind `cookie` with its attributes; false if it was not taken.
    fn emit_entry<Name: AsRef<[u8]>>(
        &self,
        key: RowKey,
        named: &Named<Name>,
        cookie: u64,
        moves: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> FsResult<bool> {
        let mut entry = entry_of(key, named.into());
        if entry.cookie <= cookie {
            return Ok(true);
        }
        let Some(attr) = self.look_up_scanned(key, named, moves)? else { return Ok(true) };
        (entry.ino, entry.kind, entry.attr) = (attr.ino, attr.kind, Some(attr));
        let taken = emit(&entry);
        if !taken {
            self.do_forget(attr.ino, 1)?;
        }
        Ok(taken)
    }

    /// The attributes behind a scanned name, counted as a lookup; `None` if the name is gone meanwhile.
    fn look_up_scanned<Name: AsRef<[u8]>>(
        &self,
        key: RowKey,
        named: &Named<Name>,
        moves: u64,
    ) -> FsResult<Option<Attr>> {
        let _guards = self.lock_rows(&[key])?;
        if self.moves.load(Ordering::Acquire) != moves {
            let row = self.entry_row(key)?;
            return match row.find(named.name.as_ref()) {
                Some(now) => Ok(Some(self.found(key, now)?.attr)),
                None => Ok(None),
            };
        }
        match &named.body {
            Body::Inline(inode) => {
                let attr = self.attr(inode)?;
                self.session
                    .inodes
                    .note_lookup(inode.ino, InodeLocation::Entry { key, slot: named.slot })?;
                Ok(Some(attr))
            }
            Body::Reference { .. } => Ok(Some(self.found(key, named)?.attr)),
        }
    }
}

/// A name of the row `key`, as it is listed.
fn entry_of(key: RowKey, listed: Listed<'_>) -> DirEntry<'_> {
    let Listed { slot, name, ino, kind } = listed;
    let cookie = key.suffix() | u64::from(slot);
    DirEntry { ino, kind: file_type(kind), name, cookie, attr: None, keep: Keep::Forever }
}

/// Emits the names of a row behind `cookie`; false once one was not taken.
fn emit_names(
    key: RowKey,
    value: &Bytes,
    cookie: u64,
    emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
) -> FsResult<bool> {
    let mut taken = |listed| {
        let entry = entry_of(key, listed);
        entry.cookie <= cookie || emit(&entry)
    };
    if let Some(only) = Listed::only(value) {
        return Ok(taken(only));
    }
    let row = EntryRow::decode(value).map_err(|error| error::unreadable(META, key, error))?;
    Ok(row.names().iter().all(|named| taken(named.into())))
}
