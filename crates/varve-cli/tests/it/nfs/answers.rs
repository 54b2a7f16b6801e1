//! What each procedure answers.

use std::ffi::OsStr;

use super::replies::{Attributes, Reply};
use super::{ALL, Client, MODE, NFS, NO_ATTRIBUTES, Xdr, at, connect, formatted, serve};

fn of(handle: &[u8]) -> Xdr {
    Xdr::default().bytes(handle)
}

impl Client {
    fn ask(&mut self, procedure: u32, arguments: &Xdr) -> Reply {
        let mut reply = Reply::new(self.call(NFS, procedure, arguments));
        assert_eq!(reply.u32(), 0, "procedure {procedure}");
        reply
    }

    /// What CREATE, MKDIR, SYMLINK and MKNOD answer: a handle, its attributes, and those of the directory.
    fn make(&mut self, procedure: u32, arguments: &Xdr) -> (Vec<u8>, Attributes, Attributes) {
        let mut reply = self.ask(procedure, arguments);
        assert_eq!(reply.u32(), 1);
        let made = (reply.opaque(), reply.told(), reply.after());
        reply.end();
        assert_eq!(self.attributes(&made.0), made.1);
        made
    }

    fn attributes(&mut self, handle: &[u8]) -> Attributes {
        let mut reply = self.ask(1, &of(handle));
        let attributes = reply.attributes();
        reply.end();
        attributes
    }
}

#[test]
fn what_is_made_is_told_as_it_is() {
    let (_dir, store) = formatted();
    let server = serve(&store, "127.0.0.1:0", ALL);
    let mut client = connect(&server);
    let root = client.root();
    let set = [1, 0o640, 1, 5, 1, 6, 0, 0, 0];
    let new = |name: &str| at(&root, name.as_bytes());
    let made = [
        client.make(8, &new("file").numbers(&[1]).numbers(&set)),
        client.make(9, &new("dir").numbers(&set)),
        client.make(10, &new("sym").numbers(&set).bytes(b"some target")),
        client.make(11, &new("block").numbers(&[3]).numbers(&set).numbers(&[8, 17])),
        client.make(11, &new("char").numbers(&[4]).numbers(&set).numbers(&[1, 3])),
        client.make(11, &new("socket").numbers(&[6]).numbers(&set)),
        client.make(11, &new("fifo").numbers(&[7]).numbers(&set)),
    ];
    let kinds = made.each_ref().map(|(_, told, _)| (told.kind, told.links, told.device));
    let none = [0, 0];
    assert_eq!(
        kinds,
        [
            (1, 1, none),
            (2, 2, none),
            (5, 1, none),
            (3, 1, [8, 17]),
            (4, 1, [1, 3]),
            (6, 1, none),
            (7, 1, none)
        ]
    );
    for (_, told, dir) in &made {
        assert_eq!((told.owner, dir.kind), ([5, 6], 2));
        assert!(told.kind == 5 || told.mode == 0o640, "{told:?}");
        assert_eq!(dir.number, client.attributes(&root).number);
    }
    let [(file, ..), (dir, ..), (sym, told, _), ..] = &made;
    assert_eq!(told.size, 11);
    let mut reply = client.ask(5, &of(sym));
    assert_eq!((reply.told().kind, reply.opaque()), (5, b"some target".to_vec()));
    assert_eq!(client.status(5, &of(file)), 22, "no link");
    assert_eq!(client.status(11, &new("none").numbers(&[1]).numbers(&set)), 10_007, "a bad type");
    // Names: of one that is found its attributes, and those of the directory.
    for (name, handle, number) in [("file", file, made[0].1.number), ("dir", dir, made[1].1.number)]
    {
        let mut reply = client.ask(3, &new(name));
        assert_eq!(&reply.opaque(), handle);
        assert_eq!((reply.told().number, reply.told().kind), (number, 2));
        reply.end();
    }
    let mut parent = |dir: &[u8], name: &str| {
        let mut reply = client.ask(3, &at(dir, name.as_bytes()));
        reply.opaque();
        reply.told().number
    };
    let (top, below) = (parent(&root, "."), made[1].1.number);
    assert_eq!([parent(&root, ".."), parent(dir, ".."), parent(dir, ".")], [top, top, below]);
    assert_eq!(client.status(3, &at(file, b"name")), 20, "no directory");
    server.stop();
}

