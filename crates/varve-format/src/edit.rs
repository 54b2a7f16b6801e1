//! The payload of an edit record of the manifest: changes of the state of the store that take effect together.
//!
//! ```text
//! each change: 1 byte tag, then its fields; numbers are varints, strings have their length before them
//!   1 create key space   id, name, options byte (bit 0 prefixed, bit 1 compressed)
//!   2 oldest log         file number: logs before it are no longer needed
//!   3 next file          file number: no file of the store has this number or a larger one
//!   4 last sequence      number of the newest write that tables hold
//!   5 add table          key space, level byte, sub-level, file number, salt, size in bytes, entries,
//!                        tombstones, smallest seq, largest seq, sequence override (0: none), smallest key,
//!                        largest key, number of segments that its rows point into, then of each file number
//!                        and bytes of records, number of zones; if there are any, offset and length of the
//!                        table's list of them; then of each its file number, salt, bytes of the
//!                        file, bytes that the table points at, number of runs
//!   6 remove table       key space, level byte, file number
//!   7 create snapshot    name, sequence number
//!   8 delete snapshot    name
//!   9 create branch      branch, its parent (0: the store itself), sequence number of the parent at which it
//!                        began, options byte (bit 0 locking), a text of its maker
//!  10 branch key space   branch, key space of the parent, its own key space, options byte (bit 0 private)
//!  11 end branch         branch: it is removed with the tables of its key spaces
//!  12 add segment        file number, salt, size in bytes
//!  13 newest log         file number: the log with this number and all earlier ones were synced
//! ```
//!
//! The key spaces of branches have numbers of their own kind ([`KeyspaceId::of_branch`]). The tables of a branch that
//! was committed by reference are added to the parent's key spaces by the edit that ends the branch.
//!
//! When a table is added again, its smallest key may be larger than the one of its file: the rows before it have been
//! merged into other tables. Size, counts, sequence numbers and zones stay the ones of the file.
//!
//! Invariants: a segment exists from the edit that adds it until no table points into it, and it is added before the
//! first such table. A decoder never skips an unknown tag, because that would lose a change: such a tag is an error
//! that names it.
//!
//! The zones of a table are the other files whose blocks it points at ([`crate::table::Zones`]). So the edits show
//! how much of each file is still in use, without reading any file.
//!
//! Source: the version edits of LevelDB.

use bytes::Bytes;
use varve_types::limits::KEY_BYTES_MAX;
use varve_types::{BranchId, FileNo, FileSalt, KeyspaceId, SeqNo, SublevelId};

use crate::codec::{Reader, put_string, put_varint};
use crate::section::Handle;
use crate::segment::{SegmentShare, put_shares, read_shares};
use crate::table::Zone;
use crate::{FormatError, FormatResult, Problem};

/// The longest name of a key space, in bytes.
pub const KEYSPACE_NAME_BYTES_MAX: usize = 64;

/// The longest name of a snapshot, in bytes.
pub const SNAPSHOT_NAME_BYTES_MAX: usize = 255;

/// The most that a branch's maker may say of it, in bytes.
pub const BRANCH_INFO_BYTES_MAX: usize = 4096;

const CREATE_KEYSPACE: u8 = 1;
const OLDEST_LOG: u8 = 2;
const NEXT_FILE: u8 = 3;
const LAST_SEQ: u8 = 4;
const ADD_TABLE: u8 = 5;
const REMOVE_TABLE: u8 = 6;
const CREATE_SNAPSHOT: u8 = 7;
const DELETE_SNAPSHOT: u8 = 8;
const CREATE_BRANCH: u8 = 9;
const CREATE_BRANCH_SPACE: u8 = 10;
const END_BRANCH: u8 = 11;
const ADD_SEGMENT: u8 = 12;
const NEWEST_LOG: u8 = 13;

/// The fewest bytes that a zone takes.
const ZONE_BYTES_MIN: usize = 5;

const OPTION_PREFIXED: u8 = 1;
const OPTION_COMPRESSED: u8 = 2;

const OPTION_PRIVATE: u8 = 1;

const OPTION_LOCKING: u8 = 1;

/// What the manifest says of a file whose blocks a table points at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneMeta {
    /// The file.
    pub zone: Zone,
    /// Bytes that the table points at.
    pub live_bytes: u64,
    /// Runs that they make up.
    pub runs: u64,
}

