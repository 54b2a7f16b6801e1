//! Who may do what over NFS: the server checks it, as the kernel does for a mount.

use super::replies::Reply;
use super::{ALL, Client, MODE, NO_ATTRIBUTES, Server, Xdr, at, connect, formatted, serve};

const GETATTR: u32 = 1;
const SETATTR: u32 = 2;
const LOOKUP: u32 = 3;
const READ: u32 = 6;
const WRITE: u32 = 7;
const CREATE: u32 = 8;
const MKDIR: u32 = 9;
const SYMLINK: u32 = 10;
const MKNOD: u32 = 11;
const REMOVE: u32 = 12;
const RMDIR: u32 = 13;
const RENAME: u32 = 14;
const LINK: u32 = 15;
const READDIR: u32 = 16;
const READDIRPLUS: u32 = 17;
const COMMIT: u32 = 21;

const NOT_PERMITTED: u32 = 1;
const ACCESS: u32 = 13;
const USER: u32 = 1000;

fn of(handle: &[u8]) -> Xdr {
    Xdr::default().bytes(handle)
}

/// `sattr3` of a mode alone.
fn mode(mode: u32) -> [u32; 7] {
    [1, mode, 0, 0, 0, 0, 0]
}

impl Client {
    /// The handle of a name.
    fn find(&mut self, dir: &[u8], name: &[u8]) -> Vec<u8> {
        let mut reply = Reply::new(self.call(super::NFS, LOOKUP, &at(dir, name)));
        assert_eq!(reply.u32(), 0, "{}", name.escape_ascii());
        reply.opaque()
    }

    /// A new directory of that mode.
    fn make_dir(&mut self, dir: &[u8], name: &[u8], bits: u32) -> Vec<u8> {
        assert_eq!(self.status(MKDIR, &at(dir, name).numbers(&mode(bits))), 0);
        self.find(dir, name)
    }

    /// A new file of that mode, with a few bytes.
    fn make_file(&mut self, dir: &[u8], name: &[u8], bits: u32) -> Vec<u8> {
        assert_eq!(self.status(CREATE, &at(dir, name).numbers(&[1]).numbers(&mode(bits))), 0);
        let file = self.find(dir, name);
        assert_eq!(self.status(WRITE, &of(&file).numbers(&[0, 0, 5, 2]).bytes(b"bytes")), 0);
        assert_eq!(self.set(&file, &mode(bits)), 0);
        file
    }

    fn set(&mut self, file: &[u8], attributes: &[u32]) -> u32 {
        self.status(SETATTR, &of(file).numbers(attributes).numbers(&[0]))
    }

    fn mode_of(&mut self, file: &[u8]) -> u32 {
        let mut reply = Reply::new(self.call(super::NFS, GETATTR, &of(file)));
        assert_eq!(reply.u32(), 0);
        reply.attributes().mode
    }
}

/// A server, root's client and a user's, and the root directory.
fn both(server: &Server) -> (Client, Client, Vec<u8>) {
    let (mut root, mut user) = (connect(server), connect(server));
    (user.ids, user.transaction) = ([USER, USER], 1 << 20);
    let top = root.root();
    (root, user, top)
}

