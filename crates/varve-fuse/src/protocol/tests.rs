//! The protocol's structures, written out field by field in the order of the kernel's `fuse.h`, against
//! decoder and encoders; and the decoder on bytes that nobody would send.

use std::time::Duration;

use varve_testkit::rng::Rng;
use varve_types::{InodeId, Timestamp};
use varve_vfs::{Attr, DirEntry, FileType, Keep, StatFs};

use super::constants::*;
use super::reply::{InitOut, OpenOut, Reply, Validity, header};
use super::request::{
    CopyRange, Create, DecodeError, Fallocate, Header, Init, Ioctl, Lock, Mknod, Read, Rename,
    Request, SetAttrIn, SetXattr, SetXattrIn, Time, Write,
};

/// The bytes of fields of the given types, one after the other.
macro_rules! fields {
    ($($type:ident: $($value:expr),+;)* $(=> $bytes:expr)?) => {{
        #[allow(unused_mut, reason = "a structure may be empty")]
        let mut all: Vec<u8> = Vec::new();
        $($(all.extend_from_slice(&<$type>::to_ne_bytes($value));)+)*
        $(all.extend_from_slice($bytes);)?
        all
    }};
}

/// fuse_setattr_in with every field told apart.
fn setattr_bytes(valid: u32, atime: i64, nanos: u32) -> Vec<u8> {
    fields! { u32: valid, 0; u64: 1, 2, 3; i64: atime, -5, 6; u32: nanos, 8, 9, 0o644, 0, 11, 12, 0; }
}

/// One well-formed body of each operation and what it means.
fn samples() -> Vec<(u32, Vec<u8>, Request<'static>)> {
    let mut all = name_samples();
    all.push((
        FUSE_IOCTL,
        fields! { u64: 1; u32: 1, 0x4010_5602; u64: 9; u32: 4, 16; u8: 1, 2, 3, 4; },
        Request::Ioctl(Ioctl { command: 0x4010_5602, out_bytes: 16, brought: &[1, 2, 3, 4] }),
    ));
    all.extend(file_samples());
    all.extend(attribute_samples());
    for (opcode, request) in [
        (FUSE_GETATTR, Request::Getattr),
        (FUSE_READLINK, Request::Readlink),
        (FUSE_STATFS, Request::Statfs),
        (FUSE_FSYNCDIR, Request::Fsyncdir),
        (FUSE_RELEASEDIR, Request::Releasedir),
        (FUSE_DESTROY, Request::Destroy),
        (FUSE_SYNCFS, Request::Syncfs),
        (FUSE_STATX, Request::Statx),
        (FUSE_FLUSH, Request::Flush { handle: 0, owner: 0 }),
        (FUSE_OPENDIR, Request::Opendir),
        (FUSE_INTERRUPT, Request::Interrupt { unique: 0 }),
        (u32::MAX, Request::Other),
        (FUSE_ACCESS, Request::Access { mask: 0 }),
    ] {
        all.push((opcode, vec![0; 24], request));
    }
    all
}

fn name_samples() -> Vec<(u32, Vec<u8>, Request<'static>)> {
    let (name, new_name) = (b"a".as_slice(), b"bc".as_slice());
    let rename = |flags| Request::Rename(Rename { new_parent: 5, flags, name, new_name });
    vec![
        (FUSE_LOOKUP, b"a\0".to_vec(), Request::Lookup { name }),
        (FUSE_UNLINK, b"a\0".to_vec(), Request::Unlink { name }),
        (FUSE_RMDIR, b"a\0".to_vec(), Request::Rmdir { name }),
        (FUSE_SYMLINK, b"a\0bc\0".to_vec(), Request::Symlink { name, target: new_name }),
        (
            FUSE_MKNOD,
            fields! { u32: 0o10644, 7, 0o22, 0; => b"a\0" },
            Request::Mknod(Mknod { mode: 0o10644, rdev: 7, umask: 0o22, name }),
        ),
        (
            FUSE_MKDIR,
            fields! { u32: 0o755, 0o22; => b"a\0" },
            Request::Mkdir { mode: 0o755, umask: 0o22, name },
        ),
        (FUSE_RENAME, fields! { u64: 5; => b"a\0bc\0" }, rename(0)),
        (FUSE_RENAME2, fields! { u64: 5; u32: 2, 0; => b"a\0bc\0" }, rename(2)),
        (FUSE_LINK, fields! { u64: 9; => b"a\0" }, Request::Link { inode: 9, name }),
        (FUSE_FORGET, fields! { u64: 3; }, Request::Forget { lookups: 3 }),
    ]
}

