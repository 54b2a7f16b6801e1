//! What the manifest says, or what is left of it.
//!
//! 1. The manifest that CURRENT names, if both can be read.
//! 2. If CURRENT cannot, the newest manifest that is whole: those that CURRENT still names, in either of its lines, come first.
//! 3. Else what can be read of the manifest and of its copy, each record at its offset: what one has lost the other may have. If nothing is
//!    missing then, that is the manifest.
//! 4. Else all edits that can be read of the manifest in force, or of the newest of which any can, in their order. What an edit
//!    changes may be missing then, so none is refused: the last word about a table, snapshot or branch counts. A table that
//!    was removed is gone wherever the manifest had it.
//!
//! A manifest that was cut between two edits looks whole; that it is not shows in files that it needs and that are gone, beside
//! tables that it does not know. A part as short as a marker held no more than one or an edit of one number, which the tables and logs tell as well: without
//! it the manifest is whole.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;

use bytes::Bytes;
use varve_format::edit::{Change, VersionEdit};
use varve_format::log::{LogId, RecordKind, encoded_len};
use varve_types::{BranchId, FileNo, KeyspaceId};

use super::logs::{Part, parts};
use super::tables::listed;
use super::{KnownState, Repair};
use crate::branch::record::BranchSpace;
use crate::files::StoreFile;
use crate::manifest::{
    ManifestBranch, ManifestKeyspace, ManifestState, load_copy, load_manifest, read_current,
};
use crate::place::{LEVELS, Place};
use crate::read::{CURRENT_BYTES_MAX, read_whole};
use crate::{KeyspaceOptions, StoreError, StoreResult};

/// Why a manifest of which all that is left can be read does not count as whole.
const LOST_END: &str = "the manifest ends before the last of its edits";
/// The most bytes of a payload that says one number: no table, snapshot or branch has so few.
const NUMBER_BYTES: usize = 4;
/// The options of a key space of which nothing is known.
const UNKNOWN: KeyspaceOptions = KeyspaceOptions { prefixed: false, compressed: false };

/// What the edits that were read add up to.
struct Edits {
    state: ManifestState,
    gone: BTreeSet<FileNo>,
    /// Tables that are listed somewhere.
    listed: BTreeSet<FileNo>,
    /// Edits read.
    count: usize,
    /// An edit is missing that may have said more than a number.
    is_broken: bool,
}

