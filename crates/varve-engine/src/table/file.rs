//! A table as the store knows it: its record in the manifest, and the files that its rows are in.
//!
//! A file may serve several tables: as the file of one, and as a zone of others that point at some of its blocks
//! (KVFS thesis 3.2). It is removed when the last version in which any does is dropped.
//!
//! A table may stand for the end of its file only: a merge that took part of a table's keys leaves it
//! clipped ([`Table::clipped`]), and what lies before its smallest key is never read again.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use varve_env::Env;
use varve_format::edit::TableMeta;
use varve_format::section::Handle;
use varve_format::segment::ValuePointer;
use varve_format::table::Zones;
use varve_format::{EntryKind, FormatError, FormatResult, Problem};
use varve_types::{FileNo, FileSalt, KeyspaceId, SeqNo};

use super::cache::IndexSlot;
use crate::files::{OwnedFile, StoreFile};
use crate::memtable::Found;
use crate::segment::{Segment, Separated};
use crate::sublevel_map::number::MapNumber;

/// A file of tables.
#[derive(Debug)]
pub(crate) struct TableFile {
    salt: FileSalt,
    file: OwnedFile,
}

impl TableFile {
    pub(crate) fn no(&self) -> FileNo {
        self.file.no()
    }

    /// The file itself.
    pub(crate) fn owned(&self) -> &OwnedFile {
        &self.file
    }

    pub(crate) fn salt(&self) -> FileSalt {
        self.salt
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Marks the file to be removed when its last user drops it.
    ///
    /// REQUIRES: a durable manifest edit says that it serves no table.
    pub(crate) fn mark_obsolete(&self) {
        self.file.mark_obsolete();
    }
}

/// The files of a store's tables, each known once.
pub(crate) struct TableFiles {
    env: Arc<dyn Env>,
    dir: PathBuf,
    known: HashMap<FileNo, Arc<TableFile>>,
}

impl TableFiles {
    /// The files of the store at `dir`, none known yet.
    pub(crate) fn new(env: &Arc<dyn Env>, dir: &Path) -> TableFiles {
        TableFiles { env: Arc::clone(env), dir: dir.to_path_buf(), known: HashMap::new() }
    }

    /// Notes a file.
    pub(crate) fn note(&mut self, file: &Arc<TableFile>) {
        self.known.entry(file.no()).or_insert_with(|| Arc::clone(file));
    }

    /// The table that `meta` describes.
    pub(crate) fn table(&mut self, keyspace: KeyspaceId, meta: TableMeta) -> Table {
        let file = self.file(meta.file, meta.salt);
        let zones = meta.zones.iter().map(|zone| self.file(zone.zone.file, zone.zone.salt));
        let zones = zones.collect();
        let index_slot = IndexSlot::default();
        Table { meta, keyspace, file, zones, segments: Vec::new(), map_number: None, index_slot }
    }

    fn file(&mut self, no: FileNo, salt: FileSalt) -> Arc<TableFile> {
        let (env, dir) = (&self.env, &self.dir);
        let file = self.known.entry(no).or_insert_with(|| {
            let file = OwnedFile::new(no, StoreFile::Table(no).path(dir), Arc::clone(env));
            Arc::new(TableFile { salt, file })
        });
        Arc::clone(file)
    }
}

/// A table.
#[derive(Debug)]
pub(crate) struct Table {
    meta: TableMeta,
    keyspace: KeyspaceId,
    file: Arc<TableFile>,
    /// Other files whose blocks it points at, as in `meta`.
    zones: Vec<Arc<TableFile>>,
    /// What its rows point into, ascending by number; of a damaged store, what is left of it.
    segments: Vec<Arc<Segment>>,
    /// Its number in the map of the sub-levels, which counts as long as that map is the version's.
    map_number: Option<MapNumber>,
    /// Its index, once lookups have asked for it.
    index_slot: IndexSlot,
}

impl Table {
    /// The table that `meta` describes, in the store at `dir`, which shares its files with no other.
    pub(crate) fn new(
        env: Arc<dyn Env>,
        dir: &Path,
        keyspace: KeyspaceId,
        meta: TableMeta,
    ) -> Table {
        TableFiles::new(&env, dir).table(keyspace, meta)
    }

    /// Its own file, then its zones.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Arc<TableFile>> {
        std::iter::once(&self.file).chain(&self.zones)
    }

    /// Its own file.
    pub(crate) fn file(&self) -> &Arc<TableFile> {
        &self.file
    }