fn file_samples() -> Vec<(u32, Vec<u8>, Request<'static>)> {
    let create = Create { flags: 0o101, mode: 0o100_644, umask: 0o22, name: b"a" };
    let create_bytes = || fields! { u32: 0o101, 0o100_644, 0o22, 1; => b"a\0" };
    let read = Read { handle: 1, offset: 2, size: 3 };
    let read_bytes = || fields! { u64: 1, 2; u32: 3, 4; u64: 5; u32: 6, 0; };
    let allocate = Fallocate { handle: 1, offset: 2, length: 3, mode: 4 };
    let lock = Lock { handle: 1, owner: 2, first: 3, last: 4, mode: 5, pid: 6, is_flock: true };
    let lock_bytes = |flags| fields! { u64: 1, 2, 3, 4; u32: 5, 6, flags, 0; };
    let ranged = Lock { is_flock: false, ..lock };
    vec![
        (FUSE_FLUSH, fields! { u64: 1, 0, 2; }, Request::Flush { handle: 1, owner: 2 }),
        (FUSE_GETLK, lock_bytes(1), Request::Getlk(lock)),
        (FUSE_SETLK, lock_bytes(0), Request::Setlk { lock: ranged, waits: false }),
        (FUSE_SETLKW, lock_bytes(1), Request::Setlk { lock, waits: true }),
        (FUSE_OPEN, fields! { u32: 2, 1; }, Request::Open { flags: 2, kill_set_id: true }),
        (FUSE_OPEN, fields! { u32: 2, 0; }, Request::Open { flags: 2, kill_set_id: false }),
        (FUSE_CREATE, create_bytes(), Request::Create(create)),
        (FUSE_TMPFILE, create_bytes(), Request::Tmpfile(create)),
        (FUSE_READ, read_bytes(), Request::Read(read)),
        (FUSE_READDIR, read_bytes(), Request::Readdir(read)),
        (FUSE_READDIRPLUS, read_bytes(), Request::ReaddirPlus(read)),
        (
            FUSE_WRITE,
            fields! { u64: 1, 2; u32: 4, 5; u64: 5; u32: 0o2001, 0; => b"data" },
            Request::Write(Write {
                handle: 1,
                offset: 2,
                is_writeback: true,
                open_flags: 0o2001,
                kill_set_id: true,
                data: b"data",
            }),
        ),
        (FUSE_RELEASE, fields! { u64: 1; u32: 2, 3; u64: 4; }, Request::Release { handle: 1 }),
        (FUSE_FSYNC, fields! { u64: 1; u32: 1, 0; }, Request::Fsync { handle: 1, data_only: true }),
        (FUSE_FALLOCATE, fields! { u64: 1, 2, 3; u32: 4, 0; }, Request::Fallocate(allocate)),
        (
            FUSE_COPY_FILE_RANGE,
            fields! { u64: 1, 2, 3, 4, 5, 6, 0; },
            Request::CopyRange(copy_range(false)),
        ),
        (
            FUSE_COPY_FILE_RANGE_64,
            fields! { u64: 1, 2, 3, 4, 5, 6, 0; },
            Request::CopyRange(copy_range(true)),
        ),
        (
            FUSE_LSEEK,
            fields! { u64: 1, 2; u32: 3, 0; },
            Request::Lseek { handle: 1, offset: 2, whence: 3 },
        ),
    ]
}

fn copy_range(is_long: bool) -> CopyRange {
    CopyRange { handle: 1, offset: 2, to_node: 3, to_handle: 4, to_offset: 5, length: 6, is_long }
}

