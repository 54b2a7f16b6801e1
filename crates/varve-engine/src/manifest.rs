//! The manifest: which tables, segments and key spaces make up the store.
//!
//! A log of version edits. The file CURRENT names the one in force:
//!
//! ```text
//! MANIFEST-000000000007
//! MANIFEST-000000000007      (again, so that damage is noticed)
//! ```
//!
//! 1. [`load`] replays the edits of the manifest in force.
//! 2. [`Manifest::create`] writes the whole state as the first edits of a new manifest, makes it durable
//!    and only then lets CURRENT name it, by rename. Done at every open, and when the manifest is long.
//! 3. [`Manifest::append`] adds an edit; it is durable when the call returns. It goes over zeros that were written before, so that
//!    the sync is of these bytes alone, not of how long the file is and what of it is in use.
//! 4. What is in the manifest then goes to its copy, at the same offset. A repair takes from either file what the other one has
//!    lost ([`crate::repair`]). Nobody waits for the copy: it is not synced before the close, so that a power cut may take its end.
//!
//! Invariants:
//! - An edit takes effect in memory only after it is durable.
//! - The newest log that it names, and all before it, were durable when it said so: one that is missing is damage.
//! - After each sync a marker record says how much is durable, so that a torn last edit (never in
//!   effect, cut) is told from a damaged one (an error).
//! - The copy holds no edit that is not durable in the manifest, and all of them but for a power cut: one that cannot be written is
//!   removed.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use varve_env::{Allocate, Env, File, OpenMode, is_passing};
use varve_format::edit::{Change, SegmentMeta, TableMeta, VersionEdit};
use varve_format::log::{
    HEADER_BYTES, LogHeader, LogId, LogKind, LogReader, NextRecord, Record, RecordKind, Stamp,
    encode_record, is_room, resync,
};
use varve_format::segment::SegmentShare;
use varve_types::{BranchId, FileNo, KeyspaceId, SeqNo};

use crate::branch::record::BranchSpace;
use crate::files::{StoreFile, format_error, io_error};
use crate::place::{LEVELS, Place};
use crate::poison::Poison;
use crate::read::{CURRENT_BYTES_MAX, read_log, read_whole};
use crate::{KeyspaceOptions, StoreError, StoreResult};

/// An edit of the state that a manifest begins with ends once it has so many bytes: some tables, snapshots or branches.
const PIECE_BYTES: usize = 256;
/// Room is taken in pieces that end at multiples of this, in bytes.
const ROOM_BYTES: u64 = 64 << 10;
/// How often it is tried to sync the name of a new manifest, while there is no descriptor for that, and how long each is waited for.
const SYNC_TRIES_MAX: u32 = 100;
const SYNC_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// A key space as the manifest has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ManifestKeyspace {
    pub(crate) name: String,
    pub(crate) options: KeyspaceOptions,
    pub(crate) tables: Vec<(Place, TableMeta)>,
}

/// A branch as the manifest has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ManifestBranch {
    pub(crate) parent: Option<BranchId>,
    pub(crate) seq: SeqNo,
    /// It held locks, which nobody holds any more.
    pub(crate) locking: bool,
    pub(crate) info: Bytes,
    pub(crate) spaces: Vec<BranchSpace>,
}

/// What the edits add up to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ManifestState {
    /// The manifest they stand in.
    pub(crate) no: FileNo,
    /// By number.
    pub(crate) keyspaces: Vec<ManifestKeyspace>,
    pub(crate) snapshots: BTreeMap<String, SeqNo>,
    pub(crate) branches: BTreeMap<BranchId, ManifestBranch>,
    /// The tables of each key space of a branch.
    pub(crate) branch_tables: BTreeMap<KeyspaceId, Vec<(Place, TableMeta)>>,
    /// What tables may point into; those that none does are gone.
    pub(crate) segments: BTreeMap<FileNo, SegmentMeta>,
    pub(crate) oldest_log: FileNo,
    /// The newest log that is known to have been synced; 0: none is.
    pub(crate) newest_log: FileNo,
    pub(crate) next_file: FileNo,
    /// The newest write that tables hold.
    pub(crate) last_seq: SeqNo,
    /// The salt of the store's logs, this one among them.
    pub(crate) salt: u64,
}

