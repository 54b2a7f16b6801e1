//! One message of each variant, and more where a variant has parts that differ.

use varve_wire::answer::{Opened, Quota};
use varve_wire::attr::{
    AllocateMode, Attr, Caller, Entry, OpenFlags, RenameMode, SetAttr, XattrMode,
};
use varve_wire::request::Position;
use varve_wire::{
    Answer, Cached, Failure, Hello, Inquiry, Node, Notice, Refused, Request, Welcome,
};

const NODE: Node = Node { ino: 0x0102_0304_0506_0708, place: Some([9; 18]) };
const DIR: Node = Node { ino: 1, place: None };
const CALLER: Caller = Caller { uid: 1000, gid: 100, umask: 0o22 };
const NAME: &[u8] = b"name";

const ATTR: Attr = Attr {
    ino: 300,
    mode: 0o100_644,
    nlink: 2,
    uid: 1000,
    gid: 100,
    rdev: 0,
    size: 1 << 40,
    blocks: 8,
    times: [(1, 2), (-3, 4), (5, 999_999_999), (i64::MAX, 0)],
    keep_ms: 500,
};
const ENTRY: Entry = Entry { attr: ATTR, place: Some([7; 18]), keep_ms: 1000 };

pub(crate) fn hello() -> Hello<'static> {
    Hello {
        client: [1, u64::MAX],
        connection: 3,
        features: 5,
        name: "host:/mnt",
        path: b"a/b",
        read_only: true,
        token: b"secret",
    }
}

pub(crate) fn welcome() -> Welcome {
    Welcome {
        features: 1,
        file_system: [2, 3],
        session: 4,
        root: 1,
        slots: 256,
        session_ms: 30_000,
        read_only: false,
    }
}

pub(crate) fn refused() -> Refused {
    Refused { is_temporary: true, reason: "the server is about to end".into() }
}

pub(crate) fn inquiry() -> Inquiry<'static> {
    Inquiry { token: b"secret" }
}

pub(crate) fn notices() -> Vec<Notice> {
    vec![
        Notice::Recall(vec![Cached::Inode(300), Cached::Name(1, NAME.to_vec())]),
        Notice::RecallAll,
        Notice::Ping,
    ]
}

/// Answers in the order of their variants. New ones go last.
pub(crate) fn answers() -> Vec<Answer> {
    let opened = Opened { reread: true };
    let path = NAME.to_vec();
    vec![
        Answer::Done,
        Answer::Failed(Failure { cause: 29, text: "the limit of /a is reached".into() }),
        Answer::Entry(ENTRY),
        Answer::Attr(ATTR),
        Answer::Created(ENTRY, opened),
        Answer::Opened(opened),
        Answer::Written { offset: 1 << 33, bytes: 4096, set_id: 2 },
        Answer::Listed { names: 12, is_end: true },
        Answer::Number(1 << 50),
        Answer::StatFs([4096, 2, 3, 4, 5, 6, 255]),
        Answer::Usage([1, 2, 3]),
        Answer::Quotas(vec![Quota { path, bytes: Some(1), inodes: None, usage: [1, 2, 3] }]),
        Answer::OpenedAt(opened, Some([9; 18])),
    ]
}

/// Requests in the order of their variants. New ones go last.
pub(crate) fn requests() -> Vec<Request<'static>> {
    let (node, parent, name, file, offset) = (NODE, DIR, NAME, 7, 1 << 35);
    let caller = || CALLER;
    let at = Position { node, file, offset };
    let set = SetAttr {
        perm: Some(0o600),
        uid: Some(1),
        gid: Some(2),
        size: Some(3),
        atime: Some(None),
        mtime: Some(Some((-1, 5))),
        kill_set_id: true,
        kill_set_gid: false,
    };
    let whiteout = RenameMode::Whiteout { caller: CALLER, replaces: true };
    let rename = |mode| Request::Rename { parent, name, new_parent: node, new_name: b"new", mode };
    let flags = OpenFlags(0b101);
    let length = 1 << 20;
    let mode = AllocateMode::ZeroRange;
    vec![
        Request::Lookup { parent, name },
        Request::LookupParent { dir: node },
        Request::LookupInode { ino: 300 },
        Request::Getattr { node },
        Request::Setattr { caller: caller(), node, set },
        Request::Readlink { node },
        Request::Mknod { caller: caller(), parent, name, mode: 0o20_644, rdev: 259 },
        Request::Mkdir { caller: caller(), parent, name, perm: 0o755 },
        Request::Symlink { caller: caller(), parent, name },
        Request::Link { node, parent, name },
        Request::Unlink { parent, name },
        Request::Rmdir { parent, name },
        rename(RenameMode::Replace),
        rename(RenameMode::NoReplace),
        rename(RenameMode::Exchange),
        rename(whiteout),
        Request::Create { caller: caller(), parent, name, perm: 0o644, flags, file },
        Request::Tmpfile { caller: caller(), parent, perm: 0o600, flags, file },
        Request::Open { node, flags, file, again: true },
        Request::Read { node, file, offset, length: 4096 },
        Request::Write { node, file, offset, append: true, kill_set_id: false },
        Request::Release { node, file },
        Request::Fsync { node, file, data_only: true },
        Request::FsyncDir { node },
        Request::Sync,
        Request::Readdir { node, cookie: 1 << 60, with_attr: true, bytes: 32 << 10 },
        Request::Statfs,
        Request::Access { caller: caller(), groups: vec![1, 100_000], node, rights: 5 },
        Request::Fallocate { node, file, mode, offset, length },
        Request::CopyRange { from: at, to: at, length },
        Request::FileFlags { node },
        Request::SetFileFlags { node, flags: 3 },
        Request::Lseek { node, file, offset, hole: true },
        Request::Getxattr { node, name },
        Request::Setxattr { node, name, mode: XattrMode::Replace },
        Request::Listxattr { node },
        Request::Removexattr { node, name },
        Request::CloneTree { dir: node, old_name: b"old", parent, name },
        Request::Usage { node },
        Request::SetLimits { node, bytes: Some(1 << 30), inodes: None },
        Request::Quotas { node, below: true },
        Request::Status,
        Request::Ask { question: 300 },
        Request::AskRest { question: 300, offset: 1 << 20 },
        Request::Recovered,
    ]
}