fn attribute_samples() -> Vec<(u32, Vec<u8>, Request<'static>)> {
    let set = SetAttrIn {
        mode: Some(0o644),
        uid: Some(11),
        gid: Some(12),
        size: Some(2),
        atime: Some(Time::At(i64::MIN, 999_999_999)),
        mtime: Some(Time::Now),
        kill_set_id: true,
        has_handle: true,
    };
    // Mode, uid, gid, size, atime, mtime, handle, mtime now, kill.
    let valid = 0b1001_0111_1111;
    let offer = Init { major: 7, minor: 45, max_readahead: 9, flags: (3 << 32) | (1 << 30) | 1 };
    vec![
        (FUSE_SETATTR, setattr_bytes(valid, i64::MIN, 999_999_999), Request::Setattr(set)),
        (
            FUSE_SETXATTR,
            b"what it is, the agreement says".to_vec(),
            Request::Setxattr(SetXattrIn(b"what it is, the agreement says")),
        ),
        (
            FUSE_GETXATTR,
            fields! { u32: 64, 0; => b"user.k\0" },
            Request::Getxattr { size: 64, name: b"user.k" },
        ),
        (FUSE_LISTXATTR, fields! { u32: 64, 0; }, Request::Listxattr { size: 64 }),
        (FUSE_REMOVEXATTR, b"user.k\0".to_vec(), Request::Removexattr { name: b"user.k" }),
        (FUSE_INIT, fields! { u32: 7, 45, 9, (1 << 30) | 1, 3; => &[0; 44] }, Request::Init(offer)),
        (
            FUSE_INIT,
            fields! { u32: 7, 31, 9, 1; },
            Request::Init(Init { major: 7, minor: 31, max_readahead: 9, flags: 1 }),
        ),
    ]
}

#[test]
fn attributes_to_set_come_in_two_forms() {
    let older = fields! { u32: 2, 1; => b"user.k\0vw" };
    let meant = SetXattr { flags: 1, kill_set_gid: false, name: b"user.k", value: b"vw" };
    assert_eq!(SetXattrIn(&older).decode(false), Ok(meant));
    for kill_set_gid in [false, true] {
        let extended = fields! { u32: 2, 1, u32::from(kill_set_gid), 0; => b"user.k\0vw" };
        let meant = SetXattr { kill_set_gid, ..meant };
        assert_eq!(SetXattrIn(&extended).decode(true), Ok(meant));
        for len in 0..extended.len() {
            let cut = SetXattrIn(&extended[..len]).decode(true);
            assert_eq!(cut, Err(DecodeError::Truncated), "{len}");
        }
    }
}

#[test]
fn every_request_is_read_as_the_kernel_wrote_it() {
    for (opcode, body, request) in samples() {
        assert_eq!(Request::decode(opcode, &body), Ok(request), "{}", opcode_name(opcode));
    }
}

#[test]
fn a_request_that_ends_too_early_is_refused() {
    // SETXATTR is decoded when its form is known.
    for (opcode, body, request) in
        samples().into_iter().filter(|(opcode, ..)| *opcode != FUSE_SETXATTR)
    {
        for len in 0..body.len() {
            match Request::decode(opcode, &body[..len]) {
                Err(DecodeError::Truncated) => {}
                // What follows the last field that is needed may be missing.
                decoded => assert_eq!(decoded, Ok(request), "{} {len}", opcode_name(opcode)),
            }
        }
        let needed = !matches!(request, Request::Other) && Request::decode(opcode, &[]).is_err();
        let has_fields = format!("{request:?}").contains(['{', '(']);
        assert_eq!(needed, has_fields, "{}", opcode_name(opcode));
    }
}

#[test]
fn headers_are_read_and_extensions_left_out() {
    let mut bytes = fields! { u32: 58, FUSE_LOOKUP; u64: 2, 3; u32: 4, 5, 6; u16: 1, 0; => b"a\0" };
    bytes.extend_from_slice(&[0xff; 8]);
    let meant = Header { opcode: FUSE_LOOKUP, unique: 2, node: 3, uid: 4, gid: 5, pid: 6 };
    assert_eq!(Header::decode(&bytes), Ok((meant, b"a\0".as_slice())));
    assert_eq!(Header::decode(&bytes[..39]), Err(DecodeError::Truncated));
    assert_eq!(Header::decode(&bytes[..47]), Err(DecodeError::Truncated), "extension of 8 bytes");
}

#[test]
fn many_inodes_are_forgotten_at_once() {
    let body = fields! { u32: 2, 0; u64: 5, 1, 6, 2; };
    let Ok(Request::BatchForget(forgets)) = Request::decode(FUSE_BATCH_FORGET, &body) else {
        panic!("not read");
    };
    assert_eq!(forgets.iter().collect::<Vec<_>>(), [(5, 1), (6, 2)]);
    let more = fields! { u32: u32::MAX, 0; u64: 5, 1, 6, 2; };
    assert_eq!(Request::decode(FUSE_BATCH_FORGET, &more), Err(DecodeError::Truncated));
}

