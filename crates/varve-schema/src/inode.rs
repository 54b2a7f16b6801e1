//! The inode: its attributes, and where its content is.
//!
//! ```text
//! | ino varint | mode u16 | flags u8 | content u8 | uid varint | gid varint |
//! | nlink varint, if flag 0 | rdev varint, if flag 1 | size varint |
//! | mtime | atime, unless flag 3 | ctime, unless flag 4 | btime, unless flag 5 |
//! | home directory varint, home hash varint, if flag 6 | file flags u8, if flag 7 | the content |
//!
//! time:     | seconds, zigzag varint | nanoseconds u32 |
//! flags:    0 nlink is not 1, 1 rdev is not 0, 2 has extended attributes,
//!           3 atime = mtime, 4 ctime = mtime, 5 btime = mtime, 6 has a home,
//!           7 has file flags
//! file flags, never 0, of regular files and directories: 0 immutable, 1 append-only, 2 no dump
//! content:  1 none
//!           2 inline     | len varint | bytes |        the file's first bytes; the rest is a hole
//!           3 symlink    | len varint | target |
//!           4 chunks                                   in rows of their own
//!           5 object     | blocks varint |             in a file of the storage below
//!           6 dirty object                             so, and that file knows size and mtime
//!           7 directory  | parent varint | suffix varint | entries varint | subdirs varint |
//!                        | usage, see usage.rs |
//!           8 folded directory                         as 7, then | source varint |
//!           9 borrowed   | source varint | ino varint |             in rows of a file of a source, see clone.rs
//!           10 so, large | source varint | ino varint | blocks varint |
//! ```
//!
//! The row of an inode of its own is a version byte and an inode. A new empty file takes about 25 bytes.
//!
//! Invariants: the kind of the content fits the file type. Only regular files and directories have file flags. The
//! decoder refuses everything else.

use bytes::Bytes;
use varve_types::limits::SYMLINK_BYTES_MAX;
use varve_types::{FileFlags, InodeId, Timestamp};

use crate::codec::{Short, unzigzag, zigzag};
use crate::{
    DecodeError, EntrySuffix, INLINE_BYTES_MAX, ROW_VERSION, Reader, STORED_FILE_BYTES_MAX, Usage,
    UsageChange,
};

const HAS_NLINK: u8 = 1;
const HAS_RDEV: u8 = 1 << 1;
const HAS_XATTRS: u8 = 1 << 2;
const ATIME_IS_MTIME: u8 = 1 << 3;
const CTIME_IS_MTIME: u8 = 1 << 4;
const BTIME_IS_MTIME: u8 = 1 << 5;
const HAS_HOME: u8 = 1 << 6;
const HAS_FILE_FLAGS: u8 = 1 << 7;

/// The size of a buffer for an inode without the bytes of its content, and for one more word.
const HEAD_ROOM: usize = 240;

/// What an inode is; the value is that of `S_IFMT` >> 12.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// A named pipe.
    Fifo = 0o01,
    /// A character device.
    CharDevice = 0o02,
    /// A directory.
    Directory = 0o04,
    /// A block device.
    BlockDevice = 0o06,
    /// A regular file.
    Regular = 0o10,
    /// A symbolic link.
    Symlink = 0o12,
    /// A Unix socket.
    Socket = 0o14,
}

impl FileKind {
    /// Returns the kind with this value.
    pub const fn from_u8(raw: u8) -> Option<FileKind> {
        match raw {
            0o01 => Some(FileKind::Fifo),
            0o02 => Some(FileKind::CharDevice),
            0o04 => Some(FileKind::Directory),
            0o06 => Some(FileKind::BlockDevice),
            0o10 => Some(FileKind::Regular),
            0o12 => Some(FileKind::Symlink),
            0o14 => Some(FileKind::Socket),
            _ => None,
        }
    }

    /// Returns whether such an inode may have file flags.
    pub const fn has_flags(self) -> bool {
        matches!(self, FileKind::Regular | FileKind::Directory)
    }
}

/// The four times of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of data or attributes.
    pub ctime: Timestamp,
    /// Birth.
    pub btime: Timestamp,
}

impl Times {
    /// All four at once.
    pub const fn all(at: Timestamp) -> Times {
        Times { atime: at, mtime: at, ctime: at, btime: at }
    }
}

