//! The lines of a dump: JSON objects, each with one member that says what the line is.
//!
//! ```text
//! | varve_dump | (limits | inode | link | xattr | data)* | (dictionary | pair)* | end |
//! ```
//!
//! docs/format/dump.md describes every member. `xattr` and `data` lines follow the `inode` line of the inode
//! that they are about, and `pair` lines the `dictionary` line of theirs. Bytes are base64; names are strings where they are UTF-8, else `{"b64": "..."}`.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use varve_types::FileFlags;

/// The version of dumps that this program writes and reads.
pub(crate) const VERSION: u32 = 1;
/// The longest line, in bytes; room for the base64 of [`DATA_BYTES_MAX`].
pub(crate) const LINE_BYTES_MAX: usize = 2 << 20;
/// The most bytes of a file in one line.
pub(crate) const DATA_BYTES_MAX: usize = 1 << 20;

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    /// The first line.
    VarveDump(Header),
    /// Limits on what lies below a directory.
    Limits(LimitsLine),
    /// An inode, with its name unless it has several.
    Inode(InodeLine),
    /// One of several names of a file.
    Link(LinkLine),
    /// An extended attribute.
    Xattr(XattrLine),
    /// Bytes of a file.
    Data(DataLine),
    /// A dictionary.
    Dictionary(DictionaryLine),
    /// A pair of the dictionary before.
    Pair(PairLine),
    /// The last line.
    End(EndLine),
}

/// What the store was formatted with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) large_file_threshold_bytes: u64,
    pub(crate) name_hash_bits: u32,
    pub(crate) compression: bool,
    /// As the superblock has it. Text only, so that every line is read as it was printed.
    pub(crate) design: BTreeMap<String, String>,
    /// Above every inode id that the store ever handed out.
    pub(crate) next_inode: u64,
}

/// Limits; a missing one does not limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitsLine {
    pub(crate) dir: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) inodes: Option<u64>,
}

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Fifo,
    CharDevice,
    Directory,
    BlockDevice,
    Regular,
    Symlink,
    Socket,
}

/// Where the bytes of a regular file are, unless they are in its line or it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stored {
    /// In rows of the store.
    Rows,
    /// In a file of the storage below.
    File,
}

/// What a directory knows of what is in it and below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DirLine {
    pub(crate) entries: u64,
    pub(crate) subdirs: u32,
    pub(crate) bytes_below: u64,
    pub(crate) files_below: u64,
    pub(crate) dirs_below: u64,
}

/// An inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct InodeLine {
    pub(crate) ino: u64,
    pub(crate) kind: Kind,
    /// The directory that holds the name; with several names, the one in which the file counts.
    pub(crate) parent: u64,
    /// Missing in the root and in a file with several names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<Text>,
    /// Of a file with several names, the first one in `parent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) home: Option<Text>,
    pub(crate) perm: u16,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) rdev: u32,
    pub(crate) size: u64,
    /// Seconds since 1970, rounded down, and nanoseconds.
    pub(crate) atime: (i64, u32),
    pub(crate) mtime: (i64, u32),
    pub(crate) ctime: (i64, u32),
    pub(crate) btime: (i64, u32),
    /// What chattr(1) has set, by its letters.
    #[serde(default, skip_serializing_if = "Letters::is_empty")]
    pub(crate) flags: Letters,
    /// How many `xattr` lines follow.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) xattrs: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<Text>,
    /// The first bytes of a file that is kept within its inode; the rest of its size is a hole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<Base64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stored: Option<Stored>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) dir: Option<Box<DirLine>>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// One of several names of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LinkLine {
    pub(crate) ino: u64,
    pub(crate) kind: Kind,
    pub(crate) parent: u64,
    pub(crate) name: Text,
}

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct XattrLine {
    pub(crate) ino: u64,
    pub(crate) name: Text,
    pub(crate) value: Base64,
}

/// Bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DataLine {
    pub(crate) ino: u64,
    pub(crate) at: u64,
    pub(crate) data: Base64,
}

/// A dictionary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DictionaryLine {
    pub(crate) name: Text,
}

/// A pair of a dictionary; their keys ascend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PairLine {
    pub(crate) key: Text,
    pub(crate) value: Base64,
}

/// What came before, so that a cut or damaged dump is noticed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EndLine {
    /// Lines before this one.
    pub(crate) lines: u64,
    pub(crate) inodes: u64,
    pub(crate) names: u64,
    /// CRC32C of all bytes before this line, 8 hex digits.
    pub(crate) crc32c: String,
}

/// File flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Letters(pub(crate) FileFlags);

impl Letters {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl TryFrom<String> for Letters {
    type Error = &'static str;

    fn try_from(letters: String) -> Result<Letters, &'static str> {
        let flags = FileFlags::from_letters(&letters);
        flags.map(Letters).ok_or("other flags than \"iad\", or in another order")
    }
}

impl From<Letters> for String {
    fn from(Letters(flags): Letters) -> String {
        flags.letters()
    }
}

/// Bytes that mostly are text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "TextForm", into = "TextForm")]
pub(crate) struct Text(pub(crate) Vec<u8>);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum TextForm {
    Utf8(String),
    Bytes { b64: Base64 },
}

impl TryFrom<TextForm> for Text {
    type Error = &'static str;

    fn try_from(form: TextForm) -> Result<Text, &'static str> {
        match form {
            TextForm::Utf8(text) => Ok(Text(text.into_bytes())),
            TextForm::Bytes { b64 } if std::str::from_utf8(&b64.0).is_err() => Ok(Text(b64.0)),
            TextForm::Bytes { .. } => Err("text as base64 that could be a string"),
        }
    }
}

impl From<Text> for TextForm {
    fn from(text: Text) -> TextForm {
        match String::from_utf8(text.0) {
            Ok(text) => TextForm::Utf8(text),
            Err(error) => TextForm::Bytes { b64: Base64(error.into_bytes()) },
        }
    }
}

/// Bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Base64(pub(crate) Vec<u8>);

impl TryFrom<String> for Base64 {
    type Error = base64::DecodeError;

    fn try_from(text: String) -> Result<Base64, base64::DecodeError> {
        STANDARD.decode(text).map(Base64)
    }
}

impl From<Base64> for String {
    fn from(bytes: Base64) -> String {
        STANDARD.encode(bytes.0)
    }
}

impl Line {
    /// Reads a line, without its newline.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Line, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// The line with its newline.
    pub(crate) fn print(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut out = serde_json::to_vec(self)?;
        out.push(b'\n');
        Ok(out)
    }
}
