//! Attributes and arguments of calls as parts of messages.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use varve_types::{InodeId, Timestamp};
use varve_vfs as vfs;

/// Attributes of an inode, and for how long the client may keep them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attr {
    /// The inode id.
    pub ino: u64,
    /// Type and permissions, as `st_mode`.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// Last access, last change of data, last change of attributes, birth: seconds and nanoseconds.
    pub times: [(i64, u32); 4],
    /// For how long the client may keep attributes and bytes, in milliseconds; 0 for not at all.
    pub keep_ms: u32,
}

impl Attr {
    /// Makes a part of a message of attributes that may be kept for `keep_ms`.
    pub fn new(attr: &vfs::Attr, keep_ms: u32) -> Attr {
        let time = |time: Timestamp| (time.secs(), time.nanos());
        Attr {
            ino: attr.ino.get(),
            mode: attr.kind.mode_bits() | attr.perm,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            size: attr.size,
            blocks: attr.blocks,
            times: [attr.atime, attr.mtime, attr.ctime, attr.btime].map(time),
            keep_ms,
        }
    }

    /// Returns the attributes; `None` for an unknown type.
    pub fn get(&self) -> Option<vfs::Attr> {
        let [atime, mtime, ctime, btime] = self.times.map(time);
        Some(vfs::Attr {
            ino: InodeId::new(self.ino),
            kind: vfs::FileType::from_mode(self.mode)?,
            perm: self.mode & 0o7777,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size: self.size,
            blocks: self.blocks,
            atime,
            mtime,
            ctime,
            btime,
            keep: match self.keep_ms {
                0 => vfs::Keep::Never,
                ms => vfs::Keep::For(Duration::from_millis(u64::from(ms))),
            },
        })
    }
}

/// Returns a time; nanoseconds beyond a second count as the last one.
fn time((secs, nanos): (i64, u32)) -> Timestamp {
    Timestamp::new(secs, nanos.min(999_999_999)).unwrap_or(Timestamp::EPOCH)
}

/// A name that was found or made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// What it stands for.
    pub attr: Attr,
    /// Where the server found it.
    pub place: Place,
    /// For how long the client may keep the name, in milliseconds; 0 for not at all.
    pub keep_ms: u32,
}

/// Where the server found an inode ([`vfs::Place`]). The client sends it with each request about the inode.
pub type Place = Option<[u8; vfs::Place::BYTES]>;

/// The user who makes a call, with the groups besides the first one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caller {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Bits to clear from the mode of a new object.
    pub umask: u32,
}

impl From<vfs::Caller> for Caller {
    fn from(vfs::Caller { uid, gid, umask }: vfs::Caller) -> Caller {
        Caller { uid, gid, umask }
    }
}

impl From<&Caller> for vfs::Caller {
    fn from(Caller { uid, gid, umask }: &Caller) -> vfs::Caller {
        vfs::Caller { uid: *uid, gid: *gid, umask: umask & 0o777 }
    }
}

/// A time to set: `None` for the moment of the call.
pub type SetTime = Option<(i64, u32)>;

/// Changes of attributes; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SetAttr {
    /// Permissions.
    pub perm: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size.
    pub size: Option<u64>,
    /// Time of last access.
    pub atime: Option<SetTime>,
    /// Time of last change.
    pub mtime: Option<SetTime>,
    /// Clear set-id bits and capabilities.
    pub kill_set_id: bool,
    /// Clear set-group-id.
    pub kill_set_gid: bool,
}

impl From<vfs::SetAttr> for SetAttr {
    fn from(set: vfs::SetAttr) -> SetAttr {
        let time = |time: vfs::SetTime| match time {
            vfs::SetTime::Now => None,
            vfs::SetTime::To(time) => Some((time.secs(), time.nanos())),
        };
        SetAttr {
            perm: set.perm,
            uid: set.uid,
            gid: set.gid,
            size: set.size,
            atime: set.atime.map(time),
            mtime: set.mtime.map(time),
            kill_set_id: set.kill_set_id,
            kill_set_gid: set.kill_set_gid,
        }
    }
}

