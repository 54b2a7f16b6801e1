//! A file system whose storage has stopped: whoever syncs it waits until the test goes on.

use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use varve_server::Server;
use varve_types::{FileName, InodeId};
use varve_vfs::{
    AccessMode, AllocateMode, Attr, Caller, DirEntry, Entry, FsResult, Handle, OpenFlags, Opened,
    Position, RenameMode, SeekFrom, SetAttr, StatFs, Vfs, Written, XattrMode,
};
use varve_wire::frame::Kind;
use varve_wire::{Answer, Request};

use crate::hostile::Raw;
use crate::support::options;

#[derive(Default)]
struct Stuck {
    goes_on: Mutex<bool>,
    changed: Condvar,
}

/// What these tests do not ask for.
macro_rules! unasked {
    ($($name:ident($($of:ty),*) -> $to:ty;)*) => {
        $(fn $name(&self, $(_: $of),*) -> FsResult<$to> {
            unreachable!(stringify!($name))
        })*
    };
}

impl Vfs for Stuck {
    fn sync(&self) -> FsResult<()> {
        let mut goes_on = self.goes_on.lock();
        self.changed.wait_while(&mut goes_on, |goes_on| !*goes_on);
        Ok(())
    }

    fn status_json(&self) -> String {
        "{}".to_owned()
    }

    fn forget(&self, _: InodeId, _: u64) {}

    unasked! {
        getattr(InodeId) -> Attr;
        lookup(InodeId, FileName<'_>) -> Entry;
        readdir(InodeId, u64, bool, &mut dyn FnMut(&DirEntry<'_>) -> bool) -> ();
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
        create(Caller, InodeId, FileName<'_>, u32, OpenFlags) -> (Entry, Opened);
        tmpfile(Caller, InodeId, u32, OpenFlags) -> (Entry, Opened);
        open(InodeId, OpenFlags) -> Opened;
        with_passthrough(Handle, &mut dyn FnMut(BorrowedFd<'_>)) -> ();
        read(InodeId, Handle, u64, usize) -> Bytes;
        write(InodeId, Handle, u64, &[u8], bool) -> Written;
        release(InodeId, Handle) -> ();
        fsync(InodeId, Handle, bool) -> ();
        fsync_dir(InodeId) -> ();
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

/// A client fills one slot with calls that wait, each under a new number.
#[test]
fn calls_that_wait_leave_threads_to_others_and_are_few() {
    const SENT: u64 = 5000;
    let stuck = Arc::new(Stuck::default());
    let vfs: Arc<dyn Vfs> = Arc::<Stuck>::clone(&stuck);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let server = Server::start(vfs, None, listener, options(1)).unwrap();
    let (mut flood, _) = Raw::connect(server.address(), [8, 1], "flood");
    for _ in 0..SENT {
        flood.send(0, &Request::Sync);
    }
    let begun = Instant::now();
    for number in 0..20 {
        let (mut other, _) = Raw::connect(server.address(), [9, number], "other");
        // A call that needs a thread of its own.
        assert_eq!(other.call(&Request::Status), Answer::Done);
    }
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let status = server.status();
    let taken = status.sessions.iter().find(|client| client.name == "flood").unwrap().requests;
    assert!(taken <= 257, "{taken} calls are held");
    // When the storage goes on the server takes the rest.
    *stuck.goes_on.lock() = true;
    stuck.changed.notify_all();
    for _ in 0..SENT {
        assert_eq!(flood.next().unwrap().0.kind, Kind::Answer);
    }
    server.stop();
}
