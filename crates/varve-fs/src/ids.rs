//! Inode ids: a counter that never hands out a number twice, whatever crashes.
//!
//! The row [`ID_MARK`] holds a mark above every id that may be in use. Ids are handed out from memory up
//! to the mark; when they reach it, a mark [`RESERVE`] further on is written first, on its own. The log
//! keeps order, so no row with an id beyond a mark is ever found without that mark. A mount starts at
//! the mark, which skips the rest of the reserve. Transactions are durable without the log: it passes those that there are, too
//! ([`crate::fs::VarveFs::begin_views`]).
//!
//! Source: TableFS 4.2.5 (a global counter).

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use varve_engine::{Batch, Store};
use varve_schema::key::ID_MARK;
use varve_schema::{ROW_VERSION, Reader, put_varint};
use varve_types::{InodeId, KeyspaceId};
use varve_vfs::{FsError, FsResult};

use crate::epoch::Epoch;
use crate::error;

/// Ids reserved by one write of the mark.
pub(crate) const RESERVE: u64 = 1 << 20;

/// No id is handed out from here on, as synthetic ids contain ids ([`crate::synthetic`]): stores come nowhere near.
pub(crate) const IDS_END: u64 = 1 << 60;

/// Ids above this one are none: no store hands out so many.
pub(crate) const ID_MAX: u64 = 1 << 62;

/// Whether `ino` can be the id of an inode.
pub(crate) fn is_inode_id(ino: InodeId) -> bool {
    ino == InodeId::ROOT || (InodeId::FIRST_FREE.get()..=ID_MAX).contains(&ino.get())
}

/// How ids are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdPolicy {
    /// The next number.
    Counter,
}

/// Hands out inode ids.
#[derive(Debug)]
pub(crate) struct IdAllocator {
    store: Arc<dyn Store>,
    meta: KeyspaceId,
    policy: IdPolicy,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    next: u64,
    mark: u64,
}

impl IdAllocator {
    /// Goes on after every id that an earlier mount may have handed out.
    pub(crate) fn open(store: Arc<dyn Store>, meta: KeyspaceId) -> FsResult<IdAllocator> {
        let mark = match store.get(meta, &ID_MARK.to_bytes()).map_err(error::store)? {
            Some(bytes) => decode_mark(&bytes)?,
            None => InodeId::FIRST_FREE.get(),
        };
        let state = Mutex::new(State { next: mark, mark });
        Ok(IdAllocator { store, meta, policy: IdPolicy::Counter, state })
    }

    /// An id for a new inode.
    pub(crate) fn allocate(&self) -> FsResult<InodeId> {
        let mut state = self.state.lock();
        let end = end_of(state.next, 1)?;
        if end > state.mark {
            self.write_mark(&mut state, end - 1)?;
        }
        match self.policy {
            IdPolicy::Counter => {
                let ino = InodeId::new(state.next);
                state.next += 1;
                Ok(ino)
            }
        }
    }

    /// `count` ids one after the other for new inodes: the first, and the one after the last.
    pub(crate) fn reserve(&self, count: u64) -> FsResult<(InodeId, InodeId)> {
        let mut state = self.state.lock();
        let (first, end) = (state.next, end_of(state.next, count)?);
        if end > state.mark {
            self.write_mark(&mut state, end)?;
        }
        state.next = end;
        Ok((InodeId::new(first), InodeId::new(end)))
    }

    /// Hands out no id up to `end` any more. If it had not come so far, it goes on `gap` ids behind.
    pub(crate) fn pass(&self, end: u64, gap: u64) -> FsResult<()> {
        let mut state = self.state.lock();
        if state.next > end {
            return Ok(());
        }
        let next = end_of(end, gap)?;
        self.write_mark(&mut state, next)?;
        state.next = next;
        Ok(())
    }

    /// Reserves ids from `next` on.
    fn write_mark(&self, state: &mut State, next: u64) -> FsResult<()> {
        let mark = (next + RESERVE).min(IDS_END);
        let mut batch = Batch::new();
        batch.put(self.meta, ID_MARK.to_bytes(), encode_mark(mark));
        self.store.write(batch).map_err(error::store)?;
        state.mark = mark;
        Ok(())
    }

    /// The epoch of a view that begins now.
    pub(crate) fn begin_epoch(&self) -> FsResult<Epoch> {
        self.allocate().map(Epoch::of)
    }

    /// Whether this id may have been handed out.
    pub(crate) fn may_have_handed_out(&self, ino: InodeId) -> bool {
        ino >= InodeId::FIRST_FREE && Epoch::new(self.next()).knows(ino)
    }

    /// The id that will be handed out next: above every inode of the store.
    pub(crate) fn next(&self) -> u64 {
        self.state.lock().next
    }
}

/// The end of `count` ids from `first` on; an error if they are used up before.
fn end_of(first: u64, count: u64) -> FsResult<u64> {
    let end = first.checked_add(count).filter(|end| *end <= IDS_END);
    end.ok_or_else(|| FsError::NoSpace("inode ids are used up".to_owned()))
}

/// The value of the mark's row.
pub(crate) fn encode_mark(mark: u64) -> Vec<u8> {
    let mut value = vec![ROW_VERSION];
    put_varint(&mut value, mark);
    value
}

/// The mark in its row's value.
pub(crate) fn decode_mark(bytes: &Bytes) -> FsResult<u64> {
    let mut reader = Reader::new(bytes);
    reader
        .version()
        .and_then(|()| reader.varint())
        .and_then(|mark| reader.end().map(|()| mark))
        .map_err(|error| error::unreadable(varve_schema::META, ID_MARK, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A received stream could move them where the synthetic ids that contain them make no sense.
    #[test]
    fn ids_have_an_end() {
        use std::path::Path;

        use varve_env::Env;
        use varve_env::sim::SimEnv;

        use crate::{FormatOptions, MountOptions, VarveFs};

        let (machine, dir): (Arc<dyn Env>, _) = (SimEnv::new(1), Path::new("/store"));
        crate::format(&machine, dir, &FormatOptions::default()).unwrap();
        let fs = VarveFs::open(machine, dir, MountOptions::default()).unwrap();
        let is_full = |error| matches!(error, FsError::NoSpace(_));
        assert!(is_full(fs.ids.pass(1 << 60, 1 << 40).unwrap_err()));
        fs.ids.pass((1 << 60) - 3, 1).unwrap();
        assert!(is_full(fs.ids.reserve(3).unwrap_err()));
        for id in [(1 << 60) - 2, (1 << 60) - 1] {
            assert_eq!(fs.ids.allocate().unwrap().get(), id);
        }
        assert!(is_full(fs.ids.allocate().unwrap_err()));
    }

    #[test]
    fn the_mark_is_written_as_version_1_wrote_it() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/v1/id-mark.row");
        let written = encode_mark(1_000_016);
        varve_testkit::golden(path, &written);
        assert_eq!(decode_mark(&Bytes::from(written)).unwrap(), 1_000_016);
    }
}
