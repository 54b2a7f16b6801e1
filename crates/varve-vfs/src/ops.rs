//! The calls that a front end makes of a file system ([`Vfs`]), with their arguments and results.
//!
//! Invariants:
//!
//! - An [`Entry`] counts as a lookup of its inode until the front end takes it back with [`Vfs::forget`].
//! - A [`Handle`] is valid until [`Vfs::release`].
//! - A call that fails as `Blocked` has changed nothing.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use bytes::Bytes;
use varve_types::{ClientId, FileFlags, FileName, InodeId};

use crate::{
    Attr, Blocked, FileLock, FileType, FsError, FsResult, Keep, LockKind, LockOwner, LockRange,
    LockWait, Place, RequestDone, RequestId, SetAttr, TreeLimits, TreeQuota, TreeUsage,
};

/// The user who makes a call. The front end checks permissions if it can. (The kernel does, except on mounts of root
/// alone, where permissions bind nobody.) The file system sets the owner of new objects and enforces the rules that
/// depend on ownership.
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

/// An open file. [`Vfs::open`] and [`Vfs::create`] return it; [`Vfs::release`] ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u64);

/// A name that was found or made, with the attributes of its inode. Each returned `Entry` counts as one lookup of
/// `attr.ino`, which the front end takes back with [`Vfs::forget`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The attributes.
    pub attr: Attr,
    /// For how long a front end may take the name to stand for this inode without asking again.
    pub keep: Keep,
}

impl Entry {
    /// A name that stands for this inode until a notice says otherwise.
    pub const fn of(attr: Attr) -> Entry {
        Entry { attr, keep: Keep::Forever }
    }
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct OpenFlags {
    /// Reads are allowed.
    pub read: bool,
    /// Writes are allowed.
    pub write: bool,
    /// Every write goes to the end of the file, whatever its offset is.
    pub append: bool,
    /// The file is opened to append, and the front end says for each write whether it goes to the end
    /// ([`Vfs::append`]). An append-only file can be opened for writing only with this flag or with `append`.
    pub appends: bool,
    /// The open cuts the file to zero bytes.
    pub truncate: bool,
    /// A create fails if the name exists.
    pub exclusive: bool,
    /// Every write is durable before it returns.
    pub sync: bool,
    /// A program runs from the file for as long as the handle lives.
    pub execute: bool,
}

/// An opened file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The front end passes this to reads, writes and the release.
    pub handle: Handle,
    /// The bytes are in a file of the storage below that the kernel may read and write directly;
    /// [`Vfs::with_passthrough`] passes its descriptor.
    pub passthrough: bool,
    /// A read would change the time of last access. So the front end must pass one read on instead of answering it
    /// from its cache.
    pub reread: bool,
}

/// What a write has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The offset of the first byte.
    pub offset: u64,
    /// How many bytes were written.
    pub bytes: usize,
    /// Which set-id bits the write cleared. A write that fails may have cleared them too.
    pub set_id: SetIdTaken,
}

/// What a write did about set-id bits that it had to clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SetIdTaken {
    /// There were none, or the write did not have to clear them.
    None,
    /// None are left. Perhaps there were none before.
    All,
    /// It left set-group-id, because the group may not execute the file. This bit may stay only if the writer is in
    /// the group, which the front end has to find out.
    AllButGroup,
}

/// One name of a directory listing.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// The inode it names.
    pub ino: InodeId,
    /// What the inode is.
    pub kind: FileType,
    /// The name; `.` and `..` are in the listing too.
    pub name: &'a [u8],
    /// The cookie with which [`Vfs::readdir`] goes on after this name: at least 1, at most 2^63 - 1. It stays valid
    /// while other names are added and removed.
    pub cookie: u64,
    /// The attributes if the call asked for them, except of `.` and `..`. Each accepted entry with attributes counts
    /// as a lookup.
    pub attr: Option<Attr>,
    /// For how long a front end may take the name to stand for this inode, as [`Entry::keep`] says. Nothing depends on
    /// it without attributes.
    pub keep: Keep,
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
    /// Do as [`RenameMode::Replace`] or [`RenameMode::NoReplace`] do, and leave a whiteout under the old name
    /// (RENAME_WHITEOUT): a character device with number 0 and without permissions, by which a union of directories
    /// hides a name of a lower directory.
    Whiteout {
        /// The user who makes the whiteout.
        caller: Caller,
        /// Whether the rename may replace a target.
        replaces: bool,
    },
}

