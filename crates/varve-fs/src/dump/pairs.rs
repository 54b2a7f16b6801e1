//! Dictionaries that a load makes: numbered as they come, their pairs inserted as tables.

use varve_engine::Pair;
use varve_schema::{DICTIONARIES_MAX, DictionaryRow};
use varve_types::limits::KEY_BYTES_MAX;
use varve_types::{FileName, KeyspaceId};
use varve_vfs::FsResult;

use super::line::{DictionaryLine, PairLine};
use super::wrong::wrong;
use crate::dictionaries::{PAIR_VALUE_BYTES_MAX, pairs_options};
use crate::error;
use crate::fsck::volume::Volume;

/// Bytes of memory of a pair besides its key and value, nearly.
const PAIR_BYTES: usize = 80;

/// See the module's comment.
pub(super) struct Pairs<'a> {
    volume: &'a Volume,
    /// Bytes of memory at which pairs are inserted.
    bytes_max: usize,
    compression: bool,
    /// How many dictionaries there are; the last one's pairs are being read.
    dictionaries: u32,
    name: Vec<u8>,
    keyspace: Option<KeyspaceId>,
    last_key: Option<Vec<u8>>,
    waiting: Vec<Pair>,
    waiting_bytes: usize,
}

impl<'a> Pairs<'a> {
    /// No dictionaries yet; about `bytes_max` bytes of pairs are kept in memory.
    pub(super) fn new(volume: &'a Volume, bytes_max: usize, compression: bool) -> Pairs<'a> {
        Pairs {
            volume,
            bytes_max,
            compression,
            dictionaries: 0,
            name: Vec::new(),
            keyspace: None,
            last_key: None,
            waiting: Vec::new(),
            waiting_bytes: 0,
        }
    }

    pub(super) fn dictionary(&mut self, line: DictionaryLine) -> FsResult<()> {
        self.write()?;
        let name = line.name.0;
        FileName::new(&name).map_err(|error| wrong(format!("name: {error}")))?;
        if self.dictionaries > 0 && name <= self.name {
            return Err(wrong("name: not after that of the dictionary before"));
        }
        if self.dictionaries >= DICTIONARIES_MAX {
            return Err(wrong(format!("more than {DICTIONARIES_MAX} dictionaries")));
        }
        let row = DictionaryRow::found(self.dictionaries);
        let (volume, options) = (self.volume, pairs_options(self.compression));
        self.keyspace =
            Some(volume.store.keyspace(&row.keyspace(), options).map_err(error::store)?);
        let mut rows = std::iter::once((name.clone().into(), row.encode().into()));
        volume.store.insert_sorted(volume.dictionaries, &mut rows, false).map_err(error::store)?;
        self.dictionaries += 1;
        (self.name, self.last_key) = (name, None);
        Ok(())
    }

    pub(super) fn pair(&mut self, line: PairLine) -> FsResult<()> {
        let (key, value) = (line.key.0, line.value.0);
        if self.keyspace.is_none() {
            return Err(wrong("pair: no dictionary before it"));
        }
        if self.last_key.as_ref().is_some_and(|last| key <= *last) {
            return Err(wrong("key: not after that of the pair before"));
        }
        if key.len() > KEY_BYTES_MAX || value.len() > PAIR_VALUE_BYTES_MAX {
            return Err(wrong("pair: a key or value longer than one can be"));
        }
        self.waiting_bytes += key.len() + value.len() + PAIR_BYTES;
        self.last_key = Some(key.clone());
        self.waiting.push((key.into(), value.into()));
        if self.waiting_bytes >= self.bytes_max { self.write() } else { Ok(()) }
    }

    /// Inserts what waits.
    pub(super) fn write(&mut self) -> FsResult<()> {
        self.waiting_bytes = 0;
        let mut pairs = std::mem::take(&mut self.waiting).into_iter();
        let Some(keyspace) = self.keyspace else { return Ok(()) };
        self.volume.store.insert_sorted(keyspace, &mut pairs, false).map_err(error::store)
    }
}
