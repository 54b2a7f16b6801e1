//! Branches and named snapshots that a repair drops, so that it can say which.
//!
//! A repaired store is of one tree: what branches and snapshots saw depends on rows that may be lost. Which there were the
//! manifest says, or as much of it as can be read, later edits winning. A branch whose commit is in the logs has not been
//! dropped.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use varve_format::batch::decode_batch;
use varve_format::edit::{Change, VersionEdit};
use varve_format::log::{LogReader, NextRecord, RecordKind, is_room};
use varve_types::{BranchId, FileNo};

use super::Repair;
use crate::files::StoreFile;
use crate::manifest::ManifestState;
use crate::read::read_log;
use crate::{StoreError, StoreResult};

/// The trees beside the store's own.
#[derive(Default)]
struct Trees {
    snapshots: BTreeSet<String>,
    /// With what their makers said of them.
    branches: BTreeMap<BranchId, Bytes>,
}

impl Trees {
    fn note(&mut self, change: Change) {
        match change {
            Change::CreateSnapshot { name, .. } => drop(self.snapshots.insert(name)),
            Change::DeleteSnapshot { name } => drop(self.snapshots.remove(&name)),
            Change::CreateBranch { branch, info, .. } => drop(self.branches.insert(branch, info)),
            Change::EndBranch(branch) => drop(self.branches.remove(&branch)),
            _ => {}
        }
    }
}

impl Repair<'_> {
    /// Notes what is dropped with the manifest `state`, or with what `files` have of it.
    pub(super) fn note_dropped(
        &mut self,
        files: &[StoreFile],
        state: Option<&ManifestState>,
    ) -> StoreResult<()> {
        let mut trees = Trees::default();
        if let Some(state) = state {
            trees.snapshots.extend(state.snapshots.keys().cloned());
            let branches = state.branches.iter().map(|(id, branch)| (*id, branch.info.clone()));
            trees.branches.extend(branches);
        } else {
            self.each_record(files, RecordKind::Edit, &mut |payload| {
                let edit = VersionEdit::decode(payload).unwrap_or_default();
                edit.changes.into_iter().for_each(|change| trees.note(change));
            })?;
        }
        self.each_record(files, RecordKind::Batch, &mut |payload| {
            if let Ok(batch) = decode_batch(payload)
                && let Some(ended) = batch.ends
            {
                trees.branches.remove(&ended);
            }
        })?;
        self.report.snapshots_dropped = trees.snapshots.into_iter().collect();
        let text = |info: Bytes| String::from_utf8_lossy(&info).into_owned();
        self.report.branches_dropped = trees.branches.into_values().map(text).collect();
        Ok(())
    }

    /// The records of all manifests or all logs, in order, up to the first that cannot be read.
    fn each_record(
        &self,
        files: &[StoreFile],
        kind: RecordKind,
        each: &mut dyn FnMut(&Bytes),
    ) -> StoreResult<()> {
        let mut numbers: Vec<FileNo> = files
            .iter()
            .filter_map(|file| match file {
                StoreFile::Manifest(no) if kind == RecordKind::Edit => Some(*no),
                StoreFile::Wal(no) if kind == RecordKind::Batch => Some(*no),
                _ => None,
            })
            .collect();
        numbers.sort_unstable();
        for no in numbers {
            let file = match kind {
                RecordKind::Edit => StoreFile::Manifest(no),
                _ => StoreFile::Wal(no),
            };
            let bytes = match read_log(&**self.env, &file.path(self.dir)) {
                Err(StoreError::Damaged { .. }) => return Ok(()),
                bytes => bytes?,
            };
            let mut reader = LogReader::new(bytes.clone(), no);
            loop {
                match reader.next_record() {
                    NextRecord::Record(record) if record.kind == kind => each(&record.payload),
                    NextRecord::Record(_) => {}
                    NextRecord::End => break,
                    NextRecord::Bad { offset, .. } if is_room(&bytes[offset as usize..]) => break,
                    NextRecord::Bad { .. } => return Ok(()),
                }
            }
        }
        Ok(())
    }
}
