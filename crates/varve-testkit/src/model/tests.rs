//! The model's own answers, checked against what the kernel's manual pages say.

use varve_env::sim::SimEnv;
use varve_types::{FileName, InodeId};
use varve_vfs::{
    AccessMode, AllocateMode, Caller, FsError, OpenFlags, RenameMode, SeekFrom, SetAttr, Vfs,
    XattrMode,
};

use super::ModelFs;

const ROOT: InodeId = InodeId::ROOT;
const READ_WRITE: OpenFlags = OpenFlags {
    read: true,
    write: true,
    append: false,
    appends: false,
    truncate: false,
    exclusive: false,
    sync: false,
    execute: false,
};

fn fs() -> ModelFs {
    ModelFs::new(SimEnv::new(1))
}

fn name(text: &str) -> FileName<'_> {
    FileName::new(text.as_bytes()).unwrap()
}

fn mkdir(fs: &ModelFs, parent: InodeId, text: &str) -> InodeId {
    fs.mkdir(Caller::ROOT, parent, name(text), 0o755).unwrap().attr.ino
}

fn file(fs: &ModelFs, parent: InodeId, text: &str) -> InodeId {
    fs.mknod(Caller::ROOT, parent, name(text), 0o100_644, 0).unwrap().attr.ino
}

fn rename(
    fs: &ModelFs,
    from: (InodeId, &str),
    to: (InodeId, &str),
    mode: RenameMode,
) -> Result<(), FsError> {
    fs.rename(from.0, name(from.1), to.0, name(to.1), mode)
}

#[test]
fn link_counts_and_sizes_of_directories() {
    let fs = fs();
    let dir = mkdir(&fs, ROOT, "d");
    mkdir(&fs, dir, "e");
    file(&fs, dir, "f");
    let attr = fs.getattr(dir).unwrap();
    assert_eq!((attr.nlink, attr.size), (3, 2));
    assert!(matches!(fs.rmdir(ROOT, name("d")), Err(FsError::NotEmpty)));
    fs.rmdir(dir, name("e")).unwrap();
    assert_eq!(fs.getattr(dir).unwrap().nlink, 2);
    assert!(matches!(fs.unlink(ROOT, name("d")), Err(FsError::IsDirectory)));
    assert!(matches!(fs.rmdir(dir, name("f")), Err(FsError::NotDirectory)));
}

#[test]
fn a_removed_directory_takes_no_names() {
    let fs = fs();
    let dir = mkdir(&fs, ROOT, "d");
    fs.rmdir(ROOT, name("d")).unwrap();
    assert_eq!(fs.getattr(dir).unwrap().nlink, 0);
    let made = fs.mkdir(Caller::ROOT, dir, name("x"), 0o755);
    assert!(matches!(made, Err(FsError::NotFound)));
    file(&fs, ROOT, "f");
    assert!(matches!(
        rename(&fs, (ROOT, "f"), (dir, "f"), RenameMode::Replace),
        Err(FsError::NotFound)
    ));
}

#[test]
fn inodes_go_with_their_last_use() {
    let fs = fs();
    let ino = file(&fs, ROOT, "f");
    let open = fs.open(ino, READ_WRITE).unwrap();
    fs.write(ino, open.handle, 0, b"kept", false).unwrap();
    fs.unlink(ROOT, name("f")).unwrap();
    fs.forget(ino, 1);
    assert_eq!(&*fs.read(ino, open.handle, 0, 10).unwrap(), b"kept");
    fs.release(ino, open.handle).unwrap();
    assert!(matches!(fs.getattr(ino), Err(FsError::Stale)));
    assert_eq!(fs.inode_count(), 1);
    assert!(file(&fs, ROOT, "g") > ino, "ids are not reused");
}

