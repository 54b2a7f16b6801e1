//! The calls.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use bytes::Bytes;
use varve_types::{FileFlags, FileName, InodeId};

use crate::{
    Attr, Blocked, FileType, FsError, FsResult, SetAttr, TreeLimits, TreeQuota, TreeUsage,
};

/// Who asks. The front end has checked permissions if it can (the kernel does, but on mounts of root
/// alone, where they bind nobody); what remains to the file system is ownership of new objects and the
/// rules that depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// Bits to clear from the mode of a new object (`0o777`).
    pub umask: u32,
}

impl Caller {
    /// The superuser with an empty umask.
    pub const ROOT: Caller = Caller { uid: 0, gid: 0, umask: 0 };
}

/// An open file. Given by [`Vfs::open`] and [`Vfs::create`], ended by [`Vfs::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u64);

/// A name that was found or made, with the attributes behind it. Each `Entry` returned counts as one
/// lookup of `attr.ino`, to be taken back with [`Vfs::forget`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The attributes.
    pub attr: Attr,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct OpenFlags {
    /// Reads allowed.
    pub read: bool,
    /// Writes allowed.
    pub write: bool,
    /// Every write goes to the end of the file, wherever its offset says.
    pub append: bool,
    /// It is opened to append, and the front end says of each write anew whether it goes to the end ([`Vfs::append`]). Files that
    /// are append-only are opened for writing with this or with `append` alone.
    pub appends: bool,
    /// Cut to zero bytes on open.
    pub truncate: bool,
    /// With create: fail if the name exists.
    pub exclusive: bool,
    /// Every write is durable before it returns.
    pub sync: bool,
    /// A program is executed from it for as long as the handle lives.
    pub execute: bool,
}

/// An opened file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// To be passed to reads, writes and release.
    pub handle: Handle,
    /// The bytes live in a file of the storage below that the kernel may read and write straight;
    /// [`Vfs::with_passthrough`] gives its descriptor.
    pub passthrough: bool,
    /// A read would move the time of last access, so the front end is to let one through instead of
    /// answering it from what it has cached.
    pub reread: bool,
}

/// What a write has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Where it was.
    pub offset: u64,
    /// How many bytes it wrote.
    pub bytes: usize,
    /// Which set-id bits it took. One that fails may have taken them, too.
    pub set_id: SetIdTaken,
}

/// What a write that is to take set-id bits has done about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SetIdTaken {
    /// There were none, or it was not asked to.
    None,
    /// There are none any more; there may have been none.
    All,
    /// It has left set-group-id, as the group may not execute the file. That stays only if the writer is in the group, which the
    /// front end has to find out.
    AllButGroup,
}

/// One name of a directory listing.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// The inode it names.
    pub ino: InodeId,
    /// What the inode is.
    pub kind: FileType,
    /// The name; `.` and `..` are listed too.
    pub name: &'a [u8],
    /// Pass this to [`Vfs::readdir`] to go on after this name. At least 1, at most 2^63 - 1; stays
    /// valid while other names come and go.
    pub cookie: u64,
    /// The attributes, when asked for; never for `.` and `..`. Each accepted entry with attributes
    /// counts as a lookup.
    pub attr: Option<Attr>,
}

/// How [`Vfs::rename`] treats an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replace it.
    Replace,
    /// Fail with EEXIST (RENAME_NOREPLACE).
    NoReplace,
    /// Swap the two (RENAME_EXCHANGE).
    Exchange,
    /// As [`RenameMode::Replace`] or [`RenameMode::NoReplace`], and leave a whiteout under the old name (RENAME_WHITEOUT): a
    /// character device with number 0 and without permissions, by which a union of directories hides a name of a lower one.
    Whiteout {
        /// Who makes it.
        caller: Caller,
        /// Whether a target may be replaced.
        replaces: bool,
    },
}

