//! The objects of a store as bytes.
//!
//! | name | what it holds |
//! | --- | --- |
//! | `journal/SEQ` | one [`Record`]: what changed, or who owns the store from now on |
//! | `root/INVERTED` | one [`Root`]: the state after a record. Names are inverted, so that the newest is listed first |
//! | `dir/EPOCH/NUMBER` | one [`Table`]: the names in a directory |
//! | `data/EPOCH/NUMBER` | bytes of a file, see [`crate::blocks`] |
//! | `owner` | a [`Notice`] as JSON, which the owner renews. The only object that is replaced |
//!
//! The first three begin alike:
//!
//! ```text
//! offset  bytes  field
//!      0      8  magic
//!      8      4  format version
//!     12      4  crc32c of: the object's name, bytes 0 to 12, bytes 16 to the end
//!     16         the value, as postcard writes it
//! ```
//!
//! Invariant: nothing but `owner` is written twice. A name that was used is never used again.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use varve_types::Timestamp;

use crate::extents::{Extent, Extents, ObjectId, Source};

/// The newest version of the formats of this crate.
const FORMAT_VERSION: u32 = 1;
const MAGIC_BYTES: usize = 8;
const CRC_AT: usize = 12;
const HEADER_BYTES: usize = 16;

/// The journal has its records below this.
pub(crate) const JOURNAL: &str = "journal/";
/// Roots are below this.
pub(crate) const ROOT: &str = "root/";
/// Bytes of files are below this.
pub(crate) const DATA: &str = "data/";
/// Tables of directories are below this.
pub(crate) const DIR: &str = "dir/";
/// The notice of the owner.
pub(crate) const OWNER: &str = "owner";

pub(crate) fn journal_name(seq: u64) -> String {
    format!("{JOURNAL}{seq:016x}")
}

pub(crate) fn root_name(seq: u64) -> String {
    format!("{ROOT}{:016x}", !seq)
}

pub(crate) fn data_name(id: ObjectId) -> String {
    format!("{DATA}{:08x}/{:012x}", id.epoch, id.number)
}

pub(crate) fn dir_name(id: ObjectId) -> String {
    format!("{DIR}{:08x}/{:012x}", id.epoch, id.number)
}

/// The data object of this name.
pub(crate) fn data_id(name: &str) -> Option<ObjectId> {
    id_of(name.strip_prefix(DATA)?)
}

/// The table of a directory of this name.
pub(crate) fn dir_id(name: &str) -> Option<ObjectId> {
    id_of(name.strip_prefix(DIR)?)
}

fn id_of(name: &str) -> Option<ObjectId> {
    let (epoch, number) = name.split_once('/')?;
    let number_of = |text| u64::from_str_radix(text, 16).ok();
    Some(ObjectId { epoch: number_of(epoch)?, number: number_of(number)? })
}

/// The number at the end of the name of a record.
pub(crate) fn journal_seq(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_prefix(JOURNAL)?, 16).ok()
}

/// The number of the record whose root has this name.
pub(crate) fn root_seq(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_prefix(ROOT)?, 16).ok().map(|inverted| !inverted)
}

/// A time as it is stored: seconds and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Time(i64, u32);

impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Time {
        Time(time.secs(), time.nanos())
    }
}

impl From<Time> for Timestamp {
    fn from(Time(secs, nanos): Time) -> Timestamp {
        Timestamp::new(secs, nanos).unwrap_or(Timestamp::EPOCH)
    }
}

/// Bytes that take the place of others at an offset of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Put {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) stored: Stored,
}

/// [`Source`] as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Stored {
    Here(Bytes),
    Object { id: ObjectId, from: u64, shared: bool },
    Zeros,
}

impl Put {
    pub(crate) fn new(offset: u64, extent: &Extent) -> Put {
        let stored = match extent.source.clone() {
            Source::Memory(bytes) => Stored::Here(bytes),
            Source::Object { id, from, shared } => Stored::Object { id, from, shared },
            Source::Zeros => Stored::Zeros,
        };
        Put { offset, len: extent.len, stored }
    }

