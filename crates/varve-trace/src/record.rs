//! One operation of a trace, and its encoding.
//!
//! ```text
//! record   varint  microseconds since the record before it, or since the frame's time
//!          varint  microseconds that it took
//!          varint  client: a process, or a machine
//!          u8      operation (see [`Op`])
//!          u8      fields that follow: 1 object, 2 directory, 4 name, 8 second directory, 16 second name, 32 error, 64 is a directory
//!          ...     each of them, in this order: varints, names as varint length and bytes, the error as a varint errno
//! ```
//!
//! Objects are numbers: inode numbers, hashes of file handles, or numbers that an importer chose.
//!
//! Invariant: the fields have this order, and flag 64 has no bytes.

use varve_schema::{DecodeError, Reader, put_varint};

/// A kind of operation. The values are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Op {
    /// A name is looked for in a directory.
    Lookup = 1,
    /// Attributes are read.
    Getattr = 2,
    /// Attributes or the size are changed.
    Setattr = 3,
    /// Permissions are checked.
    Access = 4,
    /// A file is opened.
    Open = 5,
    /// A file is made.
    Create = 6,
    /// A special file is made.
    Mknod = 7,
    /// A directory is made.
    Mkdir = 8,
    /// A symbolic link is made.
    Symlink = 9,
    /// A file gets another name.
    Link = 10,
    /// A name of a file is removed.
    Unlink = 11,
    /// A directory is removed.
    Rmdir = 12,
    /// A name is moved.
    Rename = 13,
    /// A directory is listed.
    Readdir = 14,
    /// The target of a symbolic link is read.
    Readlink = 15,
    /// Bytes are read.
    Read = 16,
    /// Bytes are written.
    Write = 17,
    /// Bytes are made durable.
    Fsync = 18,
    /// A file is closed.
    Close = 19,
    /// Extended attributes are read or changed.
    Xattr = 20,
    /// Anything else.
    Other = 21,
    /// No operation: the object is known to have this name in this directory.
    Known = 22,
}

/// All operations, in the order of their numbers.
pub const OPS: [Op; 21] = [
    Op::Lookup,
    Op::Getattr,
    Op::Setattr,
    Op::Access,
    Op::Open,
    Op::Create,
    Op::Mknod,
    Op::Mkdir,
    Op::Symlink,
    Op::Link,
    Op::Unlink,
    Op::Rmdir,
    Op::Rename,
    Op::Readdir,
    Op::Readlink,
    Op::Read,
    Op::Write,
    Op::Fsync,
    Op::Close,
    Op::Xattr,
    Op::Other,
];

impl Op {
    /// Returns its name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Op::Lookup => "lookup",
            Op::Getattr => "getattr",
            Op::Setattr => "setattr",
            Op::Access => "access",
            Op::Open => "open",
            Op::Create => "create",
            Op::Mknod => "mknod",
            Op::Mkdir => "mkdir",
            Op::Symlink => "symlink",
            Op::Link => "link",
            Op::Unlink => "unlink",
            Op::Rmdir => "rmdir",
            Op::Rename => "rename",
            Op::Readdir => "readdir",
            Op::Readlink => "readlink",
            Op::Read => "read",
            Op::Write => "write",
            Op::Fsync => "fsync",
            Op::Close => "close",
            Op::Xattr => "xattr",
            Op::Other => "other",
            Op::Known => "known",
        }
    }

    fn from_number(number: u8) -> Option<Op> {
        match number {
            _ if number == Op::Known as u8 => Some(Op::Known),
            _ => OPS.get(usize::from(number).checked_sub(1)?).copied(),
        }
    }
}

/// One operation. Times are in microseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// When it began.
    pub at_us: u64,
    /// How long it took; 0 if that is not known.
    pub took_us: u64,
    /// The process or machine that made the call.
    pub client: u64,
    /// The kind of operation.
    pub op: Op,
    /// The object: for [`Op::Lookup`] and operations that make something, what was found or made; for [`Op::Link`],
    /// [`Op::Unlink`], [`Op::Rmdir`] and [`Op::Rename`], what has the name.
    pub object: Option<u64>,
    /// The directory that the name is in.
    pub dir: Option<u64>,
    /// The name in it.
    pub name: Vec<u8>,
    /// The target directory of a rename.
    pub new_dir: Option<u64>,
    /// The name in the target directory.
    pub new_name: Vec<u8>,
    /// The errno, 0 for success.
    pub error: u32,
    /// Whether the object is known to be a directory.
    pub is_dir: bool,
}