#[test]
fn changes_of_names_tell_of_their_directories() {
    let (_dir, store) = formatted();
    let server = serve(&store, "127.0.0.1:0", ALL);
    let mut client = connect(&server);
    let root = client.root();
    let new = |name: &str| at(&root, name.as_bytes());
    let (file, ..) = &client.make(8, &new("file").numbers(&[1]).numbers(&MODE));
    let (dir, told, top) = &client.make(9, &new("dir").numbers(&NO_ATTRIBUTES));
    let (top, below) = (top.number, told.number);
    client.make(11, &new("fifo").numbers(&[7]).numbers(&NO_ATTRIBUTES));
    // Links and moves.
    let mut reply = client.ask(15, &of(file).bytes(dir).bytes(b"link"));
    assert_eq!((reply.told().links, reply.after().number), (2, below));
    reply.end();
    let mut reply = client.ask(14, &new("fifo").bytes(dir).bytes(b"moved"));
    assert_eq!((reply.after().number, reply.after().number), (top, below));
    reply.end();
    assert_eq!((client.status(3, &new("fifo")), client.status(3, &at(dir, b"moved"))), (2, 0));
    // Removals.
    assert_eq!(client.status(12, &new("dir")), 21, "a directory");
    assert_eq!(client.status(13, &new("file")), 20, "none");
    assert_eq!(client.status(13, &new("dir")), 66, "not empty");
    assert_eq!([".", ".."].map(|name| client.status(13, &new(name))), [22, 17]);
    for (procedure, name) in [(12, &b"link"[..]), (12, b"moved")] {
        assert_eq!(client.ask(procedure, &at(dir, name)).after().number, below);
    }
    assert_eq!(client.ask(13, &new("dir")).after().number, top);
    assert_eq!(client.attributes(file).links, 1);
    server.stop();
}

#[test]
fn bytes_are_told_with_their_end_and_how_durable_they_are() {
    let (_dir, store) = formatted();
    let server = serve(&store, "127.0.0.1:0", ALL);
    let mut client = connect(&server);
    let root = client.root();
    let (file, ..) = client.make(8, &at(&root, b"file").numbers(&[0]).numbers(&MODE));
    let mut verifiers = Vec::new();
    for how in [0, 1, 2] {
        let at = how * 100_000;
        let mut reply =
            client.ask(7, &of(&file).numbers(&[0, at, 100_000, how]).bytes(&[7; 100_000]));
        let told = reply.after();
        assert_eq!((told.size, reply.u32(), reply.u32()), (u64::from(at) + 100_000, 100_000, how));
        verifiers.push(reply.fixed(8));
        reply.end();
    }
    // No more than the count says.
    let mut reply = client.ask(7, &of(&file).numbers(&[0, 0, 3, 2]).bytes(b"abcdef"));
    assert_eq!((reply.after().size, reply.u32()), (300_000, 3));
    let mut reply = client.ask(21, &of(&file).numbers(&[0, 0, 0]));
    assert_eq!(reply.after().size, 300_000);
    verifiers.push(reply.fixed(8));
    assert!(verifiers.iter().all(|verifier| *verifier == verifiers[0]), "{verifiers:?}");
    let mut read = |offset: u32, count: u32| {
        let mut reply = client.ask(6, &of(&file).numbers(&[0, offset, count]));
        assert_eq!(reply.told().size, 300_000);
        let (count, is_end, bytes) = (reply.u32(), reply.u32(), reply.opaque());
        reply.end();
        assert_eq!(bytes.len(), count as usize);
        (bytes, is_end)
    };
    assert_eq!(read(0, 5), (b"abc\x07\x07".to_vec(), 0));
    assert_eq!(read(299_990, 9), (vec![7; 9], 0));
    assert_eq!(read(299_990, 10), (vec![7; 10], 1));
    assert_eq!(read(299_990, 100), (vec![7; 10], 1));
    assert_eq!(read(400_000, 100), (vec![], 1));
    let told = client.attributes(&file);
    assert!((300_000..=400_000).contains(&told.used), "{told:?}");
    assert_eq!(client.status(6, &of(&root).numbers(&[0, 0, 100])), 21);
    // After a restart another verifier says that what was not durable may be gone.
    server.stop();
    let server = serve(&store, "127.0.0.1:0", ALL);
    let mut client = connect(&server);
    let mut reply = client.ask(21, &of(&file).numbers(&[0, 0, 0]));
    reply.after();
    assert_ne!(reply.fixed(8), verifiers[0]);
    server.stop();
}

