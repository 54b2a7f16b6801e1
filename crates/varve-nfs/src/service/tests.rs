//! Handles of inodes that the file system does not find where it found them last.

use std::os::fd::BorrowedFd;

use bytes::Bytes;
use parking_lot::Mutex;
use varve_types::Timestamp;
use varve_vfs::{
    AllocateMode, DirEntry, Handle, Keep, OpenFlags, Position, RenameMode, SeekFrom, SetAttr,
    StatFs, Written, XattrMode,
};

use super::*;

const FILE: InodeId = InodeId::new(7);
const DIR: InodeId = InodeId::new(5);

/// A file system with one file in one directory.
#[derive(Default)]
struct Moving {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Lookups of the file that were not taken back.
    lookups: u64,
    /// The file system knows where the file is.
    is_placed: bool,
    /// The file has its name in the directory.
    is_in_dir: bool,
    is_gone: bool,
    /// Times that the file was looked for by its number.
    walks: u64,
}

impl State {
    fn found(&mut self) -> FsResult<Entry> {
        if self.is_gone {
            return Err(FsError::Stale);
        }
        self.is_placed = true;
        self.lookups += 1;
        Ok(Entry::of(attr(FILE)))
    }
}

fn attr(ino: InodeId) -> Attr {
    let now = Timestamp::default();
    Attr {
        ino,
        kind: FileType::Regular,
        perm: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        keep: Keep::Forever,
    }
}

/// What these tests do not ask for.
macro_rules! unasked {
    ($($name:ident($($of:ty),*) -> $to:ty;)*) => {
        $(fn $name(&self, $(_: $of),*) -> FsResult<$to> {
            unreachable!(stringify!($name))
        })*
    };
}

impl Vfs for Moving {
    fn getattr(&self, ino: InodeId) -> FsResult<Attr> {
        let is_known = ino == FILE && self.state.lock().is_placed;
        if is_known { Ok(attr(ino)) } else { Err(FsError::Stale) }
    }

    fn lookup(&self, parent: InodeId, name: FileName<'_>) -> FsResult<Entry> {
        let mut state = self.state.lock();
        match parent == DIR && name.as_bytes() == b"file" && state.is_in_dir {
            true => state.found(),
            false => Err(FsError::NotFound),
        }
    }

    fn lookup_inode(&self, ino: InodeId) -> FsResult<Entry> {
        assert_eq!(ino, FILE);
        let mut state = self.state.lock();
        state.walks += 1;
        state.found()
    }

    fn forget(&self, ino: InodeId, lookups: u64) {
        assert_eq!(ino, FILE);
        let mut state = self.state.lock();
        state.lookups = state.lookups.checked_sub(lookups).expect("a lookup to take back");
        state.is_placed &= state.lookups > 0;
    }