/// Where the content of an inode is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// There is none: an empty file, a special file, or a file that is one hole.
    None,
    /// The file's first bytes, at most [`INLINE_BYTES_MAX`]; the rest up to the size is a hole.
    Inline(Bytes),
    /// The target of a symbolic link.
    Symlink(Bytes),
    /// In rows of the key space `data`.
    Chunks,
    /// In a file of the storage below. While `dirty`, that file has the right size and times of the last change; else
    /// `blocks` is its space in units of 512 bytes.
    Object {
        /// The file may have been written since the row.
        dirty: bool,
        /// Space taken; 0 while dirty.
        blocks: u64,
    },
    /// The content of another file in an earlier state of the store.
    Shared(SharedContent),
    /// The location, the counts and the usage of a directory.
    Directory(DirInfo),
}

/// Where the bytes of a cloned file are until the first write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedContent {
    /// The epoch of the state.
    pub source: InodeId,
    /// The file there.
    pub ino: InodeId,
    /// The space of a large file in units of 512 bytes; `None` if the bytes are in chunks.
    pub blocks: Option<u64>,
}

/// The location, the counts and the usage of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirInfo {
    /// The directory that holds it; the root holds itself.
    pub parent: InodeId,
    /// The key suffix of its name within the parent; `None` for the root and for a removed directory.
    pub suffix: Option<EntrySuffix>,
    /// The number of names in it.
    pub entries: u64,
    /// How many of them are directories.
    pub subdirs: u32,
    /// What lies below it, as far as its subdirectories have propagated theirs.
    pub usage: Usage,
    /// The part of `usage` that is not propagated: its parent does not count it yet. Nothing in the root.
    pub pending: UsageChange,
    /// It is folded: some of its names must still be taken from the state of the store with this epoch.
    pub source: Option<InodeId>,
}

impl DirInfo {
    /// An empty directory.
    pub fn new(parent: InodeId, suffix: Option<EntrySuffix>) -> DirInfo {
        let (usage, pending) = (Usage::default(), UsageChange::default());
        DirInfo { parent, suffix, entries: 0, subdirs: 0, usage, pending, source: None }
    }

    /// Returns what its parent counts for it: itself, and the part of its usage that is propagated.
    pub fn propagated(&self) -> UsageChange {
        self.usage.minus(self.pending).as_change().plus(UsageChange::DIR)
    }
}

/// The name in whose directory a file with a row of its own counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    /// The directory.
    pub dir: InodeId,
    /// The hash under which the name's parent pointer lies.
    pub hash: u64,
}

/// One inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Its identity.
    pub ino: InodeId,
    /// What it is.
    pub kind: FileKind,
    /// Permission, set-id and sticky bits (`0o7777`).
    pub perm: u16,
    /// The number of its names; for a directory 2 plus its subdirectories.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u32,
    /// Size in bytes; 0 for directories, which count entries instead.
    pub size: u64,
    /// Its times.
    pub times: Times,
    /// It has extended attributes.
    pub has_xattrs: bool,
    /// The flags that chattr(1) has set; none unless [`FileKind::has_flags`].
    pub flags: FileFlags,
    /// Where it counts, if it has a row of its own and a name and is not a directory.
    pub home: Option<Home>,
    /// Where its content is.
    pub content: Content,
}