    pub(crate) fn into_extent(self) -> Result<(u64, Extent), &'static str> {
        let source = match self.stored {
            Stored::Here(bytes) if bytes.len() as u64 != self.len => {
                return Err("an extent has another length than its bytes");
            }
            Stored::Here(bytes) => Source::Memory(bytes),
            Stored::Object { id, from, shared } => Source::Object { id, from, shared },
            Stored::Zeros => Source::Zeros,
        };
        if self.len == 0 || self.offset.checked_add(self.len).is_none() {
            return Err("an extent is empty or ends beyond what a file can have");
        }
        Ok((self.offset, Extent { len: self.len, source }))
    }
}

/// One change of the files of a store. Paths are relative to the store, with `/` between names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Change {
    MakeDir(String),
    RemoveDir(String),
    Make(String, Time),
    Remove(String),
    Rename {
        from: String,
        to: String,
    },
    /// A new file `to` with the bytes of `from`.
    Link {
        from: String,
        to: String,
    },
    /// The objects that the file has now may be objects of other files too.
    Share(String),
    /// What was written to a file.
    Content {
        path: String,
        /// No byte from here on is left of what was there before.
        cut: Option<u64>,
        len: u64,
        accessed: Time,
        modified: Time,
        puts: Vec<Put>,
    },
}

/// Who owns a store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The name of the machine.
    pub host: String,
    /// The boot of the machine.
    pub boot_id: u128,
    /// The process.
    pub process: u32,
    /// What the process does with the store, for people.
    pub purpose: String,
    /// When it became the owner, in seconds since 1970; set by [`crate::RemoteEnv::own`].
    pub since: i64,
    /// How long it may go on without hearing from the storage, in milliseconds; set by [`crate::RemoteEnv::own`].
    pub lease_ms: u64,
}

/// One object of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The store.
    pub(crate) store: u128,
    pub(crate) seq: u64,
    pub(crate) epoch: u64,
    /// Chosen at random by the owner, so that it knows its own records.
    pub(crate) writer: u64,
    /// When it was made, in seconds since 1970.
    pub(crate) at: i64,
    /// Objects of this epoch with this number and those behind were made later.
    pub(crate) next_number: u64,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// A new epoch begins.
    Fence(Owner),
    Changes(Vec<Change>),
    /// The owner gives the store up.
    Close,
}

/// The state of a store after a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Root {
    pub(crate) store: u128,
    pub(crate) seq: u64,
    pub(crate) epoch: u64,
    pub(crate) owner: Owner,
    pub(crate) closed: bool,
    pub(crate) next_number: u64,
    pub(crate) table: Option<ObjectId>,
    pub(crate) garbage: Vec<Garbage>,
    /// Fences that stand behind an owner that did not close the store: it may come back and look for its next place.
    pub(crate) fences: Vec<u64>,
}

/// What nobody needs any more from a moment on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Garbage {
    /// The record that left it behind.
    pub(crate) seq: u64,
    /// When, in seconds since 1970.
    pub(crate) at: i64,
    pub(crate) what: GarbageKind,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum GarbageKind {
    Data(ObjectId),
    Dir(ObjectId),
    /// The records from the first up to the second, without fences.
    Journal(u64, u64),
    Root(u64),
}

/// The names in a directory, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Table(pub(crate) Vec<(String, TableEntry)>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TableEntry {
    /// A directory; without a table it is empty.
    Dir(Option<ObjectId>),
    File {
        len: u64,
        accessed: Time,
        modified: Time,
        puts: Vec<Put>,
    },
}

/// A value that is an object of its own.
pub(crate) trait Stand: Serialize + DeserializeOwned {
    const MAGIC: [u8; MAGIC_BYTES];
}

impl Stand for Record {
    const MAGIC: [u8; MAGIC_BYTES] = *b"VarveJnl";
}

impl Stand for Root {
    const MAGIC: [u8; MAGIC_BYTES] = *b"VarveRt\0";
}