#[test]
fn names_are_changed_by_who_may_change_their_directory() {
    let (_dir, store) = formatted();
    let server = serve(&store, "127.0.0.1:0", ALL);
    let (mut root, mut user, top) = both(&server);
    let shut = root.make_dir(&top, b"shut", 0o700);
    let own = root.make_dir(&top, b"own", 0o755);
    let open = root.make_dir(&top, b"open", 0o777);
    let sticky = root.make_dir(&top, b"sticky", 0o1777);
    for dir in [&shut, &own, &open, &sticky] {
        root.make_file(dir, b"file", 0o644);
        root.make_dir(dir, b"dir", 0o755);
    }
    let file = root.find(&own, b"file");
    user.make_file(&open, b"mine", 0o644);
    user.make_dir(&open, b"my dir", 0o755);
    assert_eq!(user.status(LOOKUP, &at(&shut, b"file")), ACCESS);
    assert_eq!(user.status(LOOKUP, &at(&shut, b"none")), ACCESS);
    for dir in [&shut, &own] {
        let calls = [
            (CREATE, at(dir, b"new").numbers(&[0]).numbers(&MODE)),
            (CREATE, at(dir, b"new").numbers(&[1]).numbers(&MODE)),
            (CREATE, at(dir, b"new").numbers(&[2, 1, 2])),
            (MKDIR, at(dir, b"new").numbers(&NO_ATTRIBUTES)),
            (SYMLINK, at(dir, b"new").numbers(&NO_ATTRIBUTES).bytes(b"target")),
            (MKNOD, at(dir, b"new").numbers(&[7]).numbers(&NO_ATTRIBUTES)),
            (REMOVE, at(dir, b"file")),
            (RMDIR, at(dir, b"dir")),
            (RENAME, at(dir, b"file").bytes(&open).bytes(b"new")),
            (RENAME, at(&open, b"mine").bytes(dir).bytes(b"new")),
            (RENAME, at(&open, b"mine").bytes(dir).bytes(b"file")),
            (LINK, of(&file).bytes(dir).bytes(b"new")),
        ];
        for (n, (procedure, arguments)) in calls.iter().enumerate() {
            assert_eq!(user.status(*procedure, arguments), ACCESS, "{procedure}, call {n}");
        }
    }
    // In a directory with the sticky bit names are their owners'.
    user.make_file(&sticky, b"mine", 0o644);
    for (procedure, arguments) in [
        (REMOVE, at(&sticky, b"file")),
        (RMDIR, at(&sticky, b"dir")),
        (RENAME, at(&sticky, b"file").bytes(&open).bytes(b"new")),
        (RENAME, at(&open, b"mine").bytes(&sticky).bytes(b"file")),
    ] {
        assert_eq!(user.status(procedure, &arguments), NOT_PERMITTED, "{procedure}");
    }
    assert_eq!(user.status(REMOVE, &at(&sticky, b"mine")), 0);
    // A directory that moves has another parent, which is a change of it.
    let move_dir = |name| at(&open, name).bytes(&sticky).bytes(b"moved");
    assert_eq!(user.status(RENAME, &move_dir(b"dir")), ACCESS);
    assert_eq!(user.status(RENAME, &at(&open, b"dir").bytes(&open).bytes(b"renamed")), 0);
    assert_eq!(user.status(RENAME, &move_dir(b"my dir")), 0);
    assert_eq!(
        user.status(MKNOD, &at(&open, b"d").numbers(&[4]).numbers(&MODE).numbers(&[1, 3])),
        1
    );
    // By any of its groups.
    let shared = root.make_dir(&top, b"shared", 0o770);
    assert_eq!(root.set(&shared, &[0, 0, 1, 77, 0, 0, 0]), 0);
    let new = at(&shared, b"new").numbers(&NO_ATTRIBUTES);
    assert_eq!(user.status(MKDIR, &new), ACCESS);
    user.groups = vec![5, 77];
    assert_eq!(user.status(MKDIR, &new), 0);
    server.stop();
}

#[test]
fn bytes_and_listings_are_for_who_may_read_them() {
    let (_dir, store) = formatted();
    let server = serve(&store, "127.0.0.1:0", ALL);
    let (mut root, mut user, top) = both(&server);
    let secret = root.make_file(&top, b"secret", 0o600);
    let program = root.make_file(&top, b"program", 0o711);
    let read = |file: &[u8]| of(file).numbers(&[0, 0, 100]);
    let write = |file: &[u8]| of(file).numbers(&[0, 0, 4, 0]).bytes(b"more");
    assert_eq!(user.status(READ, &read(&secret)), ACCESS);
    assert_eq!(user.status(READ, &read(&program)), 0, "who executes it");
    for file in [&secret, &program] {
        assert_eq!(user.status(WRITE, &write(file)), ACCESS);
        assert_eq!(user.status(COMMIT, &of(file).numbers(&[0, 0, 0])), ACCESS);
        assert_eq!(user.set(file, &[0, 0, 0, 1, 0, 0, 0, 0]), ACCESS, "cut");
    }
    // Creating a file that is there cuts it, if the caller may.
    let cut = [0, 0, 0, 1, 0, 0, 0, 0];
    assert_eq!(user.status(CREATE, &at(&top, b"program").numbers(&[0]).numbers(&cut)), ACCESS);
    let mut reply = Reply::new(user.call(super::NFS, READ, &read(&program)));
    assert_eq!((reply.u32(), reply.told().size, reply.u32()), (0, 5, 5));
    // Its owner has it open, whatever the mode is by now.
    assert_eq!(root.set(&secret, &[0, 1, USER, 0, 0, 0, 0]), 0);
    assert_eq!(root.set(&secret, &mode(0)), 0);
    assert_eq!((user.status(READ, &read(&secret)), user.status(WRITE, &write(&secret))), (0, 0));
    let blind = root.make_dir(&top, b"blind", 0o711);
    let list = of(&blind).numbers(&[0, 0, 0, 0, 4096]);
    assert_eq!(user.status(READDIR, &list), ACCESS);
    assert_eq!(user.status(READDIRPLUS, &list.numbers(&[8192])), ACCESS);
    server.stop();
}