#[test]
fn attributes_are_set_if_nobody_else_has_changed_the_file() {
    let (_dir, store) = formatted();
    let server = serve(&store, "127.0.0.1:0", ALL);
    let mut client = connect(&server);
    let root = client.root();
    let (file, told, _) = client.make(8, &at(&root, b"file").numbers(&[0]).numbers(&MODE));
    let set = |guard: &[u32]| {
        of(&file)
            .numbers(&[1, 0o600, 1, 3, 1, 4, 1, 0, 9])
            .numbers(&[2, 11, 12, 2, 13, 14])
            .numbers(guard)
    };
    let [seconds, nanos] = told.times[2];
    assert_eq!(client.status(2, &set(&[1, seconds, nanos ^ 1])), 10_002, "not in step");
    assert_eq!(client.attributes(&file), told);
    let mut reply = client.ask(2, &set(&[1, seconds, nanos]));
    let set = reply.after();
    reply.end();
    assert_eq!((set.mode, set.owner, set.size), (0o600, [3, 4], 9));
    assert_eq!(set.times[..2], [[11, 12], [13, 14]]);
    assert_eq!(client.attributes(&file), set);
    server.stop();
}

/// What the caller may do, and what the file system is.
#[test]
fn rights_and_room_are_told() {
    let (dir, store) = formatted();
    let server = serve(&store, "127.0.0.1:0", ALL);
    let mut client = connect(&server);
    let root = client.root();
    let (file, ..) = client.make(8, &at(&root, b"file").numbers(&[0]).numbers(&MODE));
    let (_, told, _) = client.make(9, &at(&root, b"dir").numbers(&NO_ATTRIBUTES));
    let granted = |client: &mut Client, handle: &[u8], wanted: u32| {
        let mut reply = client.ask(4, &of(handle).numbers(&[wanted]));
        reply.told();
        let granted = reply.u32();
        reply.end();
        granted
    };
    // Read, lookup, modify, extend, delete, execute.
    assert_eq!(granted(&mut client, &file, 63), 1 | 4 | 8);
    assert_eq!(granted(&mut client, &root, 63), 1 | 2 | 4 | 8 | 16);
    assert_eq!(granted(&mut client, &root, 2 | 32), 2);
    client.ids = [1000, 1000];
    assert_eq!(granted(&mut client, &file, 63), 1);
    assert_eq!(granted(&mut client, &root, 63), 1 | 2);
    client.ids = [0, 0];
    let mut reply = client.ask(18, &of(&root));
    reply.told();
    let room = [(); 6].map(|()| reply.u64());
    assert_eq!(reply.u32(), 0);
    reply.end();
    let [bytes, free, available, files, files_free, _] = room;
    assert!(available > 0 && available <= free && free <= bytes, "{room:?}");
    assert!(files_free > 0 && files >= files_free + 2, "{room:?}");
    let mut reply = client.ask(19, &of(&root));
    reply.told();
    let sizes = [(); 7].map(|()| reply.u32());
    assert_eq!(sizes, [1 << 20, 1 << 20, 4096, 1 << 20, 1 << 20, 4096, 64 << 10]);
    assert!(reply.u64() > 1 << 40);
    // Times to the nanosecond; hard links, symbolic ones, all alike, and times that can be set.
    assert_eq!([(); 3].map(|()| reply.u32()), [0, 1, 1 | 2 | 8 | 16]);
    reply.end();
    let mut reply = client.ask(20, &of(&root));
    reply.told();
    assert!(reply.u32() > 1000, "links");
    assert_eq!([(); 5].map(|()| reply.u32()), [255, 1, 1, 0, 1]);
    reply.end();
    server.stop();
    // To read only, and by two exports: what belongs to one is nothing to the other.
    let exports = dir.path().join("exports");
    std::fs::write(&exports, "/ 127.0.0.1(ro,no_root_squash)\n/dir 127.0.0.1(rw)\n").unwrap();
    let server = serve(&store, "127.0.0.1:0", [OsStr::new("--exports-file"), exports.as_os_str()]);
    let mut client = connect(&server);
    assert_eq!(granted(&mut client, &root, 63), 1 | 2);
    assert_eq!(granted(&mut client, &file, 63), 1);
    let write = of(&file).numbers(&[0, 0, 1, 0]).bytes(b"x");
    assert_eq!(client.status(7, &write), 30);
    assert_eq!(client.status(2, &of(&file).numbers(&MODE).numbers(&[0])), 30);
    assert_eq!(client.status(12, &at(&root, b"file")), 30);
    let reply = client.call(super::MOUNT, 1, &Xdr::default().bytes(b"/dir"));
    let below = Reply::new(reply[4..].to_vec()).opaque();
    let mut up = client.ask(3, &at(&below, b".."));
    up.opaque();
    assert_eq!(up.told().number, told.number, "nothing above what is exported");
    assert_eq!(client.status(15, &of(&file).bytes(&below).bytes(b"link")), 18, "another export");
    let mut foreign = root.clone();
    foreign[5] ^= 1;
    let refused = client.status(1, &of(&foreign));
    assert!([70, 10_001].contains(&refused), "{refused}");
    server.stop();
}