#[test]
fn a_time_of_a_second_or_more_of_nanoseconds_is_refused() {
    let body = setattr_bytes(FATTR_ATIME, 0, 1_000_000_000);
    assert_eq!(Request::decode(FUSE_SETATTR, &body), Err(DecodeError::BadTime));
    let unused = setattr_bytes(FATTR_MTIME, 0, 1_000_000_000);
    assert!(Request::decode(FUSE_SETATTR, &unused).is_ok());
}

/// Ten thousand changed, cut and lengthened requests: each is read or refused.
#[test]
fn no_bytes_make_the_decoder_panic() {
    let mut rng = Rng::new(0xf05e);
    let samples = samples();
    for _ in 0..10_000 {
        let (opcode, body, _) = rng.pick(&samples);
        let mut bytes = fields! { u32: 0, *opcode; u64: 2, 3; u32: 4, 5, 6; u16: 0, 0; => body };
        for _ in 0..rng.below(6) {
            let at = rng.below(bytes.len() as u64) as usize;
            let any = rng.next_u64() as u8;
            bytes[at] = *rng.pick(&[0, 1, 0x7f, 0x80, 0xff, any]);
        }
        if rng.chance(30) {
            bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize);
        }
        if rng.chance(20) {
            let more = rng.below(40) as usize;
            bytes.extend(rng.bytes(more));
        }
        if let Ok((header, body)) = Header::decode(&bytes) {
            for opcode in [header.opcode, rng.below(56) as u32] {
                if let Ok(Request::BatchForget(forgets)) = Request::decode(opcode, body) {
                    assert!(forgets.iter().count() <= bytes.len() / 16);
                }
            }
        }
    }
}

fn attr() -> Attr {
    let time = |secs| Timestamp::new(secs, 999_999_999).unwrap();
    Attr {
        ino: InodeId::new(0x0102_0304_0506_0708),
        kind: FileType::CharDevice,
        perm: 0o4755,
        nlink: 2,
        uid: 3,
        gid: 4,
        // Major 0x123, minor 0x45678, as the kernel packs them.
        rdev: 0x4561_2378,
        size: 5,
        blocks: 6,
        atime: time(i64::MIN),
        mtime: time(-1),
        ctime: time(9),
        btime: time(10),
        keep: Keep::Forever,
    }
}

/// fuse_attr of [`attr`].
fn attr_bytes() -> Vec<u8> {
    let nanos = 999_999_999;
    fields! {
        u64: 0x0102_0304_0506_0708, 5, 6; i64: i64::MIN, -1, 9;
        u32: nanos, nanos, nanos, 0o024_755, 2, 3, 4, 0x4561_2378, 4096, 0;
    }
}

/// fuse_entry_out of [`attr`] and [`validity`].
fn entry_bytes() -> Vec<u8> {
    fields! { u64: 0x0102_0304_0506_0708, 0, 1, 3; u32: 2, 4; => &attr_bytes() }
}

fn validity() -> Validity {
    Validity { entry: Duration::new(1, 2), attr: Duration::new(3, 4) }
}

/// What `encode` puts after the header.
fn body(encode: impl FnOnce(&mut Reply)) -> Vec<u8> {
    let mut reply = Reply::new();
    reply.bytes(b"of the answer before");
    reply.clear();
    encode(&mut reply);
    let whole = reply.finish(77).to_vec();
    let len = u32::try_from(whole.len()).unwrap();
    assert_eq!(whole[..16], fields! { u32: len; i32: 0; u64: 77; });
    whole[16..].to_vec()
}