/// What the manifest says of a table file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableMeta {
    /// Its number.
    pub file: FileNo,
    /// Part of every checksum of the file, so that a file with the same number from another store, or from a
    /// backup, is not taken for it.
    pub salt: FileSalt,
    /// The length of its own file in bytes.
    pub size_bytes: u64,
    /// Versions it holds, tombstones included.
    pub entries: u64,
    /// Versions that delete their key.
    pub tombstones: u64,
    /// The oldest version's sequence number.
    pub smallest_seq: SeqNo,
    /// The newest version's sequence number.
    pub largest_seq: SeqNo,
    /// The sequence number that all versions of the file count as having, whatever stands in it; then it is the
    /// smallest and the largest as well. Such a table holds one version of each key.
    pub seq_override: Option<SeqNo>,
    /// The first key, or where the keys that count begin.
    pub smallest_key: Bytes,
    /// The last key; not below the first.
    pub largest_key: Bytes,
    /// The segments that its rows point into, ascending.
    pub segments: Vec<SegmentShare>,
    /// Other files whose blocks it points at.
    pub zones: Vec<ZoneMeta>,
    /// Where the table lists them, if there are any.
    pub zones_at: Option<Handle>,
}

impl TableMeta {
    /// Bytes of its own file and of what it points at in others.
    pub fn total_bytes(&self) -> u64 {
        let live = self.zones.iter().map(|zone| zone.live_bytes);
        live.fold(self.size_bytes, u64::saturating_add)
    }
}

/// What the manifest says of a segment file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentMeta {
    /// Its number.
    pub file: FileNo,
    /// As [`TableMeta::salt`].
    pub salt: FileSalt,
    /// Its length in bytes.
    pub size_bytes: u64,
}

/// One change to the state of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A key space comes to be.
    CreateKeyspace {
        /// Its number.
        keyspace: KeyspaceId,
        /// Its name: 1 to [`KEYSPACE_NAME_BYTES_MAX`] bytes.
        name: String,
        /// Every key is 8 bytes of prefix and 8 bytes of suffix.
        prefixed: bool,
        /// Blocks are compressed where that saves room.
        compressed: bool,
    },
    /// Logs before this one are no longer needed.
    OldestLog(FileNo),
    /// No file has this number or a larger one.
    NextFile(FileNo),
    /// The newest write that tables hold.
    LastSeq(SeqNo),
    /// A table joins a level.
    AddTable {
        /// The key space.
        keyspace: KeyspaceId,
        /// The level.
        level: u8,
        /// The sub-level within it.
        sublevel: SublevelId,
        /// The table.
        meta: TableMeta,
    },
    /// A table leaves a level.
    RemoveTable {
        /// The key space.
        keyspace: KeyspaceId,
        /// The level.
        level: u8,
        /// The table's file.
        file: FileNo,
    },
    /// A state of the store gets a name, under which it is kept.
    CreateSnapshot {
        /// Its name: 1 to [`SNAPSHOT_NAME_BYTES_MAX`] bytes.
        name: String,
        /// The newest write that it sees.
        seq: SeqNo,
    },
    /// A named state need not be kept any more.
    DeleteSnapshot {
        /// Its name.
        name: String,
    },
    /// A branch begins.
    CreateBranch {
        /// The branch.
        branch: BranchId,
        /// The branch that it stands over; `None`: the store itself.
        parent: Option<BranchId>,
        /// The newest write of the parent that it sees.
        seq: SeqNo,
        /// It holds locks, and so does not outlive the process that holds them.
        locking: bool,
        /// What its maker says of it, up to [`BRANCH_INFO_BYTES_MAX`] bytes.
        info: Bytes,
    },
    /// A branch gets a key space for its rows of one of the store's.
    CreateBranchSpace {
        /// The branch.
        branch: BranchId,
        /// The store's key space.
        base: KeyspaceId,
        /// The branch's.
        keyspace: KeyspaceId,
        /// It begins empty and is never committed.
        private: bool,
    },
    /// A branch ends, and the tables of its key spaces are gone.
    EndBranch(BranchId),
    /// A segment is there for tables to point into.
    AddSegment(SegmentMeta),
    /// A log is there durably, and those before it to their ends; later ones may not be.
    NewestLog(FileNo),
}

/// Changes that happen together, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionEdit {
    /// The changes.
    pub changes: Vec<Change>,
}