impl Repair<'_> {
    /// What the manifest says; notes in the report if it is not whole, or CURRENT does not name it.
    pub(super) fn known(&mut self) -> StoreResult<KnownState> {
        let named = match read_current(&**self.env, self.dir) {
            Ok(Some(no)) => match self.whole(no)? {
                Ok(state) => return Ok(whole(state)),
                Err(why) => {
                    self.report.manifest_lost = Some(why);
                    Some(no)
                }
            },
            Ok(None) if self.files.iter().all(|file| file.number().is_none()) => {
                return Err(StoreError::NotAStore { path: self.dir.to_path_buf() });
            }
            Ok(None) => {
                self.report.manifest_lost = Some("CURRENT is missing".to_owned());
                None
            }
            Err(error @ StoreError::Damaged { .. }) => {
                self.report.manifest_lost = Some(error.to_string());
                self.put_aside(StoreFile::Current.path(self.dir));
                None
            }
            Err(error) => return Err(error),
        };
        let candidates = match named {
            Some(no) => vec![no],
            None => self.candidates()?,
        };
        if named.is_none() {
            for no in &candidates {
                if let Ok(state) = self.whole(*no)? {
                    return Ok(whole(state));
                }
            }
        }
        let others = self.manifests().into_iter().filter(|no| Some(*no) != named);
        let candidates: Vec<FileNo> = named.into_iter().chain(others).collect();
        for no in &candidates {
            for file in [StoreFile::Manifest(*no), StoreFile::ManifestCopy(*no)] {
                self.put_aside(file.path(self.dir));
            }
        }
        let salt = self.salt_of_logs()?;
        let mut edits = Edits::new(salt);
        edits.is_broken = true;
        for no in candidates {
            edits = self.edits(no, salt)?;
            if edits.count > 0 {
                // An older one does not say what has changed since.
                edits.is_broken |= named.is_some_and(|named| named != no);
                break;
            }
        }
        self.complete(edits)
    }

    /// What the manifest `no` says, or why it cannot be taken as it is.
    fn whole(&self, no: FileNo) -> StoreResult<Result<ManifestState, String>> {
        match load_manifest(&**self.env, self.dir, no) {
            Ok(state) => Ok(match self.contradiction(&state) {
                None if self.has_lost_its_end(&state)? && !self.is_as_copied(&state) => {
                    Err(LOST_END.to_owned())
                }
                None => Ok(state),
                Some(contradiction) => Err(contradiction),
            }),
            Err(error @ StoreError::Damaged { .. }) => Ok(Err(error.to_string())),
            Err(StoreError::Io { source, path, .. }) if source.kind() == ErrorKind::NotFound => {
                Ok(Err(format!("{} is missing", path.display())))
            }
            Err(error) => Err(error),
        }
    }

    /// Whether edits after those of `state` were in force: what it needs is gone, and tables are there that it does not know.
    fn has_lost_its_end(&self, state: &ManifestState) -> StoreResult<bool> {
        let there: BTreeSet<FileNo> = self.tables_there().collect();
        let metas = || listed(state).flat_map(|(_, tables)| tables).map(|(_, meta)| meta);
        let has_log = self.files.contains(&StoreFile::Wal(state.oldest_log));
        if has_log && metas().all(|meta| there.contains(&meta.file)) {
            return Ok(false);
        }
        let zones = metas().flat_map(|meta| meta.zones.iter().map(|zone| zone.zone.file));
        let named: BTreeSet<FileNo> = metas().map(|meta| meta.file).chain(zones).collect();
        for no in there.difference(&named) {
            if self.describe(*no)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether both files of the manifest say the same: one fault does not cut both.
    fn is_as_copied(&self, state: &ManifestState) -> bool {
        let copied = load_copy(&**self.env, self.dir, state.no);
        let own = load_manifest(&**self.env, self.dir, state.no);
        [own, copied].iter().all(|loaded| loaded.as_ref().is_ok_and(|loaded| loaded == state))
    }

    /// The tables that are there.
    pub(super) fn tables_there(&self) -> impl Iterator<Item = FileNo> {
        self.files.iter().filter_map(|file| match file {
            StoreFile::Table(no) => Some(*no),
            _ => None,
        })
    }

    /// The manifests that are there, or of which the copy is, newest first.
    fn manifests(&self) -> Vec<FileNo> {
        let number = |file: &StoreFile| match file {
            StoreFile::Manifest(no) | StoreFile::ManifestCopy(no) => Some(*no),
            _ => None,
        };
        let mut numbers: Vec<FileNo> = self.files.iter().filter_map(number).collect();
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        numbers.dedup();
        numbers
    }

    /// The manifests that may be in force: those that CURRENT names in one of its lines, then the newest.
    fn candidates(&self) -> StoreResult<Vec<FileNo>> {
        let path = StoreFile::Current.path(self.dir);
        let bytes = match read_whole(&**self.env, &path, CURRENT_BYTES_MAX) {
            Err(StoreError::Damaged { .. }) => Bytes::new(),
            Err(StoreError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                Bytes::new()
            }
            bytes => bytes?,
        };
        let there = self.manifests();
        let named = bytes.split(|byte| *byte == b'\n').filter_map(|line| {
            match StoreFile::parse(std::str::from_utf8(line).ok()?.as_ref())? {
                StoreFile::Manifest(no) => Some(no),
                _ => None,
            }
        });
        let mut candidates: Vec<FileNo> = named.filter(|no| there.contains(no)).collect();
        candidates.extend(&there);
        Ok(candidates)
    }

    /// The salt of the store's logs as a log's header has it, or a new one if none can be read.
    fn salt_of_logs(&self) -> StoreResult<u64> {
        for file in &self.files {
            if let StoreFile::Wal(no) = file
                && let Some(header) = self.header(StoreFile::Wal(*no))?
            {
                return Ok(header.salt);
            }
        }
        Ok(self.salt)
    }

    /// All edits of the manifest `no` that can be read, in it or in its copy.
    fn edits(&self, no: FileNo, salt: u64) -> StoreResult<Edits> {
        let mut edits = Edits::new(salt);
        edits.state.no = no;
        let files = [StoreFile::Manifest(no), StoreFile::ManifestCopy(no)];
        let headers = [self.header(files[0])?, self.header(files[1])?];
        let salts: Vec<u64> = headers.into_iter().flatten().map(|header| header.salt).collect();
        // A file of another store may stand in the place of one.
        let salt =
            salts.iter().find(|own| **own == salt).or(salts.first()).copied().unwrap_or(salt);
        edits.state.salt = salt;
        let mut both = Vec::new();
        for file in files {
            let Some(bytes) = self.log_bytes(file)? else { continue };
            both.extend(parts(&bytes, LogId { file: no, salt }));
        }
        let (parts, len) = joined(both);
        for part in parts {
            match part {
                Part::Record(record) if record.kind == RecordKind::Edit => {
                    match VersionEdit::decode(&record.payload) {
                        Ok(edit) => edit.changes.into_iter().for_each(|change| edits.apply(change)),
                        Err(_) => edits.is_broken = true,
                    }
                    edits.count += 1;
                }
                Part::Record(_) => {}
                // What is behind the last record was never in force, or a marker proves that it was.
                Part::Bad { end, .. } if end == len => edits.is_broken = true,
                Part::Bad { offset, end, .. } => {
                    edits.is_broken |= end - offset > encoded_len(NUMBER_BYTES) as u64;
                }
            }
        }
        Ok(edits)
    }

    /// What is known with `edits`, and the names of key spaces that the caller has.
    fn complete(&mut self, edits: Edits) -> StoreResult<KnownState> {
        let Edits { mut state, gone, is_broken, count, .. } = edits;
        let keyspaces = state.keyspaces.len();
        let is_whole = count > 0
            && !is_broken
            && self.contradiction(&state).is_none()
            && !self.has_lost_its_end(&state)?;
        if is_whole {
            return Ok(KnownState { state, is_whole, gone, keyspaces });
        }
        for (id, (name, options)) in self.options.keyspaces.iter().enumerate() {
            match state.keyspaces.get_mut(id) {
                Some(space) if space.name.is_empty() => {
                    (space.name, space.options) = (name.clone(), *options);
                }
                Some(_) => {}
                None => state.keyspaces.push(ManifestKeyspace {
                    name: name.clone(),
                    options: *options,
                    tables: Vec::new(),
                }),
            }
        }
        for (id, space) in state.keyspaces.iter_mut().enumerate() {
            if space.name.is_empty() {
                space.name = format!("recovered-{id}");
            }
        }
        self.report.branches_dropped = drop_orphans(&mut state);
        Ok(KnownState { state, is_whole, gone, keyspaces })
    }
}

fn whole(state: ManifestState) -> KnownState {
    let keyspaces = state.keyspaces.len();
    KnownState { state, is_whole: true, gone: BTreeSet::new(), keyspaces }
}

/// The parts of a manifest and of its copy as those of one file, and where the last record or the damage behind it ends.
fn joined(both: Vec<Part>) -> (Vec<Part>, u64) {
    let (mut records, mut bad) = (BTreeMap::new(), Vec::new());
    for part in both {
        match part {
            Part::Record(record) => drop(records.entry(record.offset).or_insert(record)),
            Part::Bad { offset, end, why } => bad.push((offset, end, why)),
        }
    }
    let (mut parts, mut at) = (Vec::new(), 0);
    let gap = |offset, end| {
        let why = bad.iter().find(|(from, to, _)| *from < end && *to > offset);
        Part::Bad { offset, end, why: why.map_or_else(String::new, |(.., why)| why.clone()) }
    };
    for (offset, record) in records {
        if offset > at {
            parts.push(gap(at, offset));
        }
        at = at.max(record.end());
        parts.push(Part::Record(record));
    }
    let len = bad.iter().map(|(_, end, _)| *end).fold(at, u64::max);
    if len > at {
        parts.push(gap(at, len));
    }
    (parts, len)
}

/// Drops branches that stand over one that is missing, and tables of key spaces of none. Gives what their makers said of them.
fn drop_orphans(state: &mut ManifestState) -> Vec<String> {
    let mut dropped = Vec::new();
    let orphan = |state: &ManifestState| {
        let is_missing = |parent: BranchId| !state.branches.contains_key(&parent);
        let mut branches = state.branches.iter();
        branches.find(|(_, branch)| branch.parent.is_some_and(is_missing)).map(|(id, _)| *id)
    };
    while let Some(branch) = orphan(state).and_then(|id| state.branches.remove(&id)) {
        dropped.push(String::from_utf8_lossy(&branch.info).into_owned());
    }
    let count = state.keyspaces.len();
    for branch in state.branches.values_mut() {
        branch.spaces.retain(|own| (own.base.get() as usize) < count);
    }
    let spaces = state.branches.values().flat_map(|branch| &branch.spaces);
    let spaces: BTreeSet<KeyspaceId> = spaces.map(|own| own.id).collect();
    state.branch_tables.retain(|id, _| spaces.contains(id));
    for id in spaces {
        state.branch_tables.entry(id).or_default();
    }
    dropped
}

/// Ends branches whose commits the logs had.
pub(super) fn end_branches(state: &mut ManifestState, ended: &[BranchId]) {
    for branch in ended.iter().filter_map(|id| state.branches.remove(id)) {
        branch.spaces.iter().for_each(|own| drop(state.branch_tables.remove(&own.id)));
    }
}

impl Edits {
    fn new(salt: u64) -> Edits {
        let mut state = ManifestState::new(FileNo::new(0));
        state.salt = salt;
        let (gone, listed) = (BTreeSet::new(), BTreeSet::new());
        Edits { state, gone, listed, count: 0, is_broken: false }
    }

    /// Makes a change, whatever it finds.
    fn apply(&mut self, change: Change) {
        let state = &mut self.state;
        match change {
            Change::CreateKeyspace { keyspace, name, prefixed, compressed } => {
                if let Some(space) = self.space(keyspace) {
                    space.name = name;
                    space.options = KeyspaceOptions { prefixed, compressed };
                }
            }
            Change::OldestLog(no) => state.oldest_log = no,
            Change::NewestLog(no) => state.newest_log = no,
            Change::NextFile(no) if no <= FileNo::MAX => state.next_file = no,
            Change::NextFile(_) => {}
            Change::LastSeq(seq) => state.last_seq = seq,
            Change::AddSegment(meta) => drop(state.segments.insert(meta.file, meta)),
            Change::AddTable { level, .. } if usize::from(level) >= LEVELS => {}
            Change::AddTable { keyspace, level, sublevel, meta } => {
                self.gone.remove(&meta.file);
                self.take_out(meta.file);
                self.listed.insert(meta.file);
                let place = Place { level: usize::from(level), sublevel };
                if keyspace.is_of_branch() {
                    let tables = self.state.branch_tables.entry(keyspace).or_default();
                    tables.push((place, meta));
                } else if let Some(space) = self.space(keyspace) {
                    space.tables.push((place, meta));
                }
            }
            Change::RemoveTable { file, .. } => {
                self.take_out(file);
                self.gone.insert(file);
            }
            Change::CreateSnapshot { name, seq } => drop(state.snapshots.insert(name, seq)),
            Change::DeleteSnapshot { name } => drop(state.snapshots.remove(&name)),
            Change::CreateBranch { branch, parent, seq, locking, info } => {
                let new = ManifestBranch { parent, seq, locking, info, spaces: Vec::new() };
                state.branches.insert(branch, new);
            }
            Change::CreateBranchSpace { branch, base, keyspace, private } => {
                if let Some(branch) = state.branches.get_mut(&branch) {
                    branch.spaces.push(BranchSpace { base, id: keyspace, private });
                    state.branch_tables.entry(keyspace).or_default();
                }
            }
            Change::EndBranch(branch) => self.end(branch),
        }
    }

    /// The store's key space with this number, made if it is not known; `None` if no store has so many.
    fn space(&mut self, id: KeyspaceId) -> Option<&mut ManifestKeyspace> {
        /// More key spaces than a store has; a number that says more is not believed.
        const KEYSPACES_MAX: usize = 1 << 20;
        let (at, spaces) = (id.get() as usize, &mut self.state.keyspaces);
        if at >= KEYSPACES_MAX {
            return None;
        }
        while spaces.len() <= at {
            let name = String::new();
            spaces.push(ManifestKeyspace { name, options: UNKNOWN, tables: Vec::new() });
        }
        spaces.get_mut(at)
    }

    /// Takes a table out of wherever it is.
    fn take_out(&mut self, file: FileNo) {
        if !self.listed.remove(&file) {
            return;
        }
        let of_store = self.state.keyspaces.iter_mut().map(|space| &mut space.tables);
        for tables in of_store.chain(self.state.branch_tables.values_mut()) {
            tables.retain(|(_, meta)| meta.file != file);
        }
    }

    /// Ends a branch; tables that an earlier change of the edit did not hand on are gone.
    fn end(&mut self, branch: BranchId) {
        let Some(ended) = self.state.branches.remove(&branch) else { return };
        for own in ended.spaces {
            let tables = self.state.branch_tables.remove(&own.id).unwrap_or_default();
            self.gone.extend(tables.into_iter().map(|(_, meta)| meta.file));
        }
    }
}
