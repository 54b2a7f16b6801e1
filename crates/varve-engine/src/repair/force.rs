//! Puts the state that a repair has made in force.

use std::collections::BTreeMap;
use std::sync::Arc;

use varve_format::edit::{Change, SegmentMeta, VersionEdit};
use varve_format::log::LogId;
use varve_types::{FileNo, KeyspaceId};

use super::tables::space_of;
use super::{Repair, Tables};
use crate::KeyspaceOptions;
use crate::StoreResult;
use crate::files::io_error;
use crate::manifest::{Manifest, ManifestState};
use crate::place::Place;
use crate::poison::Poison;
use crate::wal::LogWriter;
use crate::wal::recovery::Recovered;

impl Repair<'_> {
    /// Puts `tables` in force with the key spaces, snapshots and branches of `state`. Without `logs`, the oldest that is needed
    /// and the newest that was synced, none is needed any longer.
    pub(super) fn put_in_force(
        &mut self,
        state: &ManifestState,
        tables: &Tables,
        logs: Option<(FileNo, FileNo)>,
    ) -> StoreResult<()> {
        self.link_aside()?;
        (self.tell)(&self.report)?;
        let (env, dir) = (Arc::clone(self.env), self.dir.to_path_buf());
        let (oldest_log, newest_log, last_seq) = match logs {
            Some((oldest, newest)) => (oldest, newest, state.last_seq),
            None => {
                let log = LogId { file: self.new_file(), salt: self.salt };
                // What is written from now on is newer than what snapshots and branches see, also where the logs lost it.
                let pinned = state.pinned().last().copied().unwrap_or_default();
                let last_seq = state.last_seq.max(pinned);
                let recovered = Recovered { last_seq, ..Recovered::default() };
                LogWriter::create(Arc::clone(&self.reserve), dir.clone(), log, &recovered)?;
                (log.file, log.file, last_seq)
            }
        };
        env.sync_dir(&dir).map_err(|error| io_error("sync", &dir, error))?;
        let manifest = LogId { file: self.new_file(), salt: self.salt };
        let mut changes = Vec::new();
        for (space, id) in state.keyspaces.iter().zip(0..) {
            let KeyspaceOptions { prefixed, compressed } = space.options;
            let (keyspace, name) = (KeyspaceId::new(id), space.name.clone());
            changes.push(Change::CreateKeyspace { keyspace, name, prefixed, compressed });
        }
        changes.push(Change::OldestLog(oldest_log));
        changes.push(Change::NewestLog(newest_log));
        changes.push(Change::NextFile(self.next_file));
        changes.push(Change::LastSeq(last_seq));
        changes.extend(trees(state));
        // Those of a branch that the logs have ended are gone with it.
        let lasting = || tables.iter().filter(|(id, _)| space_of(state, **id).is_some());
        let segments =
            lasting().flat_map(|(_, placed)| placed).flat_map(|(_, table)| table.segments());
        let segments: BTreeMap<FileNo, SegmentMeta> =
            segments.map(|segment| (segment.file_no(), *segment.meta())).collect();
        changes.extend(segments.into_values().map(Change::AddSegment));
        for (keyspace, (Place { level, sublevel }, table)) in
            lasting().flat_map(|(id, placed)| placed.iter().map(|table| (*id, table)))
        {
            let (level, meta) = (*level as u8, table.meta().clone());
            changes.push(Change::AddTable { keyspace, level, sublevel: *sublevel, meta });
        }
        let (edit, poison) = (VersionEdit { changes }, Poison::default());
        Manifest::create(&env, &dir, manifest, &edit, last_seq, &poison)?;
        // The next open removes what the new manifest does not list.
        Ok(())
    }

    /// Gives damaged files a second name outside of the store, so that they survive their removal.
    fn link_aside(&mut self) -> StoreResult<()> {
        let aside = &self.options.aside;
        let env = self.env;
        if self.damaged.is_empty() {
            return Ok(());
        }
        match env.create_dir(aside) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(io_error("create", aside, error));
            }
            _ => {}
        }
        for path in &self.damaged {
            let Some(name) = path.file_name() else { continue };
            let to = aside.join(name);
            match env.link(path, &to) {
                // What is missing cannot be kept.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(io_error("link aside", path, error));
                }
                _ => self.report.aside.push(to),
            }
        }
        for dir in [Some(aside.as_path()), aside.parent()].into_iter().flatten() {
            env.sync_dir(dir).map_err(|error| io_error("sync", dir, error))?;
        }
        Ok(())
    }
}

/// The named snapshots and the branches of `state`. A parent has a smaller number than its branches.
fn trees(state: &ManifestState) -> Vec<Change> {
    let named = state.snapshots.iter();
    let mut changes: Vec<Change> =
        named.map(|(name, seq)| Change::CreateSnapshot { name: name.clone(), seq: *seq }).collect();
    for (id, branch) in &state.branches {
        changes.push(Change::CreateBranch {
            branch: *id,
            parent: branch.parent,
            seq: branch.seq,
            locking: branch.locking,
            info: branch.info.clone(),
        });
        changes.extend(branch.spaces.iter().map(|space| Change::CreateBranchSpace {
            branch: *id,
            base: space.base,
            keyspace: space.id,
            private: space.private,
        }));
    }
    changes
}