impl VersionEdit {
    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        for change in &self.changes {
            encode_change(out, change);
        }
    }

    /// Reads the payload of an edit record.
    pub fn decode(payload: &[u8]) -> FormatResult<VersionEdit> {
        let mut reader = Reader::new(payload);
        let mut changes = Vec::new();
        while !reader.is_empty() {
            changes.push(decode_change(&mut reader)?);
        }
        Ok(VersionEdit { changes })
    }
}

/// A change that is one number.
fn put_number(out: &mut Vec<u8>, kind: u8, number: u64) {
    out.push(kind);
    put_varint(out, number);
}

fn encode_change(out: &mut Vec<u8>, change: &Change) {
    match change {
        Change::CreateKeyspace { keyspace, name, prefixed, compressed } => {
            out.push(CREATE_KEYSPACE);
            put_varint(out, keyspace.get().into());
            put_string(out, name.as_bytes());
            let prefixed = if *prefixed { OPTION_PREFIXED } else { 0 };
            out.push(prefixed | if *compressed { OPTION_COMPRESSED } else { 0 });
        }
        Change::OldestLog(file) => put_number(out, OLDEST_LOG, file.get()),
        Change::NextFile(file) => put_number(out, NEXT_FILE, file.get()),
        Change::LastSeq(seq) => put_number(out, LAST_SEQ, seq.get()),
        Change::AddTable { keyspace, level, sublevel, meta } => {
            out.push(ADD_TABLE);
            put_varint(out, keyspace.get().into());
            out.push(*level);
            put_varint(out, sublevel.get());
            encode_meta(out, meta);
        }
        Change::RemoveTable { keyspace, level, file } => {
            out.push(REMOVE_TABLE);
            put_varint(out, keyspace.get().into());
            out.push(*level);
            put_varint(out, file.get());
        }
        Change::CreateSnapshot { name, seq } => {
            out.push(CREATE_SNAPSHOT);
            put_string(out, name.as_bytes());
            put_varint(out, seq.get());
        }
        Change::DeleteSnapshot { name } => {
            out.push(DELETE_SNAPSHOT);
            put_string(out, name.as_bytes());
        }
        Change::CreateBranch { branch, parent, seq, locking, info } => {
            out.push(CREATE_BRANCH);
            put_varint(out, branch.get());
            put_varint(out, parent.map_or(0, BranchId::get));
            put_varint(out, seq.get());
            out.push(if *locking { OPTION_LOCKING } else { 0 });
            put_string(out, info);
        }
        Change::CreateBranchSpace { branch, base, keyspace, private } => {
            out.push(CREATE_BRANCH_SPACE);
            put_varint(out, branch.get());
            put_varint(out, base.get().into());
            put_varint(out, keyspace.get().into());
            out.push(if *private { OPTION_PRIVATE } else { 0 });
        }
        Change::EndBranch(branch) => put_number(out, END_BRANCH, branch.get()),
        Change::AddSegment(meta) => {
            out.push(ADD_SEGMENT);
            put_varint(out, meta.file.get());
            put_varint(out, meta.salt.get());
            put_varint(out, meta.size_bytes);
        }
        Change::NewestLog(file) => put_number(out, NEWEST_LOG, file.get()),
    }
}

fn encode_meta(out: &mut Vec<u8>, meta: &TableMeta) {
    put_varint(out, meta.file.get());
    put_varint(out, meta.salt.get());
    put_varint(out, meta.size_bytes);
    put_varint(out, meta.entries);
    put_varint(out, meta.tombstones);
    put_varint(out, meta.smallest_seq.get());
    put_varint(out, meta.largest_seq.get());
    put_varint(out, meta.seq_override.map_or(0, SeqNo::get));
    put_string(out, &meta.smallest_key);
    put_string(out, &meta.largest_key);
    put_shares(out, &meta.segments);
    put_varint(out, meta.zones.len() as u64);
    if let Some(list) = meta.zones_at.filter(|_| !meta.zones.is_empty()) {
        put_varint(out, list.offset);
        put_varint(out, list.len.into());
    }
    for ZoneMeta { zone, live_bytes, runs } in &meta.zones {
        for number in [zone.file.get(), zone.salt.get(), zone.size_bytes, *live_bytes, *runs] {
            put_varint(out, number);
        }
    }
}