#[test]
fn attributes_are_set_by_who_may_set_them() {
    let (_dir, store) = formatted();
    let server = serve(&store, "127.0.0.1:0", ALL);
    let (mut root, mut user, top) = both(&server);
    let others = root.make_file(&top, b"others", 0o666);
    let own = root.make_file(&top, b"own", 0o644);
    assert_eq!(root.set(&own, &[0, 1, USER, 1, 55, 0, 0, 0]), 0);
    let group = |gid| [0, 0, 1, gid, 0, 0, 0];
    assert_eq!(user.set(&own, &group(77)), NOT_PERMITTED, "a group of others");
    assert_eq!(user.set(&others, &group(USER)), NOT_PERMITTED);
    assert_eq!(user.set(&own, &[0, 1, 7, 0, 0, 0, 0]), NOT_PERMITTED);
    assert_eq!(user.set(&others, &mode(0o777)), NOT_PERMITTED);
    let (to, now) = ([0, 0, 0, 0, 0, 2, 5, 6], [0, 0, 0, 0, 0, 1]);
    assert_eq!(user.set(&others, &to), NOT_PERMITTED);
    assert_eq!(user.set(&others, &now), 0, "who may write may touch");
    assert_eq!(root.set(&others, &mode(0o644)), 0);
    assert_eq!(user.set(&others, &now), ACCESS);
    assert_eq!(user.set(&own, &to), 0);
    // Set-group-id is not for those outside of the group.
    assert_eq!((user.set(&own, &mode(0o2755)), user.mode_of(&own)), (0, 0o755));
    user.groups = vec![77];
    assert_eq!(user.set(&own, &group(77)), 0);
    assert_eq!((user.set(&own, &mode(0o2755)), user.mode_of(&own)), (0, 0o2755));
    // Who changes the bytes of others takes the bits that rights hang on.
    let write = of(&others).numbers(&[0, 0, 4, 0]).bytes(b"more");
    for (bits, left, group) in [(0o6777, 0o777, 0), (0o2666, 0o666, 0), (0o2666, 0o2666, 77)] {
        for cuts in [true, false] {
            assert_eq!(root.set(&others, &[1, bits, 0, 1, group, 0, 0, 0]), 0);
            assert_eq!(root.set(&others, &mode(bits)), 0);
            let done = match cuts {
                true => user.set(&others, &[0, 0, 0, 1, 0, 3, 0, 0]),
                false => user.status(WRITE, &write),
            };
            assert_eq!((done, user.mode_of(&others)), (0, left), "{bits:o} {cuts}");
        }
    }
    server.stop();
}

/// What an export says of who asks.
#[test]
fn exports_say_who_is_root() {
    let (_dir, store) = formatted();
    let terms = |options: &str| format!("/ 127.0.0.1({options})");
    let server = serve(&store, "127.0.0.1:0", ALL);
    let (mut root, _, top) = both(&server);
    root.make_dir(&top, b"open", 0o777);
    server.stop();
    let cases = [
        ("rw", [0, 0], [65_534, 65_534]),
        ("rw", [USER, 0], [USER, 65_534]),
        ("rw,all_squash,anonuid=7,anongid=8", [USER, USER], [7, 8]),
        ("rw,no_root_squash", [0, 0], [0, 0]),
        ("rw,async", [USER, USER], [USER, USER]),
    ];
    for (n, (options, asks, owner)) in cases.into_iter().enumerate() {
        let export = ["--export".to_owned(), terms(options)];
        let server = serve(&store, "127.0.0.1:0", export);
        let mut client = connect(&server);
        client.ids = asks;
        let top = client.root();
        let open = client.find(&top, b"open");
        let name = format!("file{n}");
        let made = client.call(
            super::NFS,
            CREATE,
            &at(&open, name.as_bytes()).numbers(&[0]).numbers(&MODE),
        );
        let mut reply = Reply::new(made);
        assert_eq!((reply.u32(), reply.u32()), (0, 1), "{options}");
        reply.opaque();
        assert_eq!(reply.told().owner, owner, "{options}");
        let may_change = client.status(MKDIR, &at(&top, name.as_bytes()).numbers(&NO_ATTRIBUTES));
        assert_eq!(may_change == 0, owner[0] == 0, "{options}");
        server.stop();
    }
}