/// A listing with attributes brings those of each name, and handles that are good.
#[test]
fn listings_bring_what_lookups_do() {
    let (_dir, store) = formatted();
    let server = serve(&store, "127.0.0.1:0", ALL);
    let mut client = connect(&server);
    let root = client.root();
    let made: Vec<_> = (0..5)
        .map(|n| {
            client.make(8, &at(&root, format!("f{n}").as_bytes()).numbers(&[0]).numbers(&MODE)).0
        })
        .collect();
    let mut plain = client.ask(16, &of(&root).numbers(&[0, 0, 0, 0, 8000]));
    let mut plus = client.ask(17, &of(&root).numbers(&[0, 0, 0, 0, 8000, 8000]));
    for reply in [&mut plain, &mut plus] {
        assert_eq!((reply.told().kind, reply.u64()), (2, 0));
    }
    let mut found = 0;
    while plain.u32() == 1 {
        assert_eq!(plus.u32(), 1);
        let entry = (plain.u64(), plain.opaque(), plain.u64());
        assert_eq!((plus.u64(), plus.opaque(), plus.u64()), entry);
        let (number, name, _) = entry;
        let told = (plus.u32() == 1).then(|| plus.attributes());
        let handle = (plus.u32() == 1).then(|| plus.opaque());
        if name.starts_with(b"f") {
            found += 1;
            let (told, handle) = (told.unwrap(), handle.unwrap());
            assert_eq!(told.number, number);
            assert_eq!(client.attributes(&handle), told);
            assert!(made.contains(&handle));
        }
    }
    assert_eq!((found, plus.u32(), plus.u32(), plain.u32()), (5, 0, 1, 1));
    plain.end();
    plus.end();
    assert_eq!(client.status(16, &of(&made[0]).numbers(&[0, 0, 0, 0, 8000])), 20);
    server.stop();
}