impl ManifestState {
    /// The state of the manifest `no` before its first edit.
    pub(crate) fn new(no: FileNo) -> ManifestState {
        ManifestState {
            no,
            keyspaces: Vec::new(),
            snapshots: BTreeMap::new(),
            branches: BTreeMap::new(),
            branch_tables: BTreeMap::new(),
            segments: BTreeMap::new(),
            oldest_log: FileNo::new(0),
            newest_log: FileNo::new(0),
            next_file: FileNo::new(0),
            last_seq: SeqNo::ZERO,
            salt: 0,
        }
    }

    /// The moments that snapshots and branches keep, ascending.
    pub(crate) fn pinned(&self) -> Vec<SeqNo> {
        let branches = self.branches.values().map(|branch| branch.seq);
        let mut pinned: Vec<SeqNo> = self.snapshots.values().copied().chain(branches).collect();
        pinned.sort_unstable();
        pinned
    }

    fn tables_mut(&mut self, keyspace: KeyspaceId) -> Result<&mut Vec<(Place, TableMeta)>, String> {
        let tables = if keyspace.is_of_branch() {
            self.branch_tables.get_mut(&keyspace)
        } else {
            self.keyspaces.get_mut(keyspace.get() as usize).map(|space| &mut space.tables)
        };
        tables.ok_or_else(|| format!("a change to unknown key space {keyspace}"))
    }
}

/// The state of the store at `dir`, or `None` if there is no CURRENT.
pub(crate) fn load(env: &dyn Env, dir: &Path) -> StoreResult<Option<ManifestState>> {
    read_current(env, dir)?.map(|no| load_manifest(env, dir, no)).transpose()
}

/// The state that the manifest `no` holds.
pub(crate) fn load_manifest(env: &dyn Env, dir: &Path, no: FileNo) -> StoreResult<ManifestState> {
    let path = StoreFile::Manifest(no).path(dir);
    let (state, end) = load_file(env, &path, no)?;
    if copy_goes_on(env, dir, LogId { file: no, salt: state.salt }, end) {
        let detail = "its copy has edits that it lacks".to_owned();
        return Err(StoreError::Damaged { path, offset: end, detail });
    }
    Ok(state)
}

/// Whether the copy of a manifest has edits behind `end`. They were durable in the manifest, so it was cut since.
fn copy_goes_on(env: &dyn Env, dir: &Path, log: LogId, end: u64) -> bool {
    let path = StoreFile::ManifestCopy(log.file).path(dir);
    // An older version of this program makes no copy, and one that cannot be read says nothing.
    env.stat(&path).is_ok_and(|stat| stat.len > end)
        && read_log(env, &path)
            .is_ok_and(|bytes| resync(bytes, log, end).any(|r| r.kind == RecordKind::Edit))
}

/// The state that the copy of the manifest `no` holds.
pub(crate) fn load_copy(env: &dyn Env, dir: &Path, no: FileNo) -> StoreResult<ManifestState> {
    load_file(env, &StoreFile::ManifestCopy(no).path(dir), no).map(|(state, _)| state)
}

/// The state that a manifest or its copy holds, and where its last record ends.
fn load_file(env: &dyn Env, path: &Path, no: FileNo) -> StoreResult<(ManifestState, u64)> {
    let bytes = read_log(env, path)?;
    let mut state = ManifestState::new(no);
    let mut reader = LogReader::new(bytes.clone(), no);
    let mut edits = 0;
    let mut has_header = false;
    loop {
        match reader.next_record() {
            NextRecord::Record(record) => {
                if record.kind == RecordKind::Header {
                    let header = manifest_header(&record).map_err(|e| format_error(path, e))?;
                    has_header = true;
                    state.salt = header.salt;
                } else if record.kind == RecordKind::Edit {
                    apply_edit(&mut state, &record, path)?;
                    edits += 1;
                }
            }
            NextRecord::End => break,
            NextRecord::Bad { offset, .. } if edits > 0 && is_room(&bytes[offset as usize..]) => {
                break;
            }
            NextRecord::Bad { offset, why } => {
                // Storage that loses its power alone tears edits without another boot id.
                let proof = resync(bytes, reader.log(), offset).find(|r| r.synced_len > offset);
                if proof.is_some() || edits == 0 {
                    return Err(format_error(path, why));
                }
                log::warn!("{}: the torn edit at offset {offset} is cut", path.display());
                break;
            }
        }
    }
    if !has_header || edits == 0 {
        let (offset, detail) = (reader.offset(), "the manifest holds no state".to_owned());
        return Err(StoreError::Damaged { path: path.to_path_buf(), offset, detail });
    }
    Ok((state, reader.offset()))
}

