//! The table files of one key space at one moment, level by level.
//!
//! A level is a list of sub-levels, a sub-level is a run of tables (SlimDB, thesis 5.1.2). A flush makes a
//! sub-level of level 0; leveled compaction keeps one sub-level in each level below, stepped merges several.
//!
//! A [`Version`] never changes; a flush or a compaction makes the next one. Readers hold the one they
//! began with, and a table file is removed when the last version that lists it is let go.
//!
//! Invariants, checked by [`Version::check`] before a version is put in force:
//! - the sub-levels of a level stand newest first, by their numbers;
//! - the tables of a sub-level are sorted by key and disjoint;
//! - of two sub-levels of one level that hold versions of one key, the first holds the newer ones, and of two
//!   levels the upper.
//!
//! A file may serve several tables: as the file of one, and as a zone of others that point at some of its blocks
//! (KVFS thesis 3.2). It is removed when the last version in which any does is let go.
//!
//! A table may stand for the end of its file only: a merge that took part of a table's keys leaves it
//! clipped ([`Table::clipped`]), and what lies before its smallest key is never read again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use varve_env::Env;
use varve_format::edit::TableMeta;
use varve_format::filter::SubLevel;
use varve_format::section::Handle;
use varve_format::segment::ValuePointer;
use varve_format::table::Zones;
use varve_format::{EntryKind, FormatError, FormatResult, Problem};
use varve_types::{FileNo, FileSalt, KeyspaceId, SeqNo, SublevelId};

use crate::compaction::policy::Run;
use crate::compaction::policy::cleaning::SegmentUse;
use crate::files::{OwnedFile, StoreFile};
use crate::memtable::Found;
use crate::segment::{Segment, Separated};
use crate::sublevel_map::{MapNumber, SublevelMap};
use crate::table::cache::IndexSlot;

/// Levels of a key space. With a growth of 10 the last holds 400 TB beside a level 1 of 400 MB.
pub(crate) const LEVELS: usize = 7;

/// A place for tables within a key space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) level: usize,
    pub(crate) sublevel: SublevelId,
}

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

    /// Has the file removed when the last user lets go of it.
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
    /// Those of the store at `dir`, none known yet.
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
    fn numbered(&self, map_number: Option<MapNumber>) -> Table {
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

    /// Has its own file removed when the last user lets go of it.
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

/// A sorted run of disjoint tables.
#[derive(Clone, Debug)]
pub(crate) struct Sublevel {
    id: SublevelId,
    tables: Vec<Arc<Table>>,
}

impl Sublevel {
    pub(crate) fn id(&self) -> SublevelId {
        self.id
    }

    /// Its tables, by key; never none.
    pub(crate) fn tables(&self) -> &[Arc<Table>] {
        &self.tables
    }

    fn run(&self) -> Run<'_> {
        Run::new(self.id, self.tables.iter().map(|table| table.meta()).collect())
    }

    /// The table that may hold `key`.
    pub(crate) fn find(&self, key: &[u8]) -> Option<&Arc<Table>> {
        let index = self.tables.partition_point(|table| *table.meta.largest_key < *key);
        self.tables.get(index).filter(|table| table.covers(key))
    }
}

/// See the module's comment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Version {
    levels: [Vec<Sublevel>; LEVELS],
    map: Option<Arc<SublevelMap>>,
}

impl Version {
    /// The map of the upper sub-levels, if there is one.
    pub(crate) fn map(&self) -> Option<&Arc<SublevelMap>> {
        self.map.as_ref()
    }

    pub(crate) fn set_map(&mut self, map: Option<Arc<SublevelMap>>) {
        self.map = map;
    }

    /// The number of a table in the map.
    pub(crate) fn number(&self, table: &Table) -> Option<SubLevel> {
        let map = self.map.as_ref()?;
        table.map_number.filter(|number| number.map == map.id()).map(|at| at.number)
    }

    /// Gives the table `file` at `place` another number.
    pub(crate) fn set_number(&mut self, place: Place, file: FileNo, number: Option<MapNumber>) {
        let tables = self.sublevel_mut(place).into_iter().flat_map(|run| &mut run.tables);
        for table in tables.filter(|table| table.file_no() == file) {
            *table = Arc::new(table.numbered(number));
        }
    }

    /// The sub-levels of `level`, newest first.
    pub(crate) fn level(&self, level: usize) -> &[Sublevel] {
        &self.levels[level]
    }

    /// All sub-levels with their levels, newest first.
    pub(crate) fn sublevels(&self) -> impl Iterator<Item = (usize, &Sublevel)> {
        let numbered = self.levels.iter().enumerate();
        numbered.flat_map(|(level, list)| list.iter().map(move |sublevel| (level, sublevel)))
    }