impl From<&SetAttr> for vfs::SetAttr {
    fn from(set: &SetAttr) -> vfs::SetAttr {
        let set_time = |to: SetTime| match to {
            None => vfs::SetTime::Now,
            Some(to) => vfs::SetTime::To(time(to)),
        };
        vfs::SetAttr {
            perm: set.perm.map(|perm| perm & 0o7777),
            uid: set.uid,
            gid: set.gid,
            size: set.size,
            atime: set.atime.map(set_time),
            mtime: set.mtime.map(set_time),
            kill_set_id: set.kill_set_id,
            kill_set_gid: set.kill_set_gid,
        }
    }
}

/// How a file is opened: bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct OpenFlags(pub u8);

impl From<vfs::OpenFlags> for OpenFlags {
    fn from(flags: vfs::OpenFlags) -> OpenFlags {
        let vfs::OpenFlags { read, write, append, appends, truncate, exclusive, sync, execute } =
            flags;
        let bits = [read, write, append, appends, truncate, exclusive, sync, execute];
        let bit = |(at, is_set): (usize, &bool)| u8::from(*is_set) << at;
        OpenFlags(bits.iter().enumerate().map(bit).fold(0, |all, bit| all | bit))
    }
}

impl From<OpenFlags> for vfs::OpenFlags {
    fn from(OpenFlags(bits): OpenFlags) -> vfs::OpenFlags {
        let has = |at: u32| bits & (1 << at) != 0;
        vfs::OpenFlags {
            read: has(0),
            write: has(1),
            append: has(2),
            appends: has(3),
            truncate: has(4),
            exclusive: has(5),
            sync: has(6),
            execute: has(7),
        }
    }
}

/// How a rename treats its target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RenameMode {
    /// Replace it.
    Replace,
    /// Fail if there is one.
    NoReplace,
    /// Swap the two.
    Exchange,
    /// Leave a whiteout under the old name.
    Whiteout {
        /// Who makes the whiteout.
        caller: Caller,
        /// Whether a target is replaced.
        replaces: bool,
    },
}

impl From<vfs::RenameMode> for RenameMode {
    fn from(mode: vfs::RenameMode) -> RenameMode {
        match mode {
            vfs::RenameMode::Replace => RenameMode::Replace,
            vfs::RenameMode::NoReplace => RenameMode::NoReplace,
            vfs::RenameMode::Exchange => RenameMode::Exchange,
            vfs::RenameMode::Whiteout { caller, replaces } => {
                RenameMode::Whiteout { caller: caller.into(), replaces }
            }
        }
    }
}

impl From<&RenameMode> for vfs::RenameMode {
    fn from(mode: &RenameMode) -> vfs::RenameMode {
        match mode {
            RenameMode::Replace => vfs::RenameMode::Replace,
            RenameMode::NoReplace => vfs::RenameMode::NoReplace,
            RenameMode::Exchange => vfs::RenameMode::Exchange,
            RenameMode::Whiteout { caller, replaces } => {
                vfs::RenameMode::Whiteout { caller: caller.into(), replaces: *replaces }
            }
        }
    }
}

/// How a range is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AllocateMode {
    /// Reserve space and extend the size.
    Extend,
    /// Reserve space.
    KeepSize,
    /// Make a hole.
    PunchHole,
    /// Zero, and extend the size.
    ZeroRange,
    /// Zero.
    ZeroKeepSize,
}

/// How an extended attribute is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrMode {
    /// Create or replace.
    Set,
    /// Create.
    Create,
    /// Replace.
    Replace,
    /// Create or replace, and clear set-group-id.
    SetKillSetGid,
}

macro_rules! same_variants {
    ($name:ident: $($variant:ident),*) => {
        impl From<vfs::$name> for $name {
            fn from(value: vfs::$name) -> $name {
                match value { $(vfs::$name::$variant => $name::$variant),* }
            }
        }
        impl From<$name> for vfs::$name {
            fn from(value: $name) -> vfs::$name {
                match value { $($name::$variant => vfs::$name::$variant),* }
            }
        }
    };
}

same_variants!(AllocateMode: Extend, KeepSize, PunchHole, ZeroRange, ZeroKeepSize);
same_variants!(XattrMode: Set, Create, Replace, SetKillSetGid);