/// The manifest that CURRENT names, or `None` if there is no CURRENT.
pub(crate) fn read_current(env: &dyn Env, dir: &Path) -> StoreResult<Option<FileNo>> {
    let path = StoreFile::Current.path(dir);
    let bytes = match read_whole(env, &path, CURRENT_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let name = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let named = std::str::from_utf8(name)
        .ok()
        .and_then(|name| StoreFile::parse(name.as_ref()))
        .and_then(|file| if let StoreFile::Manifest(no) = file { Some(no) } else { None });
    match named {
        Some(no) if bytes == current_content(no) => Ok(Some(no)),
        _ => {
            let detail = "it does not name a manifest twice".to_owned();
            Err(StoreError::Damaged { path, offset: 0, detail })
        }
    }
}

fn current_content(no: FileNo) -> Vec<u8> {
    let name = StoreFile::Manifest(no).path(Path::new(""));
    format!("{0}\n{0}\n", name.display()).into_bytes()
}

fn manifest_header(record: &Record) -> varve_format::FormatResult<LogHeader> {
    let base = record.offset + HEADER_BYTES as u64;
    let header = LogHeader::decode(&record.payload).map_err(|error| error.shifted(base))?;
    if header.kind != LogKind::Manifest || record.offset != 0 {
        let rule = "a header that is not a manifest's, or not at its start";
        return Err(varve_format::FormatError::new(base, varve_format::Problem::Invalid(rule)));
    }
    Ok(header)
}

fn apply_edit(state: &mut ManifestState, record: &Record, path: &Path) -> StoreResult<()> {
    let base = record.offset + HEADER_BYTES as u64;
    let edit = VersionEdit::decode(&record.payload)
        .map_err(|error| format_error(path, error.shifted(base)))?;
    for change in edit.changes {
        apply_change(state, change).map_err(|detail| StoreError::Damaged {
            path: path.to_path_buf(),
            offset: record.offset,
            detail,
        })?;
    }
    Ok(())
}

fn apply_change(state: &mut ManifestState, change: Change) -> Result<(), String> {
    match change {
        Change::CreateKeyspace { keyspace, name, prefixed, compressed } => {
            if keyspace.get() as usize != state.keyspaces.len() {
                return Err(format!("key space {keyspace} out of turn"));
            }
            let options = KeyspaceOptions { prefixed, compressed };
            state.keyspaces.push(ManifestKeyspace { name, options, tables: Vec::new() });
        }
        Change::OldestLog(no) => state.oldest_log = no,
        Change::NewestLog(no) => state.newest_log = no,
        Change::NextFile(no) if no > FileNo::MAX => {
            return Err(format!("the number {no} leaves none to further files"));
        }
        Change::NextFile(no) => state.next_file = no,
        Change::LastSeq(seq) => state.last_seq = seq,
        Change::AddTable { keyspace, level, sublevel, meta } => {
            let level = usize::from(level);
            if level >= LEVELS {
                return Err(format!("a table in level {level}"));
            }
            let named = |share: &&SegmentShare| state.segments.contains_key(&share.segment);
            if let Some(share) = meta.segments.iter().find(|share| !named(share)) {
                let (table, segment) = (meta.file, share.segment);
                return Err(format!(
                    "table {table} points into segment {segment}, which is not there"
                ));
            }
            state.tables_mut(keyspace)?.push((Place { level, sublevel }, meta));
        }
        Change::AddSegment(meta) => drop(state.segments.insert(meta.file, meta)),
        Change::RemoveTable { keyspace, level, file } => {
            let tables = state.tables_mut(keyspace)?;
            let listed = tables
                .iter()
                .position(|(place, meta)| place.level == usize::from(level) && meta.file == file);
            let Some(index) = listed else {
                return Err(format!("table {file} leaves level {level}, where it is not"));
            };
            tables.swap_remove(index);
        }
        change => return apply_branch_change(state, change),
    }
    Ok(())
}

/// [`apply_change`] for snapshots and branches.
fn apply_branch_change(state: &mut ManifestState, change: Change) -> Result<(), String> {
    let unknown = |id| format!("a change to unknown branch {id}");
    match change {
        Change::CreateSnapshot { name, seq } => {
            if state.snapshots.insert(name.clone(), seq).is_some() {
                return Err(format!("a second snapshot called {name:?}"));
            }
        }
        Change::DeleteSnapshot { name } => {
            if state.snapshots.remove(&name).is_none() {
                return Err(format!("snapshot {name:?} goes, but it is not there"));
            }
        }
        Change::CreateBranch { branch, parent, seq, locking, info } => {
            parent
                .filter(|parent| !state.branches.contains_key(parent))
                .map_or(Ok(()), |parent| Err(unknown(parent)))?;
            let new = ManifestBranch { parent, seq, locking, info, spaces: Vec::new() };
            if state.branches.insert(branch, new).is_some() {
                return Err(format!("branch {branch} begins twice"));
            }
        }
        Change::CreateBranchSpace { branch, base, keyspace, private } => {
            if base.get() as usize >= state.keyspaces.len() || state.tables_mut(keyspace).is_ok() {
                return Err(format!("key space {keyspace} over {base} out of turn"));
            }
            let branch = state.branches.get_mut(&branch).ok_or_else(|| unknown(branch))?;
            branch.spaces.push(BranchSpace { base, id: keyspace, private });
            state.branch_tables.insert(keyspace, Vec::new());
        }
        Change::EndBranch(branch) => {
            let ended = state.branches.remove(&branch).ok_or_else(|| unknown(branch))?;
            ended.spaces.iter().for_each(|own| drop(state.branch_tables.remove(&own.id)));
        }
        change => return Err(format!("{change:?} is no change of a branch")),
    }
    Ok(())
}

/// The manifest in force, open for appending.
#[derive(Debug)]
pub(crate) struct Manifest {
    env: Arc<dyn Env>,
    file: Arc<dyn File>,
    log: LogId,
    path: PathBuf,
    len: u64,
    /// Its length when it held one state and no more.
    first_len: u64,
    synced_len: u64,
    /// The end of the zeros behind it.
    room_end: u64,
    tables_seq: SeqNo,
    newest_log: FileNo,
    buffer: Vec<u8>,
    copy: ManifestCopy,
    /// The store may belong to another process by now.
    is_given_up: bool,
}

/// The copy of a manifest.
#[derive(Debug)]
struct ManifestCopy {
    path: PathBuf,
    /// `None` once it is given up.
    file: Option<Arc<dyn File>>,
}

impl ManifestCopy {
    /// Begins the copy of the manifest `no`.
    fn create(env: &dyn Env, dir: &Path, no: FileNo, content: &[u8]) -> ManifestCopy {
        let path = StoreFile::ManifestCopy(no).path(dir);
        let mut copy = ManifestCopy { path, file: None };
        match env.open(&copy.path, OpenMode::CreateNew) {
            Ok(file) => copy.file = Some(file),
            Err(error) => log::warn!("cannot create {}: {error}", copy.path.display()),
        }
        copy.write(env, content, 0);
        copy
    }

    /// Writes `record` at `offset`. One that lacks it would pass for the manifest, so it goes if that fails.
    fn write(&mut self, env: &dyn Env, record: &[u8], offset: u64) {
        if let Some(Err(error)) = self.file.as_ref().map(|file| file.write_all_at(record, offset)) {
            log::warn!(
                "there is no copy of the manifest any more: cannot write {}: {error}",
                self.path.display()
            );
            self.file = None;
            self.remove(env);
        }
    }

    fn remove(&self, env: &dyn Env) {
        match env.remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                log::warn!("cannot remove {}: {error}", self.path.display());
            }
            _ => {}
        }
    }
}