#[test]
fn rename_refuses_in_the_kernels_order() {
    let fs = fs();
    let (d, f) = (mkdir(&fs, ROOT, "d"), file(&fs, ROOT, "f"));
    let e = mkdir(&fs, d, "e");
    use RenameMode::{Exchange, NoReplace, Replace};
    let check = |from, to, mode, expected: &str| {
        let error = rename(&fs, from, to, mode).unwrap_err();
        assert_eq!(error.errno().name(), expected, "{from:?} to {to:?} {mode:?}");
    };
    check((ROOT, "absent"), (d, "x"), NoReplace, "ENOENT");
    check((ROOT, "f"), (ROOT, "d"), NoReplace, "EEXIST");
    check((ROOT, "f"), (d, "x"), Exchange, "ENOENT");
    check((ROOT, "d"), (d, "x"), Replace, "EINVAL");
    check((ROOT, "d"), (e, "x"), Replace, "EINVAL");
    check((d, "e"), (ROOT, "d"), Replace, "ENOTEMPTY");
    check((d, "e"), (ROOT, "d"), Exchange, "EINVAL");
    check((ROOT, "f"), (ROOT, "d"), Replace, "EISDIR");
    check((d, "e"), (ROOT, "f"), Replace, "ENOTDIR");
    mkdir(&fs, ROOT, "empty");
    check((ROOT, "empty"), (ROOT, "d"), Replace, "ENOTEMPTY");
    check((f, "x"), (ROOT, "y"), Replace, "ENOTDIR");
    rename(&fs, (ROOT, "f"), (d, "e"), Exchange).unwrap();
    assert_eq!(fs.lookup(ROOT, name("f")).unwrap().attr.ino, e);
    assert_eq!(fs.lookup_parent(e).unwrap().attr.ino, ROOT);
    assert_eq!((fs.getattr(d).unwrap().nlink, fs.getattr(ROOT).unwrap().nlink), (2, 5));
    rename(&fs, (ROOT, "d"), (e, "d"), Replace).unwrap();
    assert_eq!(fs.lookup_parent(d).unwrap().attr.ino, e);
}

#[test]
fn rename_between_names_of_one_inode_does_nothing() {
    let fs = fs();
    let ino = file(&fs, ROOT, "a");
    fs.link(ino, ROOT, name("b")).unwrap();
    rename(&fs, (ROOT, "a"), (ROOT, "b"), RenameMode::Replace).unwrap();
    assert_eq!(fs.lookup(ROOT, name("a")).unwrap().attr.nlink, 2);
}

#[test]
fn bytes_grow_shrink_and_have_holes() {
    let fs = fs();
    let ino = file(&fs, ROOT, "f");
    let open = fs.open(ino, READ_WRITE).unwrap().handle;
    fs.write(ino, open, 200_000, b"end", false).unwrap();
    fs.write(ino, open, 1, b"start", false).unwrap();
    assert_eq!(&*fs.read(ino, open, 0, 7).unwrap(), b"\0start\0");
    assert_eq!(&*fs.read(ino, open, 199_999, 9).unwrap(), b"\0end");
    assert_eq!(fs.lseek(ino, open, 65_536, SeekFrom::Data).unwrap(), 196_608);
    assert_eq!(fs.lseek(ino, open, 0, SeekFrom::Hole).unwrap(), 65_536);
    let set =
        |size| fs.setattr(Caller::ROOT, ino, SetAttr { size: Some(size), ..SetAttr::default() });
    set(3).unwrap();
    set(5).unwrap();
    assert_eq!(&*fs.read(ino, open, 0, 9).unwrap(), b"\0st\0\0");
    fs.fallocate(ino, open, AllocateMode::ZeroKeepSize, 2, 100).unwrap();
    assert_eq!(&*fs.read(ino, open, 0, 9).unwrap(), b"\0s\0\0\0");
    fs.fallocate(ino, open, AllocateMode::Extend, 2, 6).unwrap();
    assert_eq!(fs.getattr(ino).unwrap().size, 8);
    assert!(matches!(fs.lseek(ino, open, 8, SeekFrom::Hole), Err(FsError::NoSuchOffset)));
    assert!(matches!(set(1 << 63), Err(FsError::FileTooLarge)));
}

#[test]
fn handles_are_checked() {
    let fs = fs();
    let (a, b) = (file(&fs, ROOT, "a"), file(&fs, ROOT, "b"));
    let read_only = fs.open(a, OpenFlags { read: true, ..OpenFlags::default() }).unwrap().handle;
    assert!(matches!(fs.write(a, read_only, 0, b"x", false), Err(FsError::BadHandle)));
    assert!(matches!(fs.read(b, read_only, 0, 1), Err(FsError::BadHandle)));
    let append = fs.open(a, OpenFlags { append: true, ..READ_WRITE }).unwrap().handle;
    fs.write(a, append, 77, b"x", false).unwrap();
    fs.write(a, append, 77, b"y", false).unwrap();
    assert_eq!(&*fs.read(a, read_only, 0, 9).unwrap(), b"xy");
    fs.release(a, append).unwrap();
    assert!(matches!(fs.release(a, append), Err(FsError::BadHandle)));
    assert!(matches!(fs.open(ROOT, READ_WRITE), Err(FsError::IsDirectory)));
}