impl Stand for Table {
    const MAGIC: [u8; MAGIC_BYTES] = *b"VarveDir";
}

fn checksum(name: &str, header: &[u8], body: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(crc32c::crc32c(name.as_bytes()), header);
    crc32c::crc32c_append(crc, body)
}

/// The bytes of the object `name`.
pub(crate) fn encode<T: Stand>(name: &str, value: &T) -> Bytes {
    let mut bytes = Vec::with_capacity(256);
    bytes.extend_from_slice(&T::MAGIC);
    bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    let mut bytes = match postcard::to_extend(value, bytes) {
        Ok(bytes) => bytes,
        // The types have no maps, no floats and no sequences of unknown length: nothing that cannot be written.
        Err(error) => unreachable!("{error}"),
    };
    let crc = checksum(name, &bytes[..CRC_AT], &bytes[HEADER_BYTES..]);
    bytes[CRC_AT..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    bytes.into()
}

/// The value of the object `name`; the error says what is wrong with its bytes.
pub(crate) fn decode<T: Stand>(name: &str, bytes: &[u8]) -> Result<T, String> {
    let Some((header, body)) = bytes.split_at_checked(HEADER_BYTES) else {
        return Err(format!("it has {} bytes, fewer than its header", bytes.len()));
    };
    if header[..MAGIC_BYTES] != T::MAGIC {
        return Err("its first 8 bytes are not those of a Varve object of its kind".into());
    }
    let number = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i]));
    if number(MAGIC_BYTES) > FORMAT_VERSION {
        let version = number(MAGIC_BYTES);
        return Err(format!("it has format {version}, and this program knows {FORMAT_VERSION}"));
    }
    if number(CRC_AT) != checksum(name, &header[..CRC_AT], body) {
        return Err(format!("the checksum of its {} bytes is wrong", bytes.len()));
    }
    match postcard::take_from_bytes(body) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(format!("{} bytes are left over at its end", rest.len())),
        Err(error) => Err(format!("its value cannot be read: {error}")),
    }
}

/// The puts of all extents, in order.
pub(crate) fn puts_of(extents: &Extents) -> Vec<Put> {
    extents.iter().map(|(offset, extent)| Put::new(offset, extent)).collect()
}

/// What the owner of a store says of itself, for whoever wants the store. It decides nothing: fences do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Notice {
    pub(crate) epoch: u64,
    #[serde(flatten)]
    pub(crate) owner: Owner,
    /// It is renewed before this time, in seconds since 1970.
    pub(crate) until: i64,
}