fn decode_change(reader: &mut Reader<'_>) -> FormatResult<Change> {
    let start = reader.pos();
    let change = match reader.u8()? {
        CREATE_KEYSPACE => decode_create(reader)?,
        OLDEST_LOG => Change::OldestLog(FileNo::new(reader.varint()?)),
        NEXT_FILE => Change::NextFile(FileNo::new(reader.varint()?)),
        LAST_SEQ => Change::LastSeq(SeqNo::new(reader.varint()?)),
        ADD_TABLE => {
            let keyspace = KeyspaceId::new(reader.varint_u32()?);
            let (level, sublevel) = (reader.u8()?, SublevelId::new(reader.varint()?));
            Change::AddTable { keyspace, level, sublevel, meta: decode_meta(reader)? }
        }
        REMOVE_TABLE => {
            let keyspace = KeyspaceId::new(reader.varint_u32()?);
            let level = reader.u8()?;
            Change::RemoveTable { keyspace, level, file: FileNo::new(reader.varint()?) }
        }
        CREATE_SNAPSHOT => {
            let name = decode_name(reader, "snapshot name", SNAPSHOT_NAME_BYTES_MAX)?;
            Change::CreateSnapshot { name, seq: decode_seq(reader)? }
        }
        DELETE_SNAPSHOT => Change::DeleteSnapshot {
            name: decode_name(reader, "snapshot name", SNAPSHOT_NAME_BYTES_MAX)?,
        },
        CREATE_BRANCH => {
            let branch = decode_branch(reader)?;
            let parent = Some(reader.varint()?).filter(|id| *id != 0).map(BranchId::new);
            let seq = decode_seq(reader)?;
            let locking = decode_option(reader, OPTION_LOCKING)?;
            let info = reader.string("what is said of a branch", BRANCH_INFO_BYTES_MAX)?;
            let info = Bytes::copy_from_slice(info);
            Change::CreateBranch { branch, parent, seq, locking, info }
        }
        CREATE_BRANCH_SPACE => decode_branch_space(reader)?,
        END_BRANCH => Change::EndBranch(decode_branch(reader)?),
        ADD_SEGMENT => Change::AddSegment(SegmentMeta {
            file: FileNo::new(reader.varint()?),
            salt: FileSalt::new(reader.varint()?),
            size_bytes: reader.varint()?,
        }),
        NEWEST_LOG => Change::NewestLog(FileNo::new(reader.varint()?)),
        tag => {
            let problem = Problem::Unknown { what: "manifest change", id: tag.into() };
            return Err(FormatError::new(start, problem));
        }
    };
    Ok(change)
}

fn decode_create(reader: &mut Reader<'_>) -> FormatResult<Change> {
    let keyspace = KeyspaceId::new(reader.varint_u32()?);
    let name = decode_name(reader, "key space name", KEYSPACE_NAME_BYTES_MAX)?;
    let start = reader.pos();
    let options = reader.u8()?;
    if options & !(OPTION_PREFIXED | OPTION_COMPRESSED) != 0 {
        let problem = Problem::Unknown { what: "key space options", id: options.into() };
        return Err(FormatError::new(start, problem));
    }
    let prefixed = options & OPTION_PREFIXED != 0;
    let compressed = options & OPTION_COMPRESSED != 0;
    Ok(Change::CreateKeyspace { keyspace, name, prefixed, compressed })
}

/// A name of 1 to `max` bytes.
fn decode_name(reader: &mut Reader<'_>, what: &'static str, max: usize) -> FormatResult<String> {
    let start = reader.pos();
    match std::str::from_utf8(reader.string(what, max)?) {
        Ok(name) if !name.is_empty() => Ok(name.to_owned()),
        _ => {
            let rule = "a name that is empty or not UTF-8";
            Err(FormatError::new(start, Problem::Invalid(rule)))
        }
    }
}

fn decode_seq(reader: &mut Reader<'_>) -> FormatResult<SeqNo> {
    let start = reader.pos();
    let seq = SeqNo::new(reader.varint()?);
    let rule = Problem::Invalid("a sequence number above the largest");
    if seq <= SeqNo::MAX { Ok(seq) } else { Err(FormatError::new(start, rule)) }
}

