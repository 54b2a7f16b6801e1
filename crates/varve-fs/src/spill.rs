//! Locator entries that do not fit in memory, in the volatile key space `lookups`.
//!
//! ```text
//! key:   (inode id, epoch of the view; 0 in the main view)
//! value: | lookups varint | 1 |                        in the inode's own row
//!        | lookups varint | 2 | prefix varint | suffix varint | slot u8 |
//! ```
//!
//! What views leave there goes with the next mount too. The key space is cleared at each mount, except by a process that takes over from another: so the
//! encoding is a part of what [`varve_schema::Handover`] versions.

use std::sync::Arc;

use bytes::Bytes;
use varve_engine::{Batch, Store};
use varve_schema::{DecodeError, EntrySuffix, Reader, RowKey, put_varint};
use varve_types::{InodeId, KeyspaceId};
use varve_vfs::FsResult;

use crate::error;
use crate::locator::Place;

/// Name of the key space.
pub(crate) const LOOKUPS: &str = "lookups";

/// One entry. REQUIRES: its place is not `Detached`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spilled {
    pub(crate) place: Place,
    pub(crate) lookups: u64,
}

/// Writes and fetches entries.
pub(crate) struct Spill {
    store: Arc<dyn Store>,
    lookups: KeyspaceId,
    view: u64,
}

impl Spill {
    /// For the view of the epoch `view`, 0 for the main one. `store` is that of the main view.
    pub(crate) fn new(store: Arc<dyn Store>, lookups: KeyspaceId, view: u64) -> Spill {
        Spill { store, lookups, view }
    }

    fn key(&self, ino: InodeId) -> Bytes {
        Bytes::copy_from_slice(&RowKey::chunk(ino, self.view).to_bytes())
    }

    /// Writes entries.
    pub(crate) fn put(&self, entries: &[(InodeId, Spilled)]) -> FsResult<()> {
        let mut batch = Batch::new();
        for (ino, spilled) in entries {
            batch.put(self.lookups, self.key(*ino), encode(spilled));
        }
        self.store.write(batch).map_err(error::store)
    }

    /// Fetches and removes an entry.
    pub(crate) fn take(&self, ino: InodeId) -> FsResult<Option<Spilled>> {
        let key = self.key(ino);
        let Some(bytes) = self.store.get(self.lookups, &key).map_err(error::store)? else {
            return Ok(None);
        };
        let spilled =
            decode(&bytes).map_err(|error| error::row(LOOKUPS, RowKey::inode(ino), error))?;
        let mut batch = Batch::new();
        batch.delete(self.lookups, key);
        batch.reclaims_space();
        self.store.write(batch).map_err(error::store)?;
        Ok(Some(spilled))
    }
}

fn encode(spilled: &Spilled) -> Vec<u8> {
    let mut out = Vec::with_capacity(32);
    put_varint(&mut out, spilled.lookups);
    match &spilled.place {
        Place::Entry { key, slot } => {
            out.push(2);
            put_varint(&mut out, key.prefix());
            put_varint(&mut out, key.suffix());
            out.push(*slot);
        }
        Place::Own | Place::Detached(_) => out.push(1),
    }
    out
}

fn decode(bytes: &Bytes) -> Result<Spilled, DecodeError> {
    let mut reader = Reader::new(bytes);
    let lookups = reader.varint()?;
    let place = match reader.u8()? {
        1 => Place::Own,
        2 => {
            let dir = InodeId::new(reader.varint()?);
            let suffix = EntrySuffix::new(reader.varint()?)
                .ok_or_else(|| reader.error("a wrong key suffix"))?;
            Place::Entry { key: RowKey::entry(dir, suffix), slot: reader.u8()? }
        }
        _ => return Err(reader.error("an unknown kind of place")),
    };
    reader.end()?;
    Ok(Spilled { place, lookups })
}

#[cfg(test)]
mod tests {
    use varve_testkit::rng::Rng;

    use super::*;

    #[test]
    fn entries_come_back() {
        let key = RowKey::entry(InodeId::new(99), EntrySuffix::from_hash(1 << 54));
        for place in [Place::Own, Place::Entry { key, slot: 255 }] {
            let spilled = Spilled { place, lookups: 300 };
            assert_eq!(decode(&Bytes::from(encode(&spilled))), Ok(spilled));
        }
    }

    /// Bytes that are no entry are an error, and what is accepted has one meaning.
    #[test]
    fn arbitrary_entries_are_refused_or_come_back() {
        let mut rng = Rng::new(20_261_120);
        let (mut accepted, mut refused) = (0, 0);
        for _ in 0..50_000 {
            let suffix = EntrySuffix::from_hash(rng.next_u64());
            let key = RowKey::entry(InodeId::new(rng.next_u64() >> rng.below(64)), suffix);
            let place = Place::Entry { key, slot: rng.next_u64() as u8 };
            let lookups = rng.next_u64() >> rng.below(64);
            let mut bytes = encode(&Spilled { place, lookups });
            for _ in 0..rng.below(4) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = *rng.pick(&[0, 1, 2, 0x7f, 0x80, 0xff, at as u8]);
            }
            if rng.chance(10) {
                bytes.truncate(rng.below(bytes.len() as u64) as usize);
            } else if rng.chance(10) {
                bytes = rng.bytes(bytes.len());
            }
            match decode(&Bytes::from(bytes)) {
                Ok(spilled) => {
                    accepted += 1;
                    assert_eq!(decode(&Bytes::from(encode(&spilled))), Ok(spilled));
                }
                Err(_) => refused += 1,
            }
        }
        assert!(accepted > 1000 && refused > 1000, "{accepted} accepted, {refused} refused");
    }
}