    fn readdir(
        &self,
        ino: InodeId,
        _cookie: u64,
        _with_attr: bool,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> FsResult<()> {
        assert_eq!(ino, DIR);
        if self.state.lock().is_in_dir {
            let kind = FileType::Regular;
            emit(&DirEntry {
                ino: FILE,
                kind,
                name: b"file",
                cookie: 1,
                attr: None,
                keep: Keep::Forever,
            });
        }
        Ok(())
    }

    fn status_json(&self) -> String {
        unreachable!("status_json")
    }

    unasked! {
        lookup_parent(InodeId) -> Entry;
        setattr(Caller, InodeId, SetAttr) -> Attr;
        readlink(InodeId) -> Bytes;
        mknod(Caller, InodeId, FileName<'_>, u32, u32) -> Entry;
        mkdir(Caller, InodeId, FileName<'_>, u32) -> Entry;
        symlink(Caller, InodeId, FileName<'_>, &[u8]) -> Entry;
        link(InodeId, InodeId, FileName<'_>) -> Entry;
        unlink(InodeId, FileName<'_>) -> ();
        rmdir(InodeId, FileName<'_>) -> ();
        rename(InodeId, FileName<'_>, InodeId, FileName<'_>, RenameMode) -> ();
        create(Caller, InodeId, FileName<'_>, u32, OpenFlags) -> (Entry, varve_vfs::Opened);
        tmpfile(Caller, InodeId, u32, OpenFlags) -> (Entry, varve_vfs::Opened);
        open(InodeId, OpenFlags) -> varve_vfs::Opened;
        with_passthrough(Handle, &mut dyn FnMut(BorrowedFd<'_>)) -> ();
        read(InodeId, Handle, u64, usize) -> Bytes;
        write(InodeId, Handle, u64, &[u8], bool) -> Written;
        release(InodeId, Handle) -> ();
        fsync(InodeId, Handle, bool) -> ();
        fsync_dir(InodeId) -> ();
        sync() -> ();
        statfs() -> StatFs;
        access(Caller, &[u32], InodeId, AccessMode) -> ();
        fallocate(InodeId, Handle, AllocateMode, u64, u64) -> ();
        copy_range(Position, Position, u64) -> u64;
        lseek(InodeId, Handle, u64, SeekFrom) -> u64;
        getxattr(InodeId, &[u8]) -> Bytes;
        setxattr(InodeId, &[u8], &[u8], XattrMode) -> ();
        listxattr(InodeId) -> Vec<u8>;
        removexattr(InodeId, &[u8]) -> ();
    }
}

/// A service of such a file system, whose file has been found once through a handle.
fn served(is_in_dir: bool, parent: Option<InodeId>) -> (Arc<Moving>, Service, FileHandle) {
    let vfs = Arc::new(Moving::default());
    vfs.state.lock().is_in_dir = is_in_dir;
    let service = Service {
        vfs: Arc::<Moving>::clone(&vfs) as Arc<dyn Vfs>,
        file_system: 1,
        verifier: [0; 8],
        exports: vec![(Export::parse("/ *(rw,no_root_squash)").expect("an export"), InodeId::ROOT)],
        looked_up: LookedUp::new(),
        opened: Opened::default(),
    };
    let handle = FileHandle { file_system: 1, export: InodeId::ROOT, ino: FILE, parent };
    assert_eq!(ask(&service, &handle), Ok(attr(FILE)));
    assert_eq!(vfs.state.lock().lookups, 1);
    vfs.state.lock().walks = 0;
    (vfs, service, handle)
}

fn ask(service: &Service, handle: &FileHandle) -> Result<Attr, Failure> {
    let address = IpAddr::from([127, 0, 0, 1]);
    let request = service.request(
        handle,
        address,
        &Credentials::Sys { uid: 0, gid: 0, groups: Vec::new() },
    )?;
    request.attr(handle)
}

/// Nothing noticed if a stale inode was not looked for again, if the lookup of before stayed, or if it was looked for in the wrong way.
#[test]
fn an_inode_that_is_not_where_it_was_is_found_again() {
    let cases = [(true, Some(DIR), 0), (false, Some(DIR), 1), (true, None, 1), (false, None, 1)];
    for (is_in_dir, parent, walks) in cases {
        let (vfs, service, handle) = served(is_in_dir, parent);
        for round in 1..4 {
            vfs.state.lock().is_placed = false;
            let told = format!("{is_in_dir}, {parent:?}, round {round}");
            assert_eq!(ask(&service, &handle), Ok(attr(FILE)), "{told}");
            // The next call finds it at once.
            assert_eq!(ask(&service, &handle), Ok(attr(FILE)), "{told}");
            let state = vfs.state.lock();
            assert_eq!((state.lookups, state.walks), (1, walks * round), "{told}");
        }
    }
}

#[test]
fn an_inode_that_is_gone_is_looked_for_once() {
    let (vfs, service, handle) = served(false, Some(DIR));
    *vfs.state.lock() = State { lookups: 1, is_gone: true, ..State::default() };
    for _ in 0..3 {
        assert_eq!(ask(&service, &handle), Err(Failure::Status(Status::STALE)));
        let state = vfs.state.lock();
        assert_eq!((state.lookups, state.walks), (0, 1));
    }
}