#[test]
fn owners_groups_and_set_id_bits() {
    let fs = fs();
    let user = Caller { uid: 7, gid: 8, umask: 0o027 };
    let dir = mkdir(&fs, ROOT, "d");
    let set = SetAttr { perm: Some(0o2777), gid: Some(99), ..SetAttr::default() };
    fs.setattr(Caller::ROOT, dir, set).unwrap();
    let sub = fs.mkdir(user, dir, name("sub"), 0o777).unwrap().attr;
    assert_eq!((sub.perm, sub.uid, sub.gid), (0o2750, 7, 99));
    let made = fs.mknod(user, ROOT, name("f"), 0o100_666, 0).unwrap().attr;
    assert_eq!((made.perm, made.uid, made.gid), (0o640, 7, 8));
    let set = SetAttr { perm: Some(0o6755), ..SetAttr::default() };
    fs.setattr(user, made.ino, set).unwrap();
    let chown = SetAttr { gid: Some(9), ..SetAttr::default() };
    assert_eq!(fs.setattr(Caller::ROOT, made.ino, chown).unwrap().perm, 0o6755);
    assert_eq!(fs.setattr(user, made.ino, chown).unwrap().perm, 0o755);
    let write = AccessMode { write: true, ..AccessMode::default() };
    assert!(fs.access(user, &[], made.ino, write).is_ok());
    let other = Caller { uid: 1, gid: 1, umask: 0 };
    assert!(matches!(fs.access(other, &[9], made.ino, write), Err(FsError::AccessDenied)));
}

#[test]
fn listings_go_on_after_a_cookie_while_names_change() {
    let fs = fs();
    for text in ["a", "b", "c"] {
        file(&fs, ROOT, text);
    }
    let list = |cookie, count| {
        let mut names = Vec::new();
        let mut last = cookie;
        fs.readdir(ROOT, cookie, false, &mut |entry| {
            let takes = names.len() < count;
            if takes {
                names.push(String::from_utf8(entry.name.to_vec()).unwrap());
                last = entry.cookie;
            }
            takes
        })
        .unwrap();
        (names, last)
    };
    let (names, cookie) = list(0, 4);
    assert_eq!(names, [".", "..", "a", "b"]);
    fs.unlink(ROOT, name("b")).unwrap();
    file(&fs, ROOT, "d");
    assert_eq!(list(cookie, 9).0, ["c", "d"]);
}

#[test]
fn extended_attributes_keep_their_modes() {
    let fs = fs();
    let set = |name: &[u8], mode| fs.setxattr(ROOT, name, b"v", mode);
    assert!(matches!(set(b"user.a", XattrMode::Replace), Err(FsError::NoXattr)));
    set(b"user.b", XattrMode::Create).unwrap();
    set(b"user.a", XattrMode::Set).unwrap();
    assert!(matches!(set(b"user.a", XattrMode::Create), Err(FsError::XattrExists)));
    assert!(matches!(set(b"other.a", XattrMode::Set), Err(FsError::NotSupported(_))));
    assert_eq!(fs.listxattr(ROOT).unwrap(), b"user.a\0user.b\0");
    fs.removexattr(ROOT, b"user.a").unwrap();
    assert!(matches!(fs.getxattr(ROOT, b"user.a"), Err(FsError::NoXattr)));
    assert_eq!(&*fs.getxattr(ROOT, b"user.b").unwrap(), b"v");
}

#[test]
fn a_file_without_a_name_can_get_one() {
    let fs = fs();
    let (entry, open) = fs.tmpfile(Caller::ROOT, ROOT, 0o600, READ_WRITE).unwrap();
    let ino = entry.attr.ino;
    assert_eq!(entry.attr.nlink, 0);
    assert_eq!(fs.link(ino, ROOT, name("f")).unwrap().attr.nlink, 1);
    fs.unlink(ROOT, name("f")).unwrap();
    assert!(matches!(fs.link(ino, ROOT, name("f")), Err(FsError::NotFound)), "only once");
    fs.release(ino, open.handle).unwrap();
    fs.forget(ino, 2);
    assert_eq!(fs.inode_count(), 1);
}