fn decode_branch(reader: &mut Reader<'_>) -> FormatResult<BranchId> {
    let start = reader.pos();
    let rule = Problem::Invalid("a branch without a number");
    match reader.varint()? {
        0 => Err(FormatError::new(start, rule)),
        id => Ok(BranchId::new(id)),
    }
}

fn decode_branch_space(reader: &mut Reader<'_>) -> FormatResult<Change> {
    let branch = decode_branch(reader)?;
    let start = reader.pos();
    let (base, keyspace) =
        (KeyspaceId::new(reader.varint_u32()?), KeyspaceId::new(reader.varint_u32()?));
    if base.is_of_branch() || !keyspace.is_of_branch() {
        let rule = "a branch's key space over one that is none of the store's";
        return Err(FormatError::new(start, Problem::Invalid(rule)));
    }
    let private = decode_option(reader, OPTION_PRIVATE)?;
    Ok(Change::CreateBranchSpace { branch, base, keyspace, private })
}

/// Returns whether `option`, the only one there is, is set in a branch's options byte.
fn decode_option(reader: &mut Reader<'_>, option: u8) -> FormatResult<bool> {
    let start = reader.pos();
    match reader.u8()? {
        0 => Ok(false),
        options if options == option => Ok(true),
        options => {
            let problem = Problem::Unknown { what: "branch options", id: options.into() };
            Err(FormatError::new(start, problem))
        }
    }
}

fn decode_meta(reader: &mut Reader<'_>) -> FormatResult<TableMeta> {
    let start = reader.pos();
    let mut meta = TableMeta {
        file: FileNo::new(reader.varint()?),
        salt: FileSalt::new(reader.varint()?),
        size_bytes: reader.varint()?,
        entries: reader.varint()?,
        tombstones: reader.varint()?,
        smallest_seq: SeqNo::new(reader.varint()?),
        largest_seq: SeqNo::new(reader.varint()?),
        seq_override: Some(SeqNo::new(reader.varint()?)).filter(|seq| *seq != SeqNo::ZERO),
        smallest_key: Bytes::copy_from_slice(reader.string("key", KEY_BYTES_MAX)?),
        largest_key: Bytes::copy_from_slice(reader.string("key", KEY_BYTES_MAX)?),
        segments: read_shares(reader)?,
        zones: Vec::new(),
        zones_at: None,
    };
    decode_zones(reader, &mut meta)?;
    let rule = if meta.smallest_key > meta.largest_key {
        "a table whose smallest key is above its largest"
    } else if meta.smallest_seq > meta.largest_seq || meta.largest_seq > SeqNo::MAX {
        "a table whose sequence numbers are out of order"
    } else if meta
        .seq_override
        .is_some_and(|seq| (seq, seq) != (meta.smallest_seq, meta.largest_seq))
    {
        "a table whose sequence override is not the sequence number of all its rows"
    } else if meta.entries == 0 || meta.tombstones > meta.entries {
        "a table without entries, or with more tombstones than entries"
    } else if meta.zones.iter().any(|zone| zone.zone.file == meta.file) {
        "a table that is its own zone"
    } else {
        return Ok(meta);
    };
    Err(FormatError::new(start, Problem::Invalid(rule)))
}

