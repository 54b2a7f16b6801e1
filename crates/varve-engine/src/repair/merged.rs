//! The state of a store that lost edits of its manifest: all tables that may count and the rows of the logs, merged.
//!
//! Those count that what is left of the manifest lists, with what it says of them, and those that it does not know and that
//! say themselves what they hold; not those that it has removed. Tables of one key space that follow each other without overlap
//! are chained to runs; the runs are merged, and of each key the newest version stays and those that snapshots and branches
//! see. A deletion that none of them needs goes, as what it would hide is gone as well, unless it is of a branch.

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use varve_format::edit::{SegmentMeta, TableMeta};
use varve_format::segment::{SEGMENT_HEADER_BYTES, segment_salt};
use varve_types::{FileNo, KeyspaceId, SublevelId};

use super::tables::{listed, space_of};
use super::{KnownState, Placed, Repair, Tables};
use crate::compaction::retain::Retention;
use crate::files::StoreFile;
use crate::iter::Source;
use crate::iter::level::LevelSource;
use crate::iter::merge::Merge;
use crate::manifest::{ManifestKeyspace, ManifestState};
use crate::memtable::Found;
use crate::place::{LEVELS, Place};
use crate::read::{open, read_part};
use crate::segment::Segments;
use crate::table::cache::Admission;
use crate::table::describe::describe;
use crate::table::file::Table;
use crate::table::writer::TableWriter;
use crate::{Direction, StoreError, StoreResult};