impl Inode {
    /// Appends the encoding.
    pub fn encode_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.encode_between(&[], &[]));
    }

    /// Returns the encoding between other parts of a row, in a vector that has room for no more.
    pub(crate) fn encode_between(&self, before: &[&[u8]], after: &[u8]) -> Vec<u8> {
        let mut head = Short::new();
        self.put_head(&mut head);
        let rest = [head.as_slice(), self.content.bytes(), after];
        let parts = || before.iter().chain(&rest);
        let mut out = Vec::with_capacity(parts().map(|part| part.len()).sum());
        parts().for_each(|part| out.extend_from_slice(part));
        out
    }

    /// Appends everything except the bytes of its content.
    fn put_head(&self, head: &mut Short<HEAD_ROOM>) {
        let times = &self.times;
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        head.put_varint(self.ino.get());
        let mode = (u16::from(self.kind as u8) << 12) | (self.perm & 0o7777);
        head.put(mode.to_le_bytes());
        let flags = flag(self.nlink != 1, HAS_NLINK)
            | flag(self.rdev != 0, HAS_RDEV)
            | flag(self.has_xattrs, HAS_XATTRS)
            | flag(times.atime == times.mtime, ATIME_IS_MTIME)
            | flag(times.ctime == times.mtime, CTIME_IS_MTIME)
            | flag(times.btime == times.mtime, BTIME_IS_MTIME)
            | flag(self.home.is_some(), HAS_HOME)
            | flag(!self.flags.is_empty(), HAS_FILE_FLAGS);
        head.put([flags, self.content.tag()]);
        head.put_varint(u64::from(self.uid));
        head.put_varint(u64::from(self.gid));
        if self.nlink != 1 {
            head.put_varint(u64::from(self.nlink));
        }
        if self.rdev != 0 {
            head.put_varint(u64::from(self.rdev));
        }
        head.put_varint(self.size);
        head.put_time(times.mtime);
        for (time, same) in [
            (times.atime, ATIME_IS_MTIME),
            (times.ctime, CTIME_IS_MTIME),
            (times.btime, BTIME_IS_MTIME),
        ] {
            if flags & same == 0 {
                head.put_time(time);
            }
        }
        if let Some(home) = self.home {
            head.put_varint(home.dir.get());
            head.put_varint(home.hash);
        }
        if !self.flags.is_empty() {
            head.put([self.flags.bits()]);
        }
        self.content.put_head(head);
    }

    /// Decodes what [`Inode::encode_to`] wrote.
    pub fn decode_from(from: &mut Reader<'_>) -> Result<Inode, DecodeError> {
        // The compiler keeps a local copy in registers.
        let mut copy = *from;
        let reader = &mut copy;
        let (ino, kind, mode) = take_identity(reader)?;
        let flags = reader.u8()?;
        let tag = reader.u8()?;
        let (uid, gid) = (reader.varint32()?, reader.varint32()?);
        let nlink = if flags & HAS_NLINK != 0 { reader.varint32()? } else { 1 };
        let rdev = if flags & HAS_RDEV != 0 { reader.varint32()? } else { 0 };
        let size = reader.varint()?;
        let mtime = take_time(reader)?;
        let mut time = |same: u8| if flags & same != 0 { Ok(mtime) } else { take_time(reader) };
        let atime = time(ATIME_IS_MTIME)?;
        let ctime = time(CTIME_IS_MTIME)?;
        let btime = time(BTIME_IS_MTIME)?;
        let home = match flags & HAS_HOME {
            0 => None,
            _ => Some(Home { dir: InodeId::new(reader.varint()?), hash: reader.varint()? }),
        };
        if home.is_some_and(|home| kind == FileKind::Directory || home.hash >> 63 != 0) {
            return Err(reader.error("a wrong home"));
        }
        let file_flags = match flags & HAS_FILE_FLAGS {
            0 => FileFlags::default(),
            _ => FileFlags::from_bits(reader.u8()?)
                .filter(|flags| !flags.is_empty() && kind.has_flags())
                .ok_or_else(|| reader.error("wrong file flags"))?,
        };
        *from = copy;
        let reader = from;
        let content = Content::decode_from(tag, reader)?;
        if matches!(content, Content::Directory(_)) != (kind == FileKind::Directory)
            || matches!(content, Content::Symlink(_)) != (kind == FileKind::Symlink)
        {
            return Err(reader.error("content that does not fit the file type"));
        }
        if matches!(content, Content::Shared(_)) && kind != FileKind::Regular {
            return Err(reader.error("bytes of something that is no file"));
        }
        let stored = matches!(
            content,
            Content::Inline(_)
                | Content::Chunks
                | Content::Shared(SharedContent { blocks: None, .. })
        );
        if stored && size > STORED_FILE_BYTES_MAX {
            return Err(reader.error("a file in the store that is too large for it"));
        }
        Ok(Inode {
            ino,
            kind,
            perm: mode & 0o7777,
            nlink,
            uid,
            gid,
            rdev,
            size,
            times: Times { atime, mtime, ctime, btime },
            has_xattrs: flags & HAS_XATTRS != 0,
            flags: file_flags,
            home,
            content,
        })
    }
}

impl Inode {
    /// Returns the epoch of the state of the store from which it still reads its names or bytes.
    pub fn source(&self) -> Option<InodeId> {
        match &self.content {
            Content::Directory(info) => info.source,
            Content::Shared(borrowed) => Some(borrowed.source),
            _ => None,
        }
    }
}

impl Content {
    /// Returns whether it is in an object that may have a newer size than the row.
    pub fn is_dirty(&self) -> bool {
        matches!(self, Content::Object { dirty: true, .. })
    }

    /// Returns whether it is in an object.
    pub fn is_object(&self) -> bool {
        matches!(self, Content::Object { .. })
    }

    fn tag(&self) -> u8 {
        match self {
            Content::None => 1,
            Content::Inline(_) => 2,
            Content::Symlink(_) => 3,
            Content::Chunks => 4,
            Content::Object { dirty: false, .. } => 5,
            Content::Object { dirty: true, .. } => 6,
            Content::Directory(DirInfo { source: None, .. }) => 7,
            Content::Directory(_) => 8,
            Content::Shared(SharedContent { blocks: None, .. }) => 9,
            Content::Shared(_) => 10,
        }
    }