impl RenameMode {
    /// Returns whether an existing target is an error.
    pub fn needs_absent(self) -> bool {
        matches!(self, RenameMode::NoReplace | RenameMode::Whiteout { replaces: false, .. })
    }

    /// Returns the user who makes the whiteout; `None` if the rename leaves none.
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
    /// Create or replace, and clear set-group-id: a caller who is not in the group sets an access control list.
    SetKillSetGid,
}

/// The rights for which [`Vfs::access`] asks; without any it asks whether the inode exists.
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
    /// Reserve space and extend the size over the range.
    Extend,
    /// Reserve space and leave the size.
    KeepSize,
    /// Make a hole and leave the size.
    PunchHole,
    /// Zero the range and extend the size over it.
    ZeroRange,
    /// Zero the range within the size.
    ZeroKeepSize,
}

/// A position in an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The file.
    pub ino: InodeId,
    /// The handle by which it is open.
    pub handle: Handle,
    /// The offset in bytes.
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

/// The space of a file system (`struct statvfs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// The size of a block in bytes, for the counts below.
    pub block_bytes: u32,
    /// The number of all blocks.
    pub blocks: u64,
    /// The number of free blocks.
    pub blocks_free: u64,
    /// The number of blocks that unprivileged callers may take.
    pub blocks_available: u64,
    /// The number of all inodes.
    pub files: u64,
    /// The number of inodes that can still be made.
    pub files_free: u64,
    /// The longest name, in bytes.
    pub name_bytes_max: u32,
}

/// How to begin or end a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transact {
    /// Begin one.
    Begin {
        /// The directory that the transaction shows.
        dir: InodeId,
        /// Options that the file system defines, separated by commas; empty for the defaults.
        how: String,
    },
    /// Make the changes of the transaction with this id part of the file system.
    Commit(u64),
    /// Drop the transaction with this id.
    Abort(u64),
}

/// Takes the result of a wait for a lock ([`Vfs::await_lock`]). It may take a moment, but does not wait.
pub type LockDone = Box<dyn FnOnce(FsResult<()>) + Send>;

/// The error of a file system that keeps no locks.
const NO_LOCKS: FsError = FsError::NotSupported("locks of files");