impl Repair<'_> {
    /// Merges the tables of each key space of `state` with `replayed`, the rows of the logs.
    pub(super) fn merged(
        &mut self,
        known: &KnownState,
        state: &ManifestState,
        replayed: Tables,
    ) -> StoreResult<Tables> {
        let mut found: BTreeMap<KeyspaceId, Vec<Arc<Table>>> = BTreeMap::new();
        for (id, placed) in replayed {
            found.entry(id).or_default().extend(placed.into_iter().map(|(_, table)| table));
        }
        let mut named = HashSet::new();
        for (id, tables) in listed(&known.state) {
            for (_, meta) in tables {
                named.insert(meta.file);
                named.extend(meta.zones.iter().map(|zone| zone.zone.file));
                let Some(space) = space_of(state, id) else { continue };
                let table = self.table(id, meta.clone());
                found.entry(id).or_default().extend(self.sound_or_salvaged(space, table)?);
            }
        }
        for table in self.unlisted(&named, known)? {
            let id = table.keyspace();
            match space_of(state, id) {
                Some(space) => {
                    found.entry(id).or_default().extend(self.sound_or_salvaged(space, table)?);
                }
                None if id.is_of_branch() => {
                    self.put_aside(table.path().to_path_buf());
                    let why = "only the manifest knew whether its transaction was committed";
                    self.all_lost("of a branch", &table, why.to_owned());
                }
                None => {}
            }
        }
        let mut merged = Tables::new();
        for (id, tables) in found {
            let Some(space) = space_of(state, id) else { continue };
            merged.insert(id, self.merge(id, space, tables, state)?);
        }
        Ok(merged)
    }

    /// The tables that are there and that the manifest, as far as it is known, neither names nor has removed.
    fn unlisted(
        &mut self,
        named: &HashSet<FileNo>,
        known: &KnownState,
    ) -> StoreResult<Vec<Arc<Table>>> {
        let there: HashSet<FileNo> = self.tables_there().collect();
        let mut described = Vec::new();
        let mut unknown: Vec<FileNo> = there.difference(named).copied().collect();
        unknown.retain(|no| !known.gone.contains(no));
        unknown.sort_unstable();
        for no in unknown {
            match self.describe(no)? {
                Some((id, meta)) => described.push(self.table(id, meta)),
                None => {
                    let path = StoreFile::Table(no).path(self.dir);
                    self.report.lost.push(super::LostRows {
                        keyspace: "unknown".to_owned(),
                        table: path.clone(),
                        after: None,
                        before: None,
                        why: "neither the manifest nor the table itself says what it holds"
                            .to_owned(),
                    });
                    self.put_aside(path);
                }
            }
        }
        let zones: HashSet<FileNo> = described
            .iter()
            .flat_map(|table| table.meta().zones.iter().map(|zone| zone.zone.file))
            .collect();
        // The table that points at a file has what still counts of it.
        described.retain(|table| {
            let is_whole = table.files().all(|file| there.contains(&file.no()));
            is_whole || !zones.contains(&table.file_no())
        });
        Ok(described)
    }

    /// The segments that `state` knows, and those whose headers can be read.
    pub(super) fn found_segments(&self, state: &ManifestState) -> StoreResult<Segments> {
        let mut metas: Vec<SegmentMeta> = state.segments.values().copied().collect();
        for file in &self.files {
            let StoreFile::Segment(no) = file else { continue };
            if state.segments.contains_key(no) {
                continue;
            }
            let path = file.path(self.dir);
            let (opened, size_bytes) = open(&**self.env, &path)?;
            if size_bytes < SEGMENT_HEADER_BYTES as u64 {
                continue;
            }
            let header = read_part(&*opened, &path, 0, SEGMENT_HEADER_BYTES as u64)?;
            if let Ok(salt) = segment_salt(&header) {
                metas.push(SegmentMeta { file: *no, salt, size_bytes });
            }
        }
        Ok(Segments::new(self.env, self.dir, metas.into_iter()))
    }

    /// What a table says of itself; `None` if that cannot be read.
    pub(super) fn describe(&self, no: FileNo) -> StoreResult<Option<(KeyspaceId, TableMeta)>> {
        match describe(&**self.env, &StoreFile::Table(no).path(self.dir), no) {
            Err(StoreError::Damaged { .. } | StoreError::NewerFormat { .. }) => Ok(None),
            described => described.map(Some),
        }
    }

    /// One run of new tables at the last level.
    fn merge(
        &mut self,
        id: KeyspaceId,
        space: &ManifestKeyspace,
        mut tables: Vec<Arc<Table>>,
        state: &ManifestState,
    ) -> StoreResult<Placed> {
        tables.sort_by(|a, b| a.meta().smallest_key.cmp(&b.meta().smallest_key));
        let mut runs: Vec<Vec<Arc<Table>>> = Vec::new();
        for table in tables {
            let follows = |run: &&mut Vec<Arc<Table>>| {
                run.last().is_some_and(|l| l.meta().largest_key < table.meta().smallest_key)
            };
            match runs.iter_mut().find(follows) {
                Some(run) => run.push(table),
                None => runs.push(vec![table]),
            }
        }
        let (all, forward) = ((Bound::Unbounded, Bound::Unbounded), Direction::Forward);
        let mut sources: Vec<Box<dyn Source>> = Vec::new();
        for run in runs {
            let (cache, tables) = (Arc::clone(&self.cache), run.into_iter());
            let source = LevelSource::new(cache, tables, all, forward, Admission::Pass)?;
            sources.push(Box::new(source));
        }
        let mut merge = Merge::new(sources, forward);
        let mut merged = Placed::new();
        let mut writer: Option<TableWriter> = None;
        let pinned = state.pinned();
        let mut retention = Retention::new(&pinned);
        while merge.valid() {
            let is_full = |w: &TableWriter| w.table_bytes() >= self.options.db.table_bytes;
            if retention.is_new_key(merge.key()) && writer.as_ref().is_some_and(is_full) {
                self.end_table(id, writer.take(), &mut merged)?;
            }
            let found = merge.found()?;
            let is_tombstone = found == Found::Tombstone;
            if retention.keeps(merge.key(), merge.seq(), is_tombstone, || id.is_of_branch()) {
                if writer.is_none() {
                    let (no, options) = (self.new_file(), self.table_options(id, space.options));
                    writer = Some(TableWriter::create(self.env, self.dir, no, options)?);
                }
                if let Some(writer) = &mut writer {
                    writer.add(merge.key(), merge.seq(), &found)?;
                }
            }
            merge.advance()?;
        }
        self.end_table(id, writer, &mut merged)?;
        Ok(merged)
    }

    fn end_table(
        &self,
        id: KeyspaceId,
        writer: Option<TableWriter>,
        merged: &mut Placed,
    ) -> StoreResult<()> {
        let place = Place { level: LEVELS - 1, sublevel: SublevelId::new(0) };
        let meta = writer.map(TableWriter::finish).transpose()?.flatten();
        merged.extend(meta.map(|meta| (place, self.table(id, meta))));
        Ok(())
    }
}
