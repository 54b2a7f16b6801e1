//! The state of a store that lost its manifest: all tables found and the rows of the logs, merged.
//!
//! Tables of one key space that follow each other without overlap are chained to runs; the runs are merged, and
//! of each key the newest version stays, unless it deletes the key: what it would hide is gone as well. The names
//! of key spaces come from what can be read of manifests, else from the caller.

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use varve_format::edit::{Change, SegmentMeta, TableMeta, VersionEdit};
use varve_format::log::{LogReader, NextRecord, Record, RecordKind, resync};
use varve_format::segment::{SEGMENT_HEADER_BYTES, segment_salt};
use varve_types::{FileNo, KeyspaceId, SublevelId};

use super::{Placed, Repair};
use crate::files::StoreFile;
use crate::iter::Source;
use crate::iter::level::LevelSource;
use crate::iter::merge::Merge;
use crate::manifest::ManifestKeyspace;
use crate::memtable::Found;
use crate::read::{open, read_log, read_part};
use crate::segment::Segments;
use crate::table::{Admission, TableWriter, describe};
use crate::version::{LEVELS, Place, Table};
use crate::{Direction, KeyspaceOptions, StoreError, StoreResult};

/// The key spaces, by number, without tables.
pub(super) fn keyspaces(
    repair: &Repair<'_>,
    files: &[StoreFile],
) -> StoreResult<Vec<ManifestKeyspace>> {
    let mut found = BTreeMap::new();
    for (id, (name, options)) in (0..).zip(&repair.options.keyspaces) {
        found.insert(id, (name.clone(), *options));
    }
    for file in files {
        let StoreFile::Manifest(no) = file else { continue };
        let bytes = match read_log(&**repair.env, &file.path(repair.dir)) {
            Err(StoreError::Damaged { .. }) => continue,
            bytes => bytes?,
        };
        let mut reader = LogReader::new(bytes.clone(), *no);
        let mut note = |record: Record| {
            let edit = VersionEdit::decode(&record.payload).unwrap_or_default();
            for change in edit.changes {
                if let Change::CreateKeyspace { keyspace, name, prefixed, compressed } = change {
                    let options = KeyspaceOptions { prefixed, compressed };
                    found.insert(keyspace.get(), (name, options));
                }
            }
        };
        loop {
            match reader.next_record() {
                NextRecord::Record(record) if record.kind == RecordKind::Edit => note(record),
                NextRecord::Record(_) => {}
                NextRecord::End => break,
                NextRecord::Bad { offset, .. } => {
                    let later = resync(bytes, reader.log(), offset);
                    later.filter(|record| record.kind == RecordKind::Edit).for_each(&mut note);
                    break;
                }
            }
        }
    }
    let count = found.keys().next_back().map_or(0, |last| last + 1);
    let unknown = KeyspaceOptions { prefixed: false, compressed: false };
    let space = |id| {
        let (name, options) =
            found.remove(&id).unwrap_or_else(|| (format!("recovered-{id}"), unknown));
        ManifestKeyspace { name, options, tables: Vec::new() }
    };
    Ok((0..count).map(space).collect())
}

impl Repair<'_> {
    /// Merges all tables, those of `files` and `replayed` with the rows of the logs.
    pub(super) fn rebuild(
        &mut self,
        files: &[StoreFile],
        spaces: &[ManifestKeyspace],
        replayed: Vec<Placed>,
    ) -> StoreResult<Vec<Placed>> {
        let mut described = Vec::new();
        for file in files {
            let StoreFile::Table(no) = file else { continue };
            let path = file.path(self.dir);
            let Some((id, meta)) = self.describe(*no)? else {
                self.report.lost.push(super::LostRows {
                    keyspace: "unknown".to_owned(),
                    table: path.clone(),
                    after: None,
                    before: None,
                    why: "neither the manifest nor the table itself says what it holds".to_owned(),
                });
                self.damaged.push(path);
                continue;
            };
            described.push(self.table(id, meta));
        }
        let zones: HashSet<FileNo> = described
            .iter()
            .flat_map(|table| table.meta().zones.iter().map(|zone| zone.zone.file))
            .collect();
        let present = |no| files.contains(&StoreFile::Table(no));
        let tables = |placed: Placed| placed.into_iter().map(|(_, table)| table).collect();
        let mut found: Vec<Vec<Arc<Table>>> = replayed.into_iter().map(tables).collect();
        for table in described {
            // The table that points at a file has what still counts of it.
            let is_zone = zones.contains(&table.file_no());
            if is_zone && table.files().any(|file| !present(file.no())) {
                continue;
            }
            let id = table.keyspace().get() as usize;
            if table.keyspace().is_of_branch() {
                self.put_branch_table_aside(&table);
            }
            let Some(space) = spaces.get(id) else { continue };
            found[id].extend(self.sound_or_salvaged(space, table)?);
        }
        let spaces = spaces.iter().zip(0..).zip(found);
        spaces.map(|((space, id), tables)| self.merge(KeyspaceId::new(id), space, tables)).collect()
    }

    /// Without a manifest nobody knows whether the branch of a table was committed.
    fn put_branch_table_aside(&mut self, table: &Table) {
        let (meta, path) = (table.meta(), table.path().to_path_buf());
        self.report.lost.push(super::LostRows {
            keyspace: "of a branch".to_owned(),
            table: path.clone(),
            after: Some(meta.smallest_key.to_vec()),
            before: Some(meta.largest_key.to_vec()),
            why: "only the manifest knew whether its transaction was committed".to_owned(),
        });
        self.damaged.push(path);
    }

    /// The segments whose headers can be read.
    pub(super) fn found_segments(&self, files: &[StoreFile]) -> StoreResult<Segments> {
        let mut metas = Vec::new();
        for file in files {
            let StoreFile::Segment(no) = file else { continue };
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
    fn describe(&self, no: FileNo) -> StoreResult<Option<(KeyspaceId, TableMeta)>> {
        match describe(&**self.env, &StoreFile::Table(no).path(self.dir), no) {
            Err(StoreError::Damaged { .. } | StoreError::NewerFormat { .. }) => Ok(None),
            described => described.map(Some),
        }
    }

    /// One run of new tables at the last level with the newest version of each key.
    fn merge(
        &mut self,
        id: KeyspaceId,
        space: &ManifestKeyspace,
        mut tables: Vec<Arc<Table>>,
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
        let mut last: Option<Vec<u8>> = None;
        while merge.valid() {
            if last.as_deref() != Some(merge.key()) {
                last = Some(merge.key().to_vec());
                let found = merge.found()?;
                let is_full = |w: &TableWriter| w.table_bytes() >= self.options.db.table_bytes;
                if writer.as_ref().is_some_and(is_full) {
                    self.end_table(id, writer.take(), &mut merged)?;
                }
                if found != Found::Tombstone {
                    if writer.is_none() {
                        let (no, options) =
                            (self.new_file(), self.table_options(id, space.options));
                        writer = Some(TableWriter::create(self.env, self.dir, no, options)?);
                    }
                    if let Some(writer) = &mut writer {
                        writer.add(merge.key(), merge.seq(), &found)?;
                    }
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