/// Makes durable which manifest is in force. From its rename there is no way back, so that a descriptor is waited for.
fn sync_name(env: &dyn Env, dir: &Path) -> io::Result<()> {
    for _ in 1..SYNC_TRIES_MAX {
        match env.sync_dir(dir) {
            Err(error) if is_passing(&error) => env.sleep(SYNC_RETRY_INTERVAL),
            synced => return synced,
        }
    }
    env.sync_dir(dir)
}

impl Manifest {
    /// Writes `state` as the first edits of the new manifest `log` and puts it in force.
    ///
    /// An error before CURRENT is renamed leaves the store as it was. One after it poisons: which
    /// manifest a restart would find is unknown.
    pub(crate) fn create(
        env: &Arc<dyn Env>,
        dir: &Path,
        log: LogId,
        state: &VersionEdit,
        tables_seq: SeqNo,
        poison: &Poison,
    ) -> StoreResult<Manifest> {
        let LogId { file: no, salt } = log;
        let path = StoreFile::Manifest(no).path(dir);
        let mut payload = Vec::new();
        let boot_id = env.boot_id();
        let kind = LogKind::Manifest;
        let first_seq = SeqNo::ZERO;
        LogHeader { kind, boot_id, first_seq, previous: None, salt }.encode(&mut payload);
        let mut buffer = Vec::new();
        let stamp = |offset: usize, kind| Stamp {
            log,
            offset: offset as u64,
            kind,
            external: false,
            synced_len: 0,
        };
        encode_record(&mut buffer, stamp(0, RecordKind::Header), &[&payload]);
        for piece in pieces(state) {
            let offset = buffer.len();
            encode_record(&mut buffer, stamp(offset, RecordKind::Edit), &[&piece]);
        }
        let file = write_new(&**env, &path, &buffer)?;
        let copy = ManifestCopy::create(&**env, dir, no, &buffer);
        let len = buffer.len() as u64;
        let temporary = StoreFile::Temporary.path(dir);
        let current = StoreFile::Current.path(dir);
        if env.stat(&temporary).is_ok() {
            env.remove_file(&temporary).map_err(|e| io_error("remove", &temporary, e))?;
        }
        write_new(&**env, &temporary, &current_content(no))?;
        env.sync_dir(dir).map_err(|error| io_error("sync", dir, error))?;
        env.rename(&temporary, &current).map_err(|e| io_error("rename", &temporary, e))?;
        sync_name(&**env, dir).map_err(|error| poison.set(&io_error("sync", dir, error)))?;
        let named = |change: &Change| match change {
            Change::NewestLog(log) => Some(*log),
            _ => None,
        };
        let newest_log = state.changes.iter().find_map(named).unwrap_or(FileNo::new(0));
        let (first_len, synced_len, room_end) = (len, len, len);
        let mut manifest = Manifest {
            env: Arc::clone(env),
            file,
            log,
            path,
            len,
            first_len,
            synced_len,
            room_end,
            tables_seq,
            newest_log,
            buffer,
            copy,
            is_given_up: false,
        };
        manifest.append_marker();
        Ok(manifest)
    }