/// A file system. Calls may come from many threads at once.
///
/// Errors of all calls:
///
/// - `Storage` if the storage below fails, `Damaged` if it returns other bytes than were written.
/// - `Stale` if the inode id stands for no object.
/// - `ReadOnly` for a change on a read-only mount.
/// - `NoSpace` for a change if the storage below is full.
/// - `QuotaExceeded` for a change beyond the limits of a directory above.
/// - `Blocked` if serializable transactions have locked what the call needs. The front end may repeat the call after
///   [`Vfs::wait_for_locks`]; [`crate::insist`] ends the wait.
/// - `DeadlockVictim` in a transaction that has lost its locks as a deadlock victim.
pub trait Vfs: Send + Sync {
    /// Finds `name` in the directory `parent`.
    fn lookup(&self, parent: InodeId, name: FileName<'_>) -> FsResult<Entry>;

    /// Finds the directory that holds `dir` (lookup of `..`). Counts as a lookup.
    fn lookup_parent(&self, dir: InodeId) -> FsResult<Entry>;

    /// Finds `ino` by its number alone, for a front end whose clients keep handles. Counts as a lookup. `Stale` if
    /// the inode has no name any more. The call may walk over the whole file system.
    fn lookup_inode(&self, _ino: InodeId) -> FsResult<Entry> {
        Err(FsError::Stale)
    }

    /// Returns where `ino` is, which is looked up. Whoever keeps that can have the inode looked up again by
    /// [`Vfs::lookup_at`] after a [`Vfs::forget`] or a restart. The call is cheap. `None` if the inode is not looked
    /// up or has no name any more, or if the file system has no places.
    fn place(&self, _ino: InodeId) -> FsResult<Option<Place>> {
        Ok(None)
    }

    /// Finds `ino` at `place`, and if it is not there, as [`Vfs::lookup_inode`] finds it. Counts as a lookup. `place`
    /// is a hint that may be old or forged: the inode is returned only if it is there. The call walks over the file
    /// system only if it may `walk`; without that it answers `Stale` for an inode that only a walk would find.
    ///
    /// A file system whose [`Vfs::lookup_inode`] walks has to implement this.
    fn lookup_at(&self, ino: InodeId, _place: Option<Place>, _walk: bool) -> FsResult<Entry> {
        self.lookup_inode(ino)
    }

    /// Takes back `lookups` lookups of `ino`. When no lookup and no handle is left, the file system may forget where
    /// the inode is.
    fn forget(&self, ino: InodeId, lookups: u64);

    /// Returns the attributes.
    fn getattr(&self, ino: InodeId) -> FsResult<Attr>;

    /// Changes attributes and returns the new ones. The front end asks by `kill_set_id` to clear set-id bits; a chown
    /// by anyone except root always clears them.
    fn setattr(&self, caller: Caller, ino: InodeId, set: SetAttr) -> FsResult<Attr>;

    /// Returns the target of a symbolic link.
    fn readlink(&self, ino: InodeId) -> FsResult<Bytes>;

    /// Makes a regular file, fifo, socket or device node. `mode` holds the type and the permissions, from which the
    /// file system clears the bits of the umask.
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

    /// Gives `ino` one more name. `ino` is not a directory.
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

    /// Makes a regular file and opens it. Without `exclusive`, opens an existing file instead.
    fn create(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        perm: u32,
        flags: OpenFlags,
    ) -> FsResult<(Entry, Opened)>;

    /// Makes a regular file without a name in the file system of the directory `parent`, and opens it (O_TMPFILE).
    /// Counts as a lookup. [`Vfs::link`] can give the file a name.
    fn tmpfile(
        &self,
        caller: Caller,
        parent: InodeId,
        perm: u32,
        flags: OpenFlags,
    ) -> FsResult<(Entry, Opened)>;

    /// Opens a regular file.
    fn open(&self, ino: InodeId, flags: OpenFlags) -> FsResult<Opened>;

    /// Opens a regular file again that a client had open before this file system was opened: `ino` is looked for as by
    /// [`Vfs::lookup_at`] without a walk, also if it has no name any more. Nothing is cut, whatever `flags` say.
    /// Counts no lookup. `Stale` if the file is gone.
    fn reopen(&self, ino: InodeId, _place: Option<Place>, flags: OpenFlags) -> FsResult<Opened> {
        self.open(ino, OpenFlags { truncate: false, ..flags })
    }

    /// Removes the files without a name that the file system kept when it was opened so that they could be opened
    /// again ([`Vfs::reopen`]), and were not.
    fn end_grace(&self) -> FsResult<()> {
        Ok(())
    }

    /// Calls `take` with a descriptor of the file below that holds the bytes of `handle`. By this descriptor the file
    /// can be opened in any mode. `NotSupported` if there is no such file.
    fn with_passthrough(
        &self,
        handle: Handle,
        take: &mut dyn FnMut(BorrowedFd<'_>),
    ) -> FsResult<()>;

    /// Reads up to `len` bytes at `offset`; fewer only at the end of the file.
    fn read(&self, ino: InodeId, handle: Handle, offset: u64, len: usize) -> FsResult<Bytes>;

    /// Writes `data` at `offset`, or at the end if the file is opened to append. Writes fewer bytes only if there is
    /// no space for all. `kill_set_id` clears the set-id bits and capabilities in the same step.
    fn write(
        &self,
        ino: InodeId,
        handle: Handle,
        offset: u64,
        data: &[u8],
        kill_set_id: bool,
    ) -> FsResult<Written>;

    /// Writes `data` at the end of the file as [`Vfs::write`] does. The front end takes `offset` to be the end; if
    /// the file has changed without the front end, the bytes go to the real end.
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

    /// Repeats [`Vfs::write`] until all of `data` is written. After an error a part of it may be written.
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

    /// Ends a handle, and all locks of the file that were set by it.
    fn release(&self, ino: InodeId, handle: Handle) -> FsResult<()>;

    /// Makes the file durable: its bytes and size, and every attribute unless `data_only` is set.
    fn fsync(&self, ino: InodeId, handle: Handle, data_only: bool) -> FsResult<()>;

    /// Makes the names of a directory durable.
    fn fsync_dir(&self, ino: InodeId) -> FsResult<()>;

    /// Makes everything durable.
    fn sync(&self) -> FsResult<()>;

    /// Lists a directory after `cookie` (0: from the start). Stops when `emit` returns false, which means that `emit`
    /// did not take that entry. `with_attr` asks for attributes.
    fn readdir(
        &self,
        ino: InodeId,
        cookie: u64,
        with_attr: bool,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> FsResult<()>;

    /// Returns the space that is left.
    fn statfs(&self) -> FsResult<StatFs>;

    /// Checks the mode bits: `AccessDenied` unless `caller`, who is also in `groups`, has the rights in `mode`.
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

    /// Copies up to `len` bytes and returns the count. It is smaller at the end of the source, or when one call would
    /// take long. `Invalid` if the ranges of one file overlap, `BadHandle` if the target is open to append.
    fn copy_range(&self, from: Position, to: Position, len: u64) -> FsResult<u64>;

    /// Returns the flags that chattr(1) sets. `NotSupported` if the file system has no flags.
    fn file_flags(&self, _ino: InodeId) -> FsResult<FileFlags> {
        Err(FsError::NotSupported("file flags"))
    }

    /// Sets these flags of a regular file or a directory and clears all others. The front end checks whether the
    /// caller may do this. `TextBusy` if the flags make a file immutable to which a program may write past the file
    /// system. From then on:
    ///
    /// - An immutable file cannot be opened for writing, cut, written, linked, moved or removed, and its attributes
    ///   and extended attributes cannot change: `NotPermitted`. No name enters or leaves an immutable directory.
    /// - An append-only file can be opened for writing only to append. It cannot be cut, linked, moved or removed.
    ///   Its owner, mode and extended attributes cannot change, and its times can only be set to now. No name leaves
    ///   an append-only directory.
    fn set_file_flags(&self, _ino: InodeId, _flags: FileFlags) -> FsResult<()> {
        Err(FsError::NotSupported("file flags"))
    }

    /// Finds the next data or hole at or after `offset`.
    fn lseek(&self, ino: InodeId, handle: Handle, offset: u64, what: SeekFrom) -> FsResult<u64>;

    /// Returns the value of an extended attribute; `NoXattr` if there is none of that name.
    fn getxattr(&self, ino: InodeId, name: &[u8]) -> FsResult<Bytes>;

    /// Sets an extended attribute.
    fn setxattr(&self, ino: InodeId, name: &[u8], value: &[u8], mode: XattrMode) -> FsResult<()>;

    /// Returns the names of all extended attributes, each ended by a NUL.
    fn listxattr(&self, ino: InodeId) -> FsResult<Vec<u8>>;

    /// Removes an extended attribute.
    fn removexattr(&self, ino: InodeId, name: &[u8]) -> FsResult<()>;

    /// Makes `name` in `parent` a copy of what `old_name` in `dir` stands for, with all that lies below. It takes the
    /// same time for a tree of any size. Counts as a lookup. `NotSupported` if the file system has no clones.
    fn clone_tree(
        &self,
        _dir: InodeId,
        _old_name: FileName<'_>,
        _parent: InodeId,
        _name: FileName<'_>,
    ) -> FsResult<Entry> {
        Err(FsError::NotSupported("clones"))
    }

    /// Returns whether `ino`, a synthetic id ([`InodeId::is_synthetic`]), stands for a directory on which another file
    /// system will be mounted. The front end answers every request about it by [`Vfs::arrive`].
    fn is_awaited(&self, _ino: InodeId) -> bool {
        false
    }

    /// Returns whether what the front end knows of `ino`, a synthetic id, may change at any moment without a notice.
    /// Then the front end has to ask each time.
    fn is_fleeting(&self, ino: InodeId) -> bool {
        self.is_awaited(ino)
    }

    /// Returns whether `name`, which was not found in `parent`, may appear there without a notice to the front end.
    fn may_appear(&self, parent: InodeId, _name: FileName<'_>) -> bool {
        parent.is_synthetic()
    }

    /// Returns whether the file system has to know when answers have reached the front end's clients
    /// ([`Vfs::delivered`]).
    fn follows_answers(&self) -> bool {
        false
    }

    /// Says that the calling thread holds no answer any more: all that its calls have returned has been handed to the
    /// front end's client (the kernel), or will not be. The front end calls this after each request, on the thread
    /// that made the calls for it, if [`Vfs::follows_answers`]. So a file system that takes a promise back can wait
    /// until answers that rest on the promise have arrived, and can then tell the client.
    fn delivered(&self) {}

    /// Waits until the file system that belongs on `ino` is mounted there, and returns `Stale`: the path has to be
    /// walked again. Another error says why the file system is not mounted.
    fn arrive(&self, _ino: InodeId) -> FsResult<()> {
        Err(FsError::Stale)
    }

    /// Waits until transactions have released locks since a call was `blocked`, at most for `wait_max`. Returns
    /// whether they have.
    fn wait_for_locks(&self, _blocked: &Blocked, _wait_max: Duration) -> bool {
        true
    }

    /// Returns for how long a front end repeats a call that locks block.
    fn lock_wait_max(&self) -> Duration {
        Duration::ZERO
    }

    /// Ends the wait of a call that was `blocked`: the front end is about to repeat the call or to give up.
    fn wait_is_over(&self, _blocked: &Blocked) {}

    /// Decides about a call that has waited as long as it may. True: the transactions that blocked it have lost their
    /// locks, and the front end makes the call once more. False: the call has failed.
    fn overrule(&self, _blocked: &Blocked) -> bool {
        false
    }

    /// Returns what lies below a directory, without a walk; for any other object, the object itself. `NotSupported`
    /// if the file system does not count this.
    fn usage(&self, _ino: InodeId) -> FsResult<TreeUsage> {
        Err(FsError::NotSupported("the usage of directory trees"))
    }

    /// Returns whether the file system keeps the locks that programs set on files. Otherwise the front end's client (the
    /// kernel) keeps them, which is right if no other client uses the files.
    fn has_locks(&self) -> bool {
        false
    }

    /// Returns the first lock of others that excludes `lock`. Its process is 0 if the front end's client does not know
    /// the process.
    fn test_lock(
        &self,
        _ino: InodeId,
        _handle: Handle,
        _lock: FileLock,
    ) -> FsResult<Option<FileLock>> {
        Err(NO_LOCKS)
    }

    /// Sets a lock. It replaces what its owner has locked in the range. `TryAgain` if a lock of others excludes it,
    /// `TooManyLocks` if there is no room for it. A lock of [`crate::LockKind::Flock`] that changes its mode may be
    /// lost upon `TryAgain`.
    fn set_lock(&self, _ino: InodeId, _handle: Handle, _lock: FileLock) -> FsResult<()> {
        Err(NO_LOCKS)
    }

    /// Sets a lock as [`Vfs::set_lock`] does, once no lock of others excludes it, and then calls `done`. The call does
    /// not wait. `done` is called exactly once, on any thread, perhaps before this call returns: with `Deadlock` if
    /// processes would wait for each other for ever, with `TooManyLocks` if there is no room, with `Interrupted` after
    /// [`Vfs::cancel_lock`].
    fn await_lock(
        &self,
        _ino: InodeId,
        _handle: Handle,
        _lock: FileLock,
        done: LockDone,
    ) -> LockWait {
        done(Err(NO_LOCKS));
        LockWait(0)
    }

    /// Ends a wait, unless it has ended.
    fn cancel_lock(&self, _wait: LockWait) {}

    /// Takes back what an owner has locked in a range. `TooManyLocks` if a lock would become two and there is no room
    /// for them.
    fn unlock(
        &self,
        _ino: InodeId,
        _handle: Handle,
        _owner: (LockOwner, LockKind),
        _range: LockRange,
    ) -> FsResult<()> {
        Err(NO_LOCKS)
    }

    /// Takes back all locks of a process on a file of which it has closed a descriptor.
    fn close_locks(&self, _ino: InodeId, _handle: Handle, _owner: LockOwner) -> FsResult<()> {
        Err(NO_LOCKS)
    }

    /// Limits what may lie below a directory: from now on a change that would exceed the limits fails as
    /// `QuotaExceeded`. Empty limits remove all. `NotSupported` if the file system has no limits.
    fn set_limits(&self, _ino: InodeId, _limits: TreeLimits) -> FsResult<()> {
        Err(FsError::NotSupported("limits on directory trees"))
    }

    /// Returns the limits that hold for a directory and the limits on directories below it, by path. `NotSupported`
    /// as for [`Vfs::set_limits`].
    fn quotas(&self, _ino: InodeId) -> FsResult<Vec<TreeQuota>> {
        Err(FsError::NotSupported("limits on directory trees"))
    }

    /// Returns only the limits that hold for a directory, by path. `NotSupported` as for [`Vfs::set_limits`].
    fn quotas_of(&self, _ino: InodeId) -> FsResult<Vec<TreeQuota>> {
        Err(FsError::NotSupported("limits on directory trees"))
    }

    /// Begins or ends a transaction and returns its id. `Conflict`, `DeadlockVictim`, `QuotaExceeded`, `TextBusy` (large
    /// files are open for writing) and `NoSpace` say why a commit has changed nothing; the transaction stays open.
    /// `NotFound` if no such transaction is open, `Invalid` for unknown options, `TryAgain` if it does not work at
    /// the moment. The call may wait for requests that other threads serve meanwhile.
    fn transact(&self, _what: Transact) -> FsResult<u64> {
        Err(FsError::NotSupported("transactions"))
    }

    /// Returns the id of the transaction that a program ends by setting attributes on `ino`. The transaction may have
    /// ended. `NotSupported` for all other files.
    fn controlled(&self, _ino: InodeId) -> FsResult<u64> {
        Err(FsError::NotSupported("the end of transactions by attributes"))
    }

    /// Runs `call`, which makes one changing call of this file system on this thread, and notes with the effect of that
    /// call, in one atomic step, that `request` was done and what it gave. After any crash [`Vfs::request_done`] says
    /// so if and only if the effect is there. A call that fails, or changes nothing, leaves no note: to repeat it is
    /// to do it once.
    ///
    /// Covered are the calls that change names (create, mknod, mkdir, symlink, link, unlink, rmdir, rename,
    /// [`Vfs::clone_tree`], tmpfile), an open or a create that cuts a file, setattr, setxattr, removexattr,
    /// [`Vfs::set_limits`], [`Vfs::set_file_flags`], and write, append, fallocate and [`Vfs::copy_range`] of bytes that the
    /// file system keeps itself. Not covered are:
    ///
    /// - Bytes of large files, which lie beside the rows. Whoever repeats a write, a copy or an allocation at an offset
    ///   does the same again. An append that was done and is repeated is done twice.
    /// - The moment between the cut of a large file and its row: after a crash in it there is no note, and a repetition cuts
    ///   the file again.
    /// - Changes in a transaction's view, and [`Vfs::transact`].
    ///
    /// A note says that a call was done, not that it is durable: who answers a request by a note that promised more than
    /// that, as a write by a handle with [`OpenFlags::sync`] does, syncs first.
    ///
    /// The default notes nothing.
    fn numbered(&self, _request: RequestId, call: &mut dyn FnMut()) {
        call();
    }

    /// Returns the last request that was done in a slot of a client, if one left a note.
    fn request_done(&self, _client: ClientId, _slot: u32) -> FsResult<Option<RequestDone>> {
        Ok(None)
    }

    /// Notes that there is a client, for a server that starts again after its death.
    fn remember_client(&self, _client: ClientId) -> FsResult<()> {
        Err(FsError::NotSupported("clients of a server"))
    }

    /// Returns the clients that are noted.
    fn remembered_clients(&self) -> FsResult<Vec<ClientId>> {
        Ok(Vec::new())
    }

    /// Removes all notes about a client and its requests. REQUIRES: none of its requests is under way.
    fn forget_client(&self, _client: ClientId) -> FsResult<()> {
        Ok(())
    }

    /// Returns the state of the file system as one JSON object.
    fn status_json(&self) -> String;
}