    /// All tables with their places.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (Place, &Arc<Table>)> {
        self.sublevels().flat_map(|(level, sublevel)| {
            let place = Place { level, sublevel: sublevel.id };
            sublevel.tables.iter().map(move |table| (place, table))
        })
    }

    /// The descriptions of the tables, for the compaction policy.
    pub(crate) fn runs(&self) -> Vec<Vec<Run<'_>>> {
        self.levels.iter().map(|level| level.iter().map(Sublevel::run).collect()).collect()
    }

    /// The files that serve the tables.
    pub(crate) fn files(&self) -> HashSet<FileNo> {
        self.tables().flat_map(|(_, table)| table.files().map(|file| file.no())).collect()
    }

    /// The segments that its tables point into, with how many bytes of their records.
    pub(crate) fn segments(&self) -> BTreeMap<FileNo, (&Arc<Segment>, u64)> {
        let mut all = BTreeMap::new();
        for (_, table) in self.tables() {
            for (segment, share) in table.segments.iter().zip(&table.meta.segments) {
                all.entry(segment.file_no()).or_insert((segment, 0)).1 += share.bytes;
            }
        }
        all
    }

    /// How the segments are used, for the cleaning policy.
    pub(crate) fn segment_uses(&self) -> Vec<SegmentUse> {
        let used = |(file, (segment, used_bytes)): (FileNo, (&Arc<Segment>, u64))| SegmentUse {
            file,
            record_bytes: segment.record_bytes(),
            used_bytes,
        };
        self.segments().into_iter().map(used).collect()
    }

    /// True if there are no tables.
    pub(crate) fn is_empty(&self) -> bool {
        self.levels.iter().all(Vec::is_empty)
    }

    /// Whether `file` is one of the tables at `place`.
    pub(crate) fn holds(&self, place: Place, file: FileNo) -> bool {
        let mut tables = self.tables();
        tables.any(|(there, table)| there == place && table.file_no() == file)
    }

    /// The tables older than the sub-level at `place` that may hold `key`, by their ranges.
    pub(crate) fn older_tables<'a>(
        &'a self,
        place: Place,
        key: &'a [u8],
    ) -> impl Iterator<Item = &'a Arc<Table>> {
        let older = move |other: &&Sublevel| other.id < place.sublevel;
        let beside = self.levels[place.level].iter().filter(older);
        let below = self.levels[place.level + 1..].iter().flatten();
        beside.chain(below).filter_map(|sublevel| sublevel.find(key))
    }

    /// The tables newer than the one at `place` that `meta` describes, and that may hold its keys, by their ranges.
    pub(crate) fn newer_tables<'a>(
        &'a self,
        place: Place,
        meta: &'a TableMeta,
    ) -> impl Iterator<Item = &'a Arc<Table>> {
        let above = self.levels[..place.level].iter().flatten();
        let newer = move |other: &&Sublevel| other.id > place.sublevel;
        let beside = self.levels[place.level].iter().filter(newer);
        above.chain(beside).flat_map(move |sublevel| {
            let first = |table: &Arc<Table>| table.meta.largest_key < meta.smallest_key;
            let tables = &sublevel.tables[sublevel.tables.partition_point(first)..];
            tables.iter().take_while(move |table| table.meta.smallest_key <= meta.largest_key)
        })
    }

    /// This version without the tables `removed` and with those `added`.
    pub(crate) fn changed(
        &self,
        removed: &[(Place, FileNo)],
        added: &[(Place, Arc<Table>)],
    ) -> Version {
        let mut next = self.clone();
        for (place, file) in removed {
            if let Some(sublevel) = next.sublevel_mut(*place) {
                sublevel.tables.retain(|table| table.file_no() != *file);
            }
        }
        for (place, table) in added {
            match next.sublevel_mut(*place) {
                Some(sublevel) => sublevel.tables.push(Arc::clone(table)),
                None => {
                    let tables = vec![Arc::clone(table)];
                    next.levels[place.level].push(Sublevel { id: place.sublevel, tables });
                }
            }
        }
        for level in &mut next.levels {
            level.retain(|sublevel| !sublevel.tables.is_empty());
            level.sort_by_key(|sublevel| std::cmp::Reverse(sublevel.id));
            for sublevel in level {
                sublevel.tables.sort_by(|a, b| a.meta.smallest_key.cmp(&b.meta.smallest_key));
            }
        }
        next
    }

    fn sublevel_mut(&mut self, place: Place) -> Option<&mut Sublevel> {
        self.levels[place.level].iter_mut().find(|sublevel| sublevel.id == place.sublevel)
    }

    /// The first invariant that does not hold, if any.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (level, sublevel) in self.sublevels() {
            for pair in sublevel.tables.windows(2) {
                let [above, below] = [pair[0].meta(), pair[1].meta()];
                if above.largest_key >= below.smallest_key {
                    return Err(format!(
                        "level {level}.{}: tables {} and {} overlap",
                        sublevel.id, above.file, below.file
                    ));
                }
            }
        }
        let newest = |sublevel: &Sublevel| {
            sublevel.tables.iter().map(|table| table.meta().largest_seq).max()
        };
        for pair in self.levels[0].windows(2) {
            if newest(&pair[0]) < newest(&pair[1]) {
                return Err(format!(
                    "level 0: sub-level {} stands before the newer sub-level {}",
                    pair[0].id, pair[1].id
                ));
            }
        }
        Ok(())
    }
}