    /// The manifest's number.
    #[cfg(test)]
    pub(crate) fn file_no(&self) -> FileNo {
        self.log.file
    }

    /// Removes the files of a manifest that another one has replaced.
    pub(crate) fn remove(&self) {
        if let Err(error) = self.env.remove_file(&self.path) {
            log::warn!("cannot remove {}: {error}", self.path.display());
        }
        self.copy.remove(&*self.env);
    }

    /// The salt of the store's logs.
    pub(crate) fn salt(&self) -> u64 {
        self.log.salt
    }

    /// The newest write that tables hold.
    pub(crate) fn tables_seq(&self) -> SeqNo {
        self.tables_seq
    }

    /// Notes that tables hold all writes up to `seq`.
    pub(crate) fn note_tables_seq(&mut self, seq: SeqNo) {
        self.tables_seq = self.tables_seq.max(seq);
    }

    /// The newest log that it names.
    pub(crate) fn newest_log(&self) -> FileNo {
        self.newest_log
    }

    /// Names the log `no`, which is durable, as are those before it. Fails as [`Manifest::append`] does.
    pub(crate) fn name_log(&mut self, no: FileNo, poison: &Poison) -> StoreResult<()> {
        if no > self.newest_log {
            self.append(&VersionEdit { changes: vec![Change::NewestLog(no)] }, poison)?;
            self.newest_log = no;
        }
        Ok(())
    }

    /// Whether it is to be replaced by one that holds the present state only: it has more than `bytes_max` bytes, and
    /// more of changes than of the state that it began with, so that what is written stays in proportion to the changes.
    pub(crate) fn is_long(&self, bytes_max: u64) -> bool {
        self.len > bytes_max.max(2 * self.first_len)
    }

    /// Takes no edits any more.
    pub(crate) fn give_up(&mut self) {
        self.is_given_up = true;
    }