impl RenameMode {
    /// Whether a target that exists is an error.
    pub fn needs_absent(self) -> bool {
        matches!(self, RenameMode::NoReplace | RenameMode::Whiteout { replaces: false, .. })
    }

    /// Who makes the whiteout that the old name becomes, if it does.
    pub fn whiteout_by(self) -> Option<Caller> {
        match self {
            RenameMode::Whiteout { caller, .. } => Some(caller),
            RenameMode::Replace | RenameMode::NoReplace | RenameMode::Exchange => None,
        }
    }
}

/// How [`Vfs::setxattr`] treats an existing attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Create or replace.
    Set,
    /// Fail if it exists (XATTR_CREATE).
    Create,
    /// Fail if it does not exist (XATTR_REPLACE).
    Replace,
    /// Create or replace, and clear set-group-id: an access control list set by someone who is not in the
    /// group.
    SetKillSetGid,
}

/// What [`Vfs::access`] asks for; all false asks for existence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AccessMode {
    /// Reading.
    pub read: bool,
    /// Writing.
    pub write: bool,
    /// Executing or searching.
    pub execute: bool,
}

/// How [`Vfs::fallocate`] changes a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// Reserve room and extend the size over the range.
    Extend,
    /// Reserve room, leave the size.
    KeepSize,
    /// Make a hole; the size stays.
    PunchHole,
    /// Zero the range, extending the size over it.
    ZeroRange,
    /// Zero the range within the size.
    ZeroKeepSize,
}

/// A place in an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The file.
    pub ino: InodeId,
    /// How it is open.
    pub handle: Handle,
    /// The byte.
    pub offset: u64,
}

/// What [`Vfs::lseek`] looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekFrom {
    /// The next data (SEEK_DATA).
    Data,
    /// The next hole (SEEK_HOLE).
    Hole,
}

/// The room of a file system (`struct statvfs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// Unit of the block counts, in bytes.
    pub block_bytes: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks not in use.
    pub blocks_free: u64,
    /// Blocks that unprivileged callers may take.
    pub blocks_available: u64,
    /// Inodes in all.
    pub files: u64,
    /// Inodes that may still be made.
    pub files_free: u64,
    /// The longest name, in bytes.
    pub name_bytes_max: u32,
}

/// What to do about a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transact {
    /// Begin one.
    Begin {
        /// The directory that it shows.
        dir: InodeId,
        /// How it is to be: options of the file system's own, with commas between them; empty for what is usual.
        how: String,
    },
    /// Make what was changed in the one with this id part of the file system.
    Commit(u64),
    /// Drop it.
    Abort(u64),
}