const OBJECT: u8 = 1;
const DIR: u8 = 2;
const NAME: u8 = 4;
const NEW_DIR: u8 = 8;
const NEW_NAME: u8 = 16;
const ERROR: u8 = 32;
const IS_DIR: u8 = 64;

/// The longest name that a record can have.
pub const NAME_BYTES_MAX: usize = 4096;

impl Record {
    /// An operation without objects.
    pub fn new(at_us: u64, client: u64, op: Op) -> Record {
        Record {
            at_us,
            took_us: 0,
            client,
            op,
            object: None,
            dir: None,
            name: Vec::new(),
            new_dir: None,
            new_name: Vec::new(),
            error: 0,
            is_dir: false,
        }
    }

    /// Appends the encoding. `before_us` is the time of the record before it.
    pub(crate) fn encode(&self, before_us: u64, out: &mut Vec<u8>) {
        put_varint(out, self.at_us.saturating_sub(before_us));
        put_varint(out, self.took_us);
        put_varint(out, self.client);
        let fields = [
            (self.object.is_some(), OBJECT),
            (self.dir.is_some(), DIR),
            (!self.name.is_empty(), NAME),
            (self.new_dir.is_some(), NEW_DIR),
            (!self.new_name.is_empty(), NEW_NAME),
            (self.error != 0, ERROR),
            (self.is_dir, IS_DIR),
        ];
        let fields = fields.iter().filter(|(is_there, _)| *is_there).map(|(_, bit)| bit).sum();
        out.extend([self.op as u8, fields]);
        let put_name = |out: &mut Vec<u8>, name: &[u8]| {
            if !name.is_empty() {
                let name = &name[..name.len().min(NAME_BYTES_MAX)];
                put_varint(out, name.len() as u64);
                out.extend_from_slice(name);
            }
        };
        self.object.iter().chain(&self.dir).for_each(|number| put_varint(out, *number));
        put_name(out, &self.name);
        self.new_dir.iter().for_each(|number| put_varint(out, *number));
        put_name(out, &self.new_name);
        if self.error != 0 {
            put_varint(out, self.error.into());
        }
    }

    /// Decodes the next record of a frame.
    pub(crate) fn decode(reader: &mut Reader<'_>, before_us: u64) -> Result<Record, DecodeError> {
        let later_us = reader.varint()?;
        let at_us = before_us.checked_add(later_us).ok_or(reader.error("a time beyond 64 bits"))?;
        let (took_us, client) = (reader.varint()?, reader.varint()?);
        let op = Op::from_number(reader.u8()?).ok_or(reader.error("an unknown operation"))?;
        let fields = reader.u8()?;
        if fields & !(OBJECT | DIR | NAME | NEW_DIR | NEW_NAME | ERROR | IS_DIR) != 0 {
            return Err(reader.error("an unknown field"));
        }
        let number = |reader: &mut Reader<'_>, bit: u8| match fields & bit != 0 {
            true => reader.varint().map(Some),
            false => Ok(None),
        };
        let name = |reader: &mut Reader<'_>, bit: u8| match fields & bit != 0 {
            true => read_name(reader),
            false => Ok(Vec::new()),
        };
        Ok(Record {
            at_us,
            took_us,
            client,
            op,
            object: number(reader, OBJECT)?,
            dir: number(reader, DIR)?,
            name: name(reader, NAME)?,
            new_dir: number(reader, NEW_DIR)?,
            new_name: name(reader, NEW_NAME)?,
            error: if fields & ERROR != 0 { reader.varint32()? } else { 0 },
            is_dir: fields & IS_DIR != 0,
        })
    }
}

fn read_name(reader: &mut Reader<'_>) -> Result<Vec<u8>, DecodeError> {
    let bytes = reader.varint()?;
    match usize::try_from(bytes) {
        Ok(bytes) if (1..=NAME_BYTES_MAX).contains(&bytes) => {
            reader.borrow(bytes).map(<[u8]>::to_vec)
        }
        _ => Err(reader.error("a name of a length that none has")),
    }
}