    /// Where it keeps its index.
    pub(crate) fn index_slot(&self) -> &IndexSlot {
        &self.index_slot
    }

    /// The file, and the place in it, of the block that the index has at `handle`; `None` if no zone has it.
    pub(crate) fn place(
        &self,
        zones: Option<&Zones>,
        handle: Handle,
    ) -> Option<(&Arc<TableFile>, Handle)> {
        let Some(zones) = zones else { return Some((&self.file, handle)) };
        let (zone, handle) = zones.place(handle)?;
        Some((self.files().nth(zone)?, handle))
    }

    /// The same table with the segments that its rows point into, ascending by number.
    pub(crate) fn with_segments(self, segments: Vec<Arc<Segment>>) -> Table {
        Table { segments, ..self }
    }

    /// The same file, of which only the keys from `from` on count.
    ///
    /// REQUIRES: `from` is above the smallest key and not above the largest.
    pub(crate) fn clipped(&self, from: &[u8]) -> Table {
        debug_assert!(*self.meta.smallest_key < *from && *from <= *self.meta.largest_key);
        let smallest_key = Bytes::copy_from_slice(from);
        self.with_meta(TableMeta { smallest_key, ..self.meta.clone() })
    }

    /// The same file, of which the manifest says something else.
    pub(crate) fn with_meta(&self, meta: TableMeta) -> Table {
        let (keyspace, map_number) = (self.keyspace, self.map_number);
        let (file, zones) = (Arc::clone(&self.file), self.zones.clone());
        let (segments, index_slot) = (self.segments.clone(), Arc::clone(&self.index_slot));
        Table { meta, keyspace, file, zones, segments, map_number, index_slot }
    }

    /// The same table with another number in a map, or with none.
    pub(crate) fn numbered(&self, map_number: Option<MapNumber>) -> Table {
        Table { map_number, ..self.with_meta(self.meta.clone()) }
    }

    /// Its number in some map.
    pub(crate) fn map_number(&self) -> Option<MapNumber> {
        self.map_number
    }

    /// The same file as a table of another key space.
    pub(crate) fn moved(&self, keyspace: KeyspaceId, meta: TableMeta) -> Table {
        Table { keyspace, ..self.with_meta(meta) }
    }

    pub(crate) fn meta(&self) -> &TableMeta {
        &self.meta
    }

    pub(crate) fn file_no(&self) -> FileNo {
        self.meta.file
    }

    pub(crate) fn keyspace(&self) -> KeyspaceId {
        self.keyspace
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    pub(crate) fn segments(&self) -> &[Arc<Segment>] {
        &self.segments
    }

    /// What a version of this table that is of `kind` and has `value` in its row does.
    pub(crate) fn found(&self, kind: EntryKind, value: Bytes) -> FormatResult<Found> {
        match kind {
            EntryKind::Put => Ok(Found::Value(value)),
            EntryKind::Delete => Ok(Found::Tombstone),
            EntryKind::Separated => {
                let ValuePointer { segment, handle } = ValuePointer::decode(&value)?;
                let at = self.segments.binary_search_by_key(&segment, |known| known.file_no());
                let Ok(at) = at else {
                    let rule =
                        "a pointer into a segment that the table does not name, or that is lost";
                    return Err(FormatError::new(0u64, Problem::Invalid(rule)));
                };
                let segment = Arc::clone(&self.segments[at]);
                Ok(Found::Separated(Separated { segment, handle }))
            }
        }
    }

    /// The sequence number that a version counts as having, which has `seq` in the file.
    pub(crate) fn seq_of(&self, seq: SeqNo) -> SeqNo {
        self.meta.seq_override.unwrap_or(seq)
    }

    /// The newest version in the file that a reader as of `seq` may see.
    pub(crate) fn bound_of(&self, seq: SeqNo) -> SeqNo {
        match self.meta.seq_override {
            Some(all) if all <= seq => SeqNo::MAX,
            Some(_) => SeqNo::ZERO,
            None => seq,
        }
    }

    /// Marks its own file to be removed when its last user drops it.
    ///
    /// REQUIRES: a durable manifest edit says that the table is gone, or none ever named it.
    pub(crate) fn mark_obsolete(&self) {
        self.file.mark_obsolete();
    }

    /// Whether the table may hold `key`, by its range.
    pub(crate) fn covers(&self, key: &[u8]) -> bool {
        *self.meta.smallest_key <= *key && *key <= *self.meta.largest_key
    }
}