/// A file system. Calls may come from many threads at once.
///
/// Errors common to all: `Storage` when the storage below fails or is damaged; `Stale` for an inode id
/// that stands for nothing; `ReadOnly` for a change of a read-only mount; `NoSpace` for a change when
/// the storage below is full; `QuotaExceeded` for one beyond the limits of a directory above; `Blocked`
/// when serializable transactions have locked what the call needs: it may be made again after
/// [`Vfs::wait_for_locks`], and [`insist`] ends the wait; `GaveWay` in a transaction that has lost its
/// locks.
pub trait Vfs: Send + Sync {
    /// Finds `name` in the directory `parent`.
    fn lookup(&self, parent: InodeId, name: FileName<'_>) -> FsResult<Entry>;

    /// Finds the directory that holds `dir` (lookup of `..`). Counts as a lookup.
    fn lookup_parent(&self, dir: InodeId) -> FsResult<Entry>;

    /// Finds `ino` by its number alone, for who has kept a handle of it. Counts as a lookup. `Stale` if it has no name any more;
    /// may take as long as a walk over the whole file system.
    fn lookup_inode(&self, _ino: InodeId) -> FsResult<Entry> {
        Err(FsError::Stale)
    }

    /// Takes back `lookups` lookups of `ino`. With none left and no handle, the file system may forget
    /// where it is.
    fn forget(&self, ino: InodeId, lookups: u64);

    /// The attributes.
    fn getattr(&self, ino: InodeId) -> FsResult<Attr>;

    /// Changes attributes; returns the new ones. The rules that tie set-id bits to ownership are the
    /// caller's to ask for by `kill_set_id`, except that a chown by other than root clears them.
    fn setattr(&self, caller: Caller, ino: InodeId, set: SetAttr) -> FsResult<Attr>;

    /// The target of a symbolic link.
    fn readlink(&self, ino: InodeId) -> FsResult<Bytes>;

    /// Makes a regular file, fifo, socket or device node. `mode` holds type and permissions, not yet
    /// reduced by the umask.
    fn mknod(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        mode: u32,
        rdev: u32,
    ) -> FsResult<Entry>;

    /// Makes a directory.
    fn mkdir(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        perm: u32,
    ) -> FsResult<Entry>;

    /// Makes a symbolic link to `target` (1 to 4095 bytes).
    fn symlink(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        target: &[u8],
    ) -> FsResult<Entry>;

    /// Gives `ino`, which is not a directory, one more name.
    fn link(&self, ino: InodeId, parent: InodeId, name: FileName<'_>) -> FsResult<Entry>;

    /// Removes a name of anything but a directory.
    fn unlink(&self, parent: InodeId, name: FileName<'_>) -> FsResult<()>;

    /// Removes an empty directory.
    fn rmdir(&self, parent: InodeId, name: FileName<'_>) -> FsResult<()>;

    /// Moves a name, in one atomic step.
    fn rename(
        &self,
        parent: InodeId,
        name: FileName<'_>,
        new_parent: InodeId,
        new_name: FileName<'_>,
        mode: RenameMode,
    ) -> FsResult<()>;

    /// Makes a regular file, or with `exclusive` unset takes the existing one, and opens it.
    fn create(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        perm: u32,
        flags: OpenFlags,
    ) -> FsResult<(Entry, Opened)>;

    /// Makes a regular file without a name in the directory `parent`'s file system and opens it
    /// (O_TMPFILE). It counts as a lookup; [`Vfs::link`] can name it.
    fn tmpfile(
        &self,
        caller: Caller,
        parent: InodeId,
        perm: u32,
        flags: OpenFlags,
    ) -> FsResult<(Entry, Opened)>;

    /// Opens a regular file.
    fn open(&self, ino: InodeId, flags: OpenFlags) -> FsResult<Opened>;

    /// Calls `take` with a descriptor of the file below that holds the handle's bytes, by which it can be opened in any way.
    /// `NotSupported` if there is none.
    fn with_passthrough(
        &self,
        handle: Handle,
        take: &mut dyn FnMut(BorrowedFd<'_>),
    ) -> FsResult<()>;

    /// Reads up to `len` bytes at `offset`; fewer only at the end of the file.
    fn read(&self, ino: InodeId, handle: Handle, offset: u64, len: usize) -> FsResult<Bytes>;

    /// Writes `data` at `offset` (or at the end, if opened to append); fewer bytes only if there is no room for all. `kill_set_id`
    /// clears the set-id bits and capabilities in the same step.
    fn write(
        &self,
        ino: InodeId,
        handle: Handle,
        offset: u64,
        data: &[u8],
        kill_set_id: bool,
    ) -> FsResult<Written>;

    /// [`Vfs::write`] of what belongs at the end of the file, which the front end takes to be `offset`. It is written elsewhere
    /// where the file changed without the front end.
    fn append(
        &self,
        ino: InodeId,
        handle: Handle,
        offset: u64,
        data: &[u8],
        kill_set_id: bool,
    ) -> FsResult<Written> {
        self.write(ino, handle, offset, data, kill_set_id)
    }

    /// [`Vfs::write`] until all of `data` is written; an error if there is no room for all, a part of it being written then.
    fn write_all(
        &self,
        ino: InodeId,
        handle: Handle,
        offset: u64,
        data: &[u8],
        kill_set_id: bool,
    ) -> FsResult<()> {
        let mut written = 0;
        while written < data.len() {
            let (rest, at) = (&data[written..], offset + written as u64);
            written += self.write(ino, handle, at, rest, kill_set_id)?.bytes;
        }
        Ok(())
    }

    /// Ends a handle.
    fn release(&self, ino: InodeId, handle: Handle) -> FsResult<()>;

    /// Makes the file durable: its bytes and size, and with `data_only` unset every attribute.
    fn fsync(&self, ino: InodeId, handle: Handle, data_only: bool) -> FsResult<()>;

    /// Makes a directory's names durable.
    fn fsync_dir(&self, ino: InodeId) -> FsResult<()>;

    /// Makes everything durable.
    fn sync(&self) -> FsResult<()>;

    /// Lists a directory from after `cookie` (0: from the start) until `emit` returns false, which
    /// means that it did not take that entry. `with_attr` asks for attributes.
    fn readdir(
        &self,
        ino: InodeId,
        cookie: u64,
        with_attr: bool,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> FsResult<()>;

    /// Room left.
    fn statfs(&self) -> FsResult<StatFs>;

    /// `AccessDenied` unless the mode bits let `caller`, also in `groups`, do what `mode` asks.
    fn access(
        &self,
        caller: Caller,
        groups: &[u32],
        ino: InodeId,
        mode: AccessMode,
    ) -> FsResult<()>;

    /// Reserves, frees or zeroes a range.
    fn fallocate(
        &self,
        ino: InodeId,
        handle: Handle,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> FsResult<()>;

    /// Copies up to `len` bytes and returns the count: fewer at the end of the source, or because a call is
    /// not to take long. `Invalid` for ranges of one file that overlap, `BadHandle` for a target that is
    /// open to append.
    fn copy_range(&self, from: Position, to: Position, len: u64) -> FsResult<u64>;

    /// The flags that chattr(1) sets. `NotSupported` unless the file system has such.
    fn file_flags(&self, _ino: InodeId) -> FsResult<FileFlags> {
        Err(FsError::NotSupported("file flags"))
    }

    /// Sets these flags and clears all others, of a regular file or a directory; whether the caller may is the front end's to
    /// check. `TextBusy` for making a file immutable to which somebody may write past the file system. From then on:
    ///
    /// - What is immutable is not opened to be written to nor cut, written to, linked, moved or removed, and its attributes and
    ///   extended attributes stay: `NotPermitted`. Into an immutable directory and out of it no name goes.
    /// - What is append-only is opened for writing only to append, and not cut, linked, moved or removed; its owner, mode and
    ///   extended attributes stay, and its times but for setting them to now. Of an append-only directory no name goes.
    fn set_file_flags(&self, _ino: InodeId, _flags: FileFlags) -> FsResult<()> {
        Err(FsError::NotSupported("file flags"))
    }

    /// The next data or hole at or after `offset`.
    fn lseek(&self, ino: InodeId, handle: Handle, offset: u64, what: SeekFrom) -> FsResult<u64>;

    /// The value of an extended attribute; `NoXattr` if there is none of that name.
    fn getxattr(&self, ino: InodeId, name: &[u8]) -> FsResult<Bytes>;

    /// Sets an extended attribute.
    fn setxattr(&self, ino: InodeId, name: &[u8], value: &[u8], mode: XattrMode) -> FsResult<()>;

    /// The names of all extended attributes, each ended by a NUL.
    fn listxattr(&self, ino: InodeId) -> FsResult<Vec<u8>>;

    /// Removes an extended attribute.
    fn removexattr(&self, ino: InodeId, name: &[u8]) -> FsResult<()>;

    /// Makes `name` in `parent` a copy of what `old_name` in `dir` stands for, with all that lies below, at once however large
    /// it is. Counts as a lookup. `NotSupported` unless the file system can do that.
    fn clone_tree(
        &self,
        _dir: InodeId,
        _old_name: FileName<'_>,
        _parent: InodeId,
        _name: FileName<'_>,
    ) -> FsResult<Entry> {
        Err(FsError::NotSupported("clones"))
    }

    /// Whether `ino`, a made-up id ([`InodeId::is_made_up`]), stands for a place where another file system is to be
    /// mounted: then whatever is asked of it is [`Vfs::arrive`].
    fn is_awaited(&self, _ino: InodeId) -> bool {
        false
    }

    /// Whether what is known of `ino`, a made-up id, may end at any moment without the front end being told, so that it
    /// is to ask each time.
    fn is_fleeting(&self, ino: InodeId) -> bool {
        self.is_awaited(ino)
    }

    /// Whether `name`, which was not found in `parent`, may come to be there without the front end being told.
    fn may_appear(&self, parent: InodeId, _name: FileName<'_>) -> bool {
        parent.is_made_up()
    }

    /// Waits until the file system that belongs at `ino` is mounted there. Then the path is to be walked again,
    /// which is `Stale`; another error says why it is not mounted.
    fn arrive(&self, _ino: InodeId) -> FsResult<()> {
        Err(FsError::Stale)
    }

    /// Waits until locks have gone since they `blocked` a call, `wait_max` at most; whether they have.
    fn wait_for_locks(&self, _blocked: &Blocked, _wait_max: Duration) -> bool {
        true
    }

    /// The longest that a call is to be made again because locks are in its way.
    fn lock_wait_max(&self) -> Duration {
        Duration::ZERO
    }

    /// A call that was refused as `blocked` is about to be made again, or given up.
    fn wait_is_over(&self, _blocked: &Blocked) {}

    /// A call has waited as long as it may: true if it is to be made once more, as those who were in its way have given way to
    /// it, false if it has failed.
    fn overrule(&self, _blocked: &Blocked) -> bool {
        false
    }

    /// What lies below a directory, known without a walk; of anything else, itself. `NotSupported` unless the
    /// file system keeps such accounts.
    fn usage(&self, _ino: InodeId) -> FsResult<TreeUsage> {
        Err(FsError::NotSupported("the usage of directory trees"))
    }

    /// Limits what may lie below a directory: from now on a change that would exceed them is `QuotaExceeded`. No
    /// limits at all clear them. `NotSupported` unless the file system keeps such limits.
    fn set_limits(&self, _ino: InodeId, _limits: TreeLimits) -> FsResult<()> {
        Err(FsError::NotSupported("limits on directory trees"))
    }

    /// The limits that hold for a directory, and those below it, by path. `NotSupported` as with
    /// [`Vfs::set_limits`].
    fn quotas(&self, _ino: InodeId) -> FsResult<Vec<TreeQuota>> {
        Err(FsError::NotSupported("limits on directory trees"))
    }

    /// The limits that hold for a directory alone, by path. `NotSupported` as with [`Vfs::set_limits`].
    fn quotas_of(&self, _ino: InodeId) -> FsResult<Vec<TreeQuota>> {
        Err(FsError::NotSupported("limits on directory trees"))
    }

    /// Begins or ends a transaction; gives its id. `Conflict`, `GaveWay`, `QuotaExceeded`, `TextBusy` (large files are open
    /// for writing) and `NoSpace` say why a commit has changed nothing; the transaction goes on. `NotFound` if no such
    /// transaction is open, `Invalid` for options that there are not, `TryAgain` if it cannot be said at the moment. May wait
    /// for requests that are served meanwhile.
    fn transact(&self, _what: Transact) -> FsResult<u64> {
        Err(FsError::NotSupported("transactions"))
    }

    /// The id of the transaction that attributes set on `ino` end; it may have ended. `NotSupported` for all other files.
    fn controlled(&self, _ino: InodeId) -> FsResult<u64> {
        Err(FsError::NotSupported("the end of transactions by attributes"))
    }

    /// What the file system says of its own state, as one JSON object.
    fn status_json(&self) -> String;
}