/// What an object says, for people: the error says what is wrong with it. `name` is its name below the prefix of the store, which its
/// checksum covers.
pub fn describe_object(name: &str, bytes: &[u8]) -> Result<String, String> {
    fn show<T: Stand + std::fmt::Debug>(name: &str, bytes: &[u8]) -> Result<String, String> {
        decode::<T>(name, bytes).map(|value| format!("{value:#?}"))
    }
    match name.split_once('/').map(|(kind, _)| kind) {
        Some("journal") => show::<Record>(name, bytes),
        Some("root") => show::<Root>(name, bytes),
        Some("dir") => show::<Table>(name, bytes),
        Some("data") => Ok(format!("{} bytes of a file, with their checksums", bytes.len())),
        _ if name == OWNER => serde_json::from_slice::<Notice>(bytes)
            .map(|notice| format!("{notice:#?}"))
            .map_err(|error| error.to_string()),
        _ => Err("it is no object of a store".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use varve_testkit::golden;

    use super::*;

    const TIME: Time = Time(1_800_000_000, 5);

    fn id(number: u64) -> ObjectId {
        ObjectId { epoch: 3, number }
    }

    fn puts() -> Vec<Put> {
        let object = Stored::Object { id: id(7), from: 65536, shared: true };
        vec![
            Put { offset: 0, len: 5, stored: Stored::Here(Bytes::from_static(b"bytes")) },
            Put { offset: 4096, len: 100_000, stored: object },
            Put { offset: 200_000, len: 1, stored: Stored::Zeros },
        ]
    }

    fn owner() -> Owner {
        let (host, purpose) = ("host".to_owned(), "varve mount".to_owned());
        Owner {
            host,
            boot_id: 1 << 100,
            process: 77,
            purpose,
            since: 1_800_000_000,
            lease_ms: 30_000,
        }
    }

    fn record(kind: Kind) -> Record {
        Record {
            store: 0x0123_4567_89ab_cdef << 64,
            seq: 300,
            epoch: 3,
            writer: u64::MAX,
            at: 1_800_000_001,
            next_number: 900,
            kind,
        }
    }

    fn samples() -> Vec<(&'static str, String, Bytes)> {
        let content = Change::Content {
            path: "engine/000000000001.wal".into(),
            cut: Some(12),
            len: 200_001,
            accessed: TIME,
            modified: TIME,
            puts: puts(),
        };
        let (from, to) = ("a".to_owned(), "d/b".to_owned());
        let changes = vec![
            Change::MakeDir("d".into()),
            Change::Make("a".into(), TIME),
            content,
            Change::Link { from: from.clone(), to: to.clone() },
            Change::Share("a".into()),
            Change::Rename { from, to },
            Change::Remove("d/b".into()),
            Change::RemoveDir("d".into()),
        ];
        let kinds = [
            GarbageKind::Data(id(1)),
            GarbageKind::Dir(id(2)),
            GarbageKind::Journal(1, 9),
            GarbageKind::Root(4),
        ];
        let garbage = kinds.map(|what| Garbage { seq: 290, at: 1_799_999_999, what });
        let root = Root {
            store: 9,
            seq: 300,
            epoch: 3,
            owner: owner(),
            closed: false,
            next_number: 900,
            table: Some(id(8)),
            garbage: garbage.into(),
            fences: vec![17],
        };
        let file = TableEntry::File { len: 200_001, accessed: TIME, modified: TIME, puts: puts() };
        let rows = [
            ("dir", TableEntry::Dir(Some(id(5)))),
            ("empty", TableEntry::Dir(None)),
            ("file", file),
        ];
        let table = Table(rows.map(|(name, entry)| (name.to_owned(), entry)).into());
        let name = journal_name(300);
        vec![
            ("fence", name.clone(), encode(&name, &record(Kind::Fence(owner())))),
            ("changes", name.clone(), encode(&name, &record(Kind::Changes(changes)))),
            ("close", name.clone(), encode(&name, &record(Kind::Close))),
            ("root", root_name(300), encode(&root_name(300), &root)),
            ("table", dir_name(id(8)), encode(&dir_name(id(8)), &table)),
        ]
    }

    #[test]
    fn objects_stay_as_they_are() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
        for (file, name, bytes) in samples() {
            golden(format!("{dir}/{file}.object"), &bytes);
            describe_object(&name, &bytes).unwrap();
        }
        let parts = [Bytes::from(vec![7; 70_000])];
        golden(format!("{dir}/data.object"), &crate::blocks::encode(9, id(1), &parts));
        assert_eq!(root_name(1), "root/fffffffffffffffe");
        assert_eq!(
            (journal_seq(&journal_name(300)), root_seq(&root_name(300))),
            (Some(300), Some(300))
        );
    }

    /// Each flipped bit, each cut and each other name.
    #[test]
    fn damage_of_any_object_is_noticed() {
        for (file, name, bytes) in samples() {
            for bit in 0..bytes.len() * 8 {
                let mut damaged = bytes.to_vec();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert!(describe_object(&name, &damaged).is_err(), "{file}, bit {bit}");
            }
            for len in 0..bytes.len() {
                assert!(describe_object(&name, &bytes[..len]).is_err(), "{file}, {len} bytes");
            }
            let kind = name.split_once('/').unwrap().0;
            assert!(describe_object(&format!("{kind}/other"), &bytes).is_err(), "{file}");
        }
    }
}