    /// Appends `edit` and makes it durable. `NoSpace` changes nothing; any other failure poisons. Fails in a poisoned store: an
    /// edit before this one may not be on the disk, and what is synced now would not say so.
    pub(crate) fn append(&mut self, edit: &VersionEdit, poison: &Poison) -> StoreResult<()> {
        poison.check()?;
        if self.is_given_up {
            return Err(StoreError::Closed);
        }
        let mut payload = Vec::new();
        edit.encode(&mut payload);
        self.take_room(payload.len() as u64);
        match self.append_record(RecordKind::Edit, &payload) {
            Err(error @ StoreError::NoSpace { .. }) => return Err(error),
            other => other.map_err(|error| poison.set(&error))?,
        }
        self.file.sync_data().map_err(|error| {
            poison.set(&format_args!("cannot sync {}: {error}", self.path.display()))
        })?;
        self.synced_len = self.len;
        self.copy_record();
        self.append_marker();
        Ok(())
    }

    /// Writes zeros behind the end if there are not enough for a record with this payload and a marker. Without them it is written
    /// all the same, at the price of a longer sync.
    fn take_room(&mut self, payload_bytes: u64) {
        let needed = self.len + payload_bytes + 4 * HEADER_BYTES as u64;
        if needed <= self.room_end {
            return;
        }
        let start = self.room_end.max(self.len);
        let end = needed.next_multiple_of(ROOM_BYTES);
        if self.file.allocate(Allocate::Extend, start, end - start).is_ok() {
            self.file.warm_room(start, end - start);
            self.room_end = end;
        }
    }

    /// Says in the file how much of it is durable. Without it a later torn tail is harder to judge, no
    /// more, so a failure is not passed on.
    fn append_marker(&mut self) {
        match self.append_record(RecordKind::Marker, &[]) {
            Ok(()) => self.copy_record(),
            Err(error) => log::warn!("cannot append a marker: {error}"),
        }
    }

    /// Writes the last record to the copy.
    fn copy_record(&mut self) {
        let offset = self.len - self.buffer.len() as u64;
        self.copy.write(&*self.env, &self.buffer, offset);
    }

    fn append_record(&mut self, kind: RecordKind, payload: &[u8]) -> StoreResult<()> {
        self.buffer.clear();
        let (offset, synced_len) = (self.len, self.synced_len);
        let stamp = Stamp { log: self.log, offset, kind, external: false, synced_len };
        encode_record(&mut self.buffer, stamp, &[payload]);
        if let Err(error) = self.file.write_all_at(&self.buffer, self.len) {
            // Gives back what was written of the record. If that fails too the next one overwrites it.
            let _ = self.file.set_len(self.len);
            self.room_end = self.len;
            return Err(io_error("append to the manifest", &self.path, error));
        }
        self.len += self.buffer.len() as u64;
        Ok(())
    }
}

/// The changes of `state` as the payloads of several edits, so that a damaged one does not cost all of it. They are in force
/// together, since CURRENT names the manifest once all of them are durable.
fn pieces(state: &VersionEdit) -> Vec<Vec<u8>> {
    let mut pieces = vec![Vec::new()];
    for change in &state.changes {
        if let Some(piece) = pieces.last_mut() {
            VersionEdit { changes: vec![change.clone()] }.encode(piece);
            if piece.len() >= PIECE_BYTES {
                pieces.push(Vec::new());
            }
        }
    }
    if pieces.len() > 1 {
        pieces.pop_if(|piece| piece.is_empty());
    }
    pieces
}