#[test]
fn attributes_and_names_are_written_as_the_kernel_reads_them() {
    let valid = Duration::new(3, 4);
    let told = body(|reply| reply.attr_out(valid, &attr()));
    assert_eq!(told, fields! { u64: 3; u32: 4, 0; => &attr_bytes() });
    assert_eq!(body(|reply| reply.entry_out(validity(), &attr())), entry_bytes());
    let absent = body(|reply| reply.absent(Duration::new(1, 2)));
    assert_eq!(absent, fields! { u64: 0, 0, 1, 0; u32: 2, 0; => &[0; 88] });
    let nanos = 999_999_999;
    let statx = fields! {
        u64: 3; u32: 4, 0; u64: 0, 0; u32: 0xfff, 4096; u64: 0; u32: 2, 3, 4; u16: 0o024_755, 0;
        u64: 0x0102_0304_0506_0708, 5, 6, 0; i64: i64::MIN; u32: nanos, 0; i64: 10; u32: nanos, 0;
        i64: 9; u32: nanos, 0; i64: -1; u32: nanos, 0; u32: 0x123, 0x45678, 0, 0; => &[0; 112]
    };
    assert_eq!(statx.len(), 288);
    assert_eq!(body(|reply| reply.statx_out(valid, &attr())), statx);
}

#[test]
fn small_answers_are_written_as_the_kernel_reads_them() {
    let open = OpenOut { handle: 9, flags: FOPEN_KEEP_CACHE, backing: None };
    assert_eq!(body(|reply| reply.open_out(open)), fields! { u64: 9; u32: 2, 0; });
    let straight = OpenOut { handle: 9, flags: 0, backing: Some(5) };
    assert_eq!(body(|reply| reply.open_out(straight)), fields! { u64: 9; u32: 0x80, 5; });
    assert_eq!(body(|reply| reply.size_out(7)), fields! { u32: 7, 0; });
    assert_eq!(body(|reply| reply.lseek_out(7)), fields! { u64: 7; });
    let room = StatFs {
        block_bytes: 4096,
        blocks: 1,
        blocks_free: 2,
        blocks_available: 3,
        files: 4,
        files_free: 5,
        name_bytes_max: 255,
    };
    let statfs = fields! { u64: 1, 2, 3, 4, 5; u32: 4096, 255, 4096; => &[0; 28] };
    assert_eq!(body(|reply| reply.statfs_out(&room)), statfs);
    assert_eq!(header(7, 5, 0)[..], fields! { u32: 16; i32: -5; u64: 7; });
}

#[test]
fn init_is_answered_with_the_upper_flags_apart() {
    let mut init = InitOut {
        max_readahead: 1,
        flags: FUSE_PASSTHROUGH | FUSE_ASYNC_READ,
        max_background: 64,
        congestion_threshold: 48,
        max_write: 1 << 20,
        max_pages: 256,
        max_stack_depth: 1,
    };
    let meant = fields! {
        u32: 7, 45, 1, (1 << 30) | 1; u16: 64, 48; u32: 1 << 20, 1; u16: 256, 0; u32: 1 << 5, 1;
        => &[0; 24]
    };
    assert_eq!(meant.len(), 64);
    assert_eq!(body(|reply| reply.init_out(&init)), meant);
    init.flags = FUSE_ASYNC_READ;
    assert_eq!(body(|reply| reply.init_out(&init))[12..16], fields! { u32: 1; });
}

#[test]
fn listings_are_padded_and_stop_at_the_limit() {
    let entry = |name: &'static [u8], attr| DirEntry {
        ino: InodeId::new(0x0102_0304_0506_0708),
        kind: FileType::CharDevice,
        name,
        cookie: 42,
        attr,
        keep: Keep::Forever,
    };
    let ino = 0x0102_0304_0506_0708;
    let dirent = fields! { u64: ino, 42; u32: 3, 2; => b"abc\0\0\0\0\0" };
    let full = fields! { u64: ino, 42; u32: 8, 2; => b"abcdefgh" };
    assert_eq!(body(|reply| assert!(reply.dirent(32, &entry(b"abc", None)))), dirent);
    assert_eq!(body(|reply| assert!(reply.dirent(32, &entry(b"abcdefgh", None)))), full);
    assert_eq!(body(|reply| assert!(!reply.dirent(31, &entry(b"abc", None)))), b"");
    let both = body(|reply| {
        assert!(reply.direntplus(319, validity(), &entry(b"abc", Some(attr()))));
        assert!(!reply.direntplus(319, validity(), &entry(b"abc", Some(attr()))));
    });
    assert_eq!(both, [entry_bytes(), dirent.clone()].concat());
    let dot = body(|reply| assert!(reply.direntplus(160, validity(), &entry(b"abc", None))));
    assert_eq!(dot, [vec![0; 128], dirent].concat());
}