fn decode_zones(reader: &mut Reader<'_>, meta: &mut TableMeta) -> FormatResult<()> {
    let (len, max) = (reader.varint()?, (reader.remaining() / ZONE_BYTES_MIN) as u64);
    if len > max {
        return Err(reader.error(Problem::TooLong { what: "list of zones", len, max }));
    }
    if len > 0 {
        meta.zones_at = Some(Handle { offset: reader.varint()?, len: reader.varint_u32()? });
    }
    for _ in 0..len {
        let file = FileNo::new(reader.varint()?);
        let zone =
            Zone { file, salt: FileSalt::new(reader.varint()?), size_bytes: reader.varint()? };
        let (live_bytes, runs) = (reader.varint()?, reader.varint()?);
        if live_bytes > zone.size_bytes || runs > live_bytes || runs == 0 {
            let rule = "a zone with more bytes or runs in use than it has, or with none";
            return Err(reader.error(Problem::Invalid(rule)));
        }
        meta.zones.push(ZoneMeta { zone, live_bytes, runs });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> VersionEdit {
        let (file, salt) = (FileNo::new(3), FileSalt::new(1 << 63));
        let zone = Zone { file, salt, size_bytes: 1 << 20 };
        let meta = TableMeta {
            file: FileNo::new(12),
            salt: FileSalt::new(u64::MAX),
            size_bytes: 1 << 40,
            entries: 1000,
            tombstones: 10,
            smallest_seq: SeqNo::new(5),
            largest_seq: SeqNo::MAX,
            seq_override: None,
            smallest_key: Bytes::from_static(b"a"),
            largest_key: Bytes::from_static(b"zebra"),
            segments: [3, 9].map(|no| SegmentShare { segment: FileNo::new(no), bytes: no }).into(),
            zones: vec![ZoneMeta { zone, live_bytes: 1 << 19, runs: 3 }],
            zones_at: Some(Handle { offset: 1 << 33, len: 100 }),
        };
        let seq = SeqNo::new(7);
        let all_at_once = TableMeta {
            smallest_seq: seq,
            largest_seq: seq,
            seq_override: Some(seq),
            ..meta.clone()
        };
        let keyspace = KeyspaceId::new(3);
        let name = "meta".to_owned();
        let changes = vec![
            Change::CreateKeyspace { keyspace, name, prefixed: true, compressed: false },
            Change::OldestLog(FileNo::new(4)),
            Change::NextFile(FileNo::new(u64::MAX)),
            Change::LastSeq(SeqNo::new(9)),
            Change::AddSegment(SegmentMeta {
                file: FileNo::new(9),
                salt: FileSalt::new(7),
                size_bytes: 1 << 40,
            }),
            Change::AddTable { keyspace, level: 6, sublevel: SublevelId::new(1 << 33), meta },
            Change::AddTable {
                keyspace,
                level: 0,
                sublevel: SublevelId::new(9),
                meta: all_at_once,
            },
            Change::RemoveTable { keyspace, level: 0, file: FileNo::new(2) },
            Change::CreateSnapshot { name: "then".to_owned(), seq: SeqNo::MAX },
            Change::DeleteSnapshot { name: "now".to_owned() },
            Change::CreateBranch {
                branch: BranchId::new(2),
                parent: Some(BranchId::new(1)),
                seq: SeqNo::new(7),
                locking: true,
                info: Bytes::from_static(b"why"),
            },
            Change::CreateBranchSpace {
                branch: BranchId::new(2),
                base: keyspace,
                keyspace: KeyspaceId::of_branch(9),
                private: false,
            },
            Change::EndBranch(BranchId::new(2)),
            Change::NewestLog(FileNo::new(13)),
        ];
        VersionEdit { changes }
    }

    fn encoded(edit: &VersionEdit) -> Vec<u8> {
        let mut out = Vec::new();
        edit.encode(&mut out);
        out
    }

    #[test]
    fn edits_come_back() {
        assert_eq!(VersionEdit::decode(&encoded(&sample())), Ok(sample()));
        assert_eq!(VersionEdit::decode(&[]), Ok(VersionEdit::default()));
    }

    #[test]
    fn an_unknown_change_is_named() {
        let mut bytes = encoded(&sample());
        let offset = bytes.len() as u64;
        bytes.push(77);
        let error = VersionEdit::decode(&bytes).unwrap_err();
        assert_eq!(error.offset, offset);
        assert_eq!(error.problem, Problem::Unknown { what: "manifest change", id: 77 });
    }

    #[test]
    fn contradictions_are_refused() {
        let spoil: [fn(&mut TableMeta); 10] = [
            |meta| meta.smallest_key = Bytes::from_static(b"zz"),
            |meta| meta.smallest_seq = SeqNo::new(u64::MAX),
            |meta| meta.seq_override = Some(SeqNo::new(5)),
            |meta| meta.entries = 0,
            |meta| meta.tombstones = 1001,
            |meta| meta.segments[0].bytes = 0,
            |meta| meta.segments.reverse(),
            |meta| meta.zones[0].zone.file = meta.file,
            |meta| meta.zones[0].runs = 0,
            |meta| meta.zones[0].live_bytes = 2 << 20,
        ];
        for spoil in spoil {
            let mut edit = sample();
            for change in &mut edit.changes {
                if let Change::AddTable { meta, .. } = change {
                    spoil(meta);
                }
            }
            let error = VersionEdit::decode(&encoded(&edit)).unwrap_err();
            assert!(matches!(error.problem, Problem::Invalid(_)), "{error}");
        }
    }
}