    /// Appends all but the bytes.
    #[inline]
    fn put_head(&self, out: &mut Short<HEAD_ROOM>) {
        match self {
            Content::None | Content::Chunks | Content::Object { dirty: true, .. } => {}
            Content::Inline(bytes) | Content::Symlink(bytes) => out.put_varint(bytes.len() as u64),
            Content::Object { dirty: false, blocks } => out.put_varint(*blocks),
            Content::Directory(dir) => {
                out.put_varint(dir.parent.get());
                out.put_varint(dir.suffix.map_or(0, EntrySuffix::get));
                out.put_varint(dir.entries);
                out.put_varint(u64::from(dir.subdirs));
                dir.usage.encode_to(out);
                dir.pending.encode_to(out);
                if let Some(source) = dir.source {
                    out.put_varint(source.get());
                }
            }
            Content::Shared(SharedContent { source, ino, blocks }) => {
                out.put_varint(source.get());
                out.put_varint(ino.get());
                if let Some(blocks) = blocks {
                    out.put_varint(*blocks);
                }
            }
        }
    }

    /// Returns the bytes at the end of its encoding.
    fn bytes(&self) -> &[u8] {
        match self {
            Content::Inline(bytes) | Content::Symlink(bytes) => bytes,
            _ => &[],
        }
    }

    fn decode_from(tag: u8, reader: &mut Reader<'_>) -> Result<Content, DecodeError> {
        let bounded = |reader: &mut Reader<'_>, max: usize| match reader.varint()? {
            len if len <= max as u64 => reader.take(len as usize),
            _ => Err(reader.error("too much content in an inode")),
        };
        Ok(match tag {
            1 => Content::None,
            2 => Content::Inline(bounded(reader, INLINE_BYTES_MAX)?),
            3 => Content::Symlink(bounded(reader, SYMLINK_BYTES_MAX)?),
            4 => Content::Chunks,
            5 => Content::Object { dirty: false, blocks: reader.varint()? },
            6 => Content::Object { dirty: true, blocks: 0 },
            7 | 8 => {
                let parent = InodeId::new(reader.varint()?);
                let suffix = match reader.varint()? {
                    0 => None,
                    raw => Some(
                        EntrySuffix::new(raw).ok_or_else(|| reader.error("a wrong key suffix"))?,
                    ),
                };
                let (entries, subdirs) = (reader.varint()?, reader.varint32()?);
                let usage = Usage::decode_from(reader)?;
                let pending = UsageChange::decode_from(reader)?;
                let source = (tag == 8).then(|| reader.varint().map(InodeId::new)).transpose()?;
                let info = DirInfo { parent, suffix, entries, subdirs, usage, pending, source };
                Content::Directory(info)
            }
            9 | 10 => {
                let (source, ino) =
                    (InodeId::new(reader.varint()?), InodeId::new(reader.varint()?));
                let blocks = (tag == 10).then(|| reader.varint()).transpose()?;
                Content::Shared(SharedContent { source, ino, blocks })
            }
            _ => return Err(reader.error("an unknown kind of content")),
        })
    }
}

/// Returns the beginning of an inode: which, what it is, and its mode.
#[inline]
pub(crate) fn take_identity(
    reader: &mut Reader<'_>,
) -> Result<(InodeId, FileKind, u16), DecodeError> {
    let ino = InodeId::new(reader.varint()?);
    let mode = reader.u16()?;
    let kind = FileKind::from_u8((mode >> 12) as u8)
        .ok_or_else(|| reader.error("an unknown file type"))?;
    Ok((ino, kind, mode))
}

impl<const N: usize> Short<N> {
    /// Appends `time`. REQUIRES: room for three bytes more than it may have.
    #[inline]
    pub(crate) fn put_time(&mut self, time: Timestamp) {
        self.put_varint(zigzag(time.secs()));
        self.put(time.nanos().to_le_bytes());
    }
}

#[inline]
pub(crate) fn take_time(reader: &mut Reader<'_>) -> Result<Timestamp, DecodeError> {
    let (secs, nanos) = (unzigzag(reader.varint()?), reader.u32()?);
    Timestamp::new(secs, nanos).ok_or_else(|| reader.error("a second or more of nanoseconds"))
}

/// Returns the value of an inode's own row.
pub fn encode_inode_row(inode: &Inode) -> Vec<u8> {
    inode.encode_between(&[&[ROW_VERSION]], &[])
}

/// Decodes an inode's own row.
pub fn decode_inode_row(bytes: &Bytes) -> Result<Inode, DecodeError> {
    let mut reader = Reader::new(bytes);
    reader.version()?;
    let inode = Inode::decode_from(&mut reader)?;
    reader.end()?;
    Ok(inode)
}