/// Creates a file with this content and syncs it; removes it again if that fails.
fn write_new(env: &dyn Env, path: &Path, content: &[u8]) -> StoreResult<Arc<dyn File>> {
    let file =
        env.open(path, OpenMode::CreateNew).map_err(|error| io_error("create", path, error))?;
    let written = file
        .write_all_at(content, 0)
        .map_err(|error| io_error("write", path, error))
        .and_then(|()| file.sync_data().map_err(|error| io_error("sync", path, error)));
    if let Err(error) = written {
        // What stays behind is removed at the next open.
        let _ = env.remove_file(path);
        return Err(error);
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use varve_env::sim::{FaultRule, SimEnv, SimOp};

    use super::*;

    const LOG: LogId = LogId { file: FileNo::new(7), salt: 5 };

    fn dir() -> &'static Path {
        Path::new("/store")
    }

    fn with_snapshots(env: &Arc<SimEnv>, count: u64) -> Manifest {
        env.create_dir(dir()).unwrap();
        let (poison, state) = (Poison::default(), VersionEdit::default());
        let env: Arc<dyn Env> = env.clone();
        let mut manifest =
            Manifest::create(&env, dir(), LOG, &state, SeqNo::ZERO, &poison).unwrap();
        for n in 0..count {
            let (name, seq) = (format!("{n:0250}"), SeqNo::new(n + 1));
            let edit = VersionEdit { changes: vec![Change::CreateSnapshot { name, seq }] };
            manifest.append(&edit, &poison).unwrap();
        }
        manifest
    }

    #[test]
    fn edits_go_over_room_that_is_none_of_them() {
        let env = SimEnv::new(1);
        let manifest = with_snapshots(&env, 500);
        let file = env.open(&manifest.path, OpenMode::Read).unwrap();
        let len = file.stat().unwrap().len;
        assert!(len > 2 * ROOM_BYTES && len.is_multiple_of(ROOM_BYTES) && len > manifest.len);
        assert_eq!(load(env.as_ref(), dir()).unwrap().unwrap().snapshots.len(), 500);
    }

    #[test]
    fn zeros_in_the_place_of_a_durable_edit_are_damage() {
        let env = SimEnv::new(1);
        let manifest = with_snapshots(&env, 3);
        let mut bytes = vec![0; manifest.len as usize];
        manifest.file.read_exact_at(&mut bytes, 0).unwrap();
        let name = bytes.windows(3).position(|at| at == b"001").unwrap() as u64;
        manifest.file.write_all_at(&[0; 300], name - 100).unwrap();
        let error = load(env.as_ref(), dir()).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    }

    #[test]
    fn the_copy_of_a_manifest_is_written_as_version_1_wrote_it() {
        let env = SimEnv::new(1);
        let manifest = with_snapshots(&env, 2);
        let copied = env.read_raw(&manifest.copy.path).unwrap();
        varve_testkit::golden(
            concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/v1/MANIFEST.copy"),
            &copied,
        );
        assert_eq!(env.read_raw(&manifest.path).unwrap()[..copied.len()], copied);
        assert_eq!(load_copy(env.as_ref(), dir(), LOG.file).unwrap().snapshots.len(), 2);
    }

    /// A manifest that was cut between two edits was taken for whole, and what they had said was lost without a word.
    #[test]
    fn a_manifest_that_was_cut_anywhere_is_noticed() {
        let env = SimEnv::new(1);
        let manifest = with_snapshots(&env, 3);
        let bytes = env.read_raw(&manifest.path).unwrap();
        // Behind the last edit there is a marker.
        let last = manifest.len - varve_format::log::encoded_len(0) as u64;
        for len in (0..last).step_by(8) {
            let cut = env.power_cut_keep_all();
            cut.truncate_raw(&manifest.path, len).unwrap();
            assert!(matches!(load(cut.as_ref(), dir()), Err(StoreError::Damaged { .. })), "{len}");
            cut.remove_raw(&manifest.copy.path).unwrap();
            let without = load(cut.as_ref(), dir());
            assert!(without.is_err() || without.unwrap().unwrap().snapshots.len() < 3, "{len}");
        }
        assert!(bytes.len() as u64 > last);
    }

    /// A copy that lacked an edit would have passed for the manifest.
    #[test]
    fn a_copy_that_cannot_be_written_is_removed() {
        let env = SimEnv::new(1);
        let mut manifest = with_snapshots(&env, 3);
        let (path_suffix, op) = (".copy".to_owned(), SimOp::Write);
        env.fail(FaultRule { path_suffix, op, nth: 1, errno: 28, sticky: true });
        let edit =
            VersionEdit { changes: vec![Change::DeleteSnapshot { name: format!("{:0250}", 0) }] };
        manifest.append(&edit, &Poison::default()).unwrap();
        assert!(env.read_raw(&manifest.copy.path).is_err());
        manifest
            .append(
                &VersionEdit { changes: vec![Change::NextFile(FileNo::new(9))] },
                &Poison::default(),
            )
            .unwrap();
        assert_eq!(load(env.as_ref(), dir()).unwrap().unwrap().snapshots.len(), 2);
    }

    #[test]
    fn the_name_of_the_manifest_is_written_as_version_1_wrote_it() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/v1/CURRENT");
        varve_testkit::golden(path, &current_content(FileNo::new(1_234_567)));
    }
}
