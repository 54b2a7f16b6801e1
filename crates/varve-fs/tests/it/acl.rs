//! Access control lists through the library, which asks them itself.

use varve_fs::MountOptions;
use varve_schema::acl::{ACL_ACCESS, ACL_DEFAULT, Acl, AclEntry, AclTag};
use varve_types::InodeId;
use varve_vfs::{AccessMode, Caller, FsError, OpenFlags, SetAttr, Vfs, XattrMode};

use crate::support::{ROOT, Rig, name};

const OWNER: Caller = Caller { uid: 1, gid: 1, umask: 0o077 };

fn list(named: u16, mask: u16) -> Vec<u8> {
    let tags = [
        (AclTag::Owner, 6),
        (AclTag::User(7), named),
        (AclTag::OwningGroup, 4),
        (AclTag::Mask, mask),
        (AclTag::Others, 0),
    ];
    Acl::new(tags.map(|(tag, perm)| AclEntry { tag, perm })).unwrap().encode()
}

fn may(fs: &dyn Vfs, uid: u32, groups: &[u32], ino: InodeId) -> (bool, bool) {
    let ask = |read, write| {
        let mode = AccessMode { read, write, execute: false };
        match fs.access(Caller { uid, gid: 99, umask: 0 }, groups, ino, mode) {
            Ok(()) => true,
            Err(FsError::AccessDenied) => false,
            Err(other) => panic!("{other}"),
        }
    };
    (ask(true, false), ask(false, true))
}

#[test]
fn lists_decide_who_may_what() {
    let rig = Rig::new();
    let made = rig.mknod(OWNER, ROOT, name("f"), 0o100_640, 0).unwrap().attr;
    assert_eq!((made.perm, may(&rig.fs, 7, &[], made.ino)), (0o600, (false, false)));
    rig.setxattr(made.ino, ACL_ACCESS, &list(6, 6), XattrMode::Set).unwrap();
    assert_eq!(rig.getattr(made.ino).unwrap().perm, 0o660);
    assert_eq!(may(&rig.fs, 7, &[], made.ino), (true, true));
    assert_eq!(
        (may(&rig.fs, 8, &[1], made.ino), may(&rig.fs, 8, &[], made.ino)),
        ((true, false), (false, false))
    );
    let chmod = SetAttr { perm: Some(0o644), ..SetAttr::default() };
    rig.setattr(OWNER, made.ino, chmod).unwrap();
    assert_eq!(rig.getxattr(made.ino, ACL_ACCESS).unwrap(), {
        let mut followed = Acl::decode(&list(6, 6)).unwrap().unwrap();
        followed.follow_mode(0o644);
        followed.encode()
    });
    assert_eq!(
        (may(&rig.fs, 7, &[], made.ino), may(&rig.fs, 8, &[], made.ino)),
        ((true, false), (true, false))
    );
    rig.setattr(OWNER, made.ino, SetAttr { perm: Some(0o2770), ..SetAttr::default() }).unwrap();
    rig.setxattr(made.ino, ACL_ACCESS, &list(4, 4), XattrMode::SetKillSetGid).unwrap();
    assert_eq!(rig.getattr(made.ino).unwrap().perm, 0o640);
    assert!(matches!(rig.removexattr(made.ino, b"user.a"), Err(FsError::NoXattr)));
    rig.removexattr(made.ino, ACL_ACCESS).unwrap();
    rig.removexattr(made.ino, ACL_ACCESS).unwrap();
    assert_eq!(rig.listxattr(made.ino).unwrap(), b"");
    assert_eq!(rig.check(&mut |_| ()).unwrap().findings, []);
}

/// What was new took a default list that the mount says it does not have.
#[test]
fn without_lists_modes_count_alone() {
    let rig = Rig::new();
    let dir = rig.mkdir(OWNER, ROOT, name("d"), 0o755).unwrap().attr.ino;
    let before = rig.mknod(OWNER, ROOT, name("f"), 0o100_660, 0).unwrap().attr.ino;
    rig.setxattr(dir, ACL_DEFAULT, &list(7, 7), XattrMode::Set).unwrap();
    rig.setxattr(before, ACL_ACCESS, &list(6, 6), XattrMode::Set).unwrap();
    let rig = rig.remount_with(MountOptions { acl: false, ..MountOptions::default() });
    let made = rig.mknod(OWNER, dir, name("f"), 0o100_666, 0).unwrap().attr;
    let sub = rig.mkdir(OWNER, dir, name("sub"), 0o777).unwrap().attr;
    assert_eq!((made.perm, sub.perm), (0o600, 0o700));
    for ino in [made.ino, sub.ino] {
        assert_eq!(rig.listxattr(ino).unwrap(), b"");
    }
    rig.lookup(ROOT, name("f")).unwrap();
    assert_eq!(may(&rig.fs, 7, &[], before), (false, false));
    rig.setattr(OWNER, before, SetAttr { perm: Some(0o604), ..SetAttr::default() }).unwrap();
    assert_eq!(may(&rig.fs, 7, &[], before), (true, false));
    assert_eq!(rig.getxattr(before, ACL_ACCESS).unwrap(), list(6, 6), "it is as it was");
    let rig = rig.remount_with(MountOptions::default());
    assert_eq!(rig.lookup(ROOT, name("d")).unwrap().attr.ino, dir);
    assert_eq!(rig.getxattr(dir, ACL_DEFAULT).unwrap(), list(7, 7));
}

#[test]
fn lists_are_inherited() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let dir = fs.mkdir(OWNER, ROOT, name("d"), 0o755).unwrap().attr.ino;
    fs.setxattr(dir, ACL_DEFAULT, &list(6, 7), XattrMode::Set).unwrap();
    let file = fs.mknod(OWNER, dir, name("f"), 0o100_666, 0).unwrap().attr;
    let sub = fs.mkdir(OWNER, dir, name("sub"), 0o777).unwrap().attr;
    let symlink = fs.symlink(OWNER, dir, name("l"), b"f").unwrap().attr;
    let (unnamed, opened) =
        fs.tmpfile(OWNER, dir, 0o606, OpenFlags { write: true, ..OpenFlags::default() }).unwrap();
    assert_eq!((file.perm, sub.perm, symlink.perm), (0o660, 0o670, 0o777));
    assert_eq!(unnamed.attr.perm, 0o600);
    assert_eq!(fs.getxattr(file.ino, ACL_ACCESS).unwrap(), list(6, 6));
    assert_eq!(fs.getxattr(sub.ino, ACL_DEFAULT).unwrap(), list(6, 7));
    assert_eq!(fs.getxattr(unnamed.attr.ino, ACL_ACCESS).unwrap(), list(6, 0));
    assert_eq!(fs.listxattr(symlink.ino).unwrap(), b"");
    for (ino, list) in [(file.ino, ACL_DEFAULT), (symlink.ino, ACL_ACCESS)] {
        let value = Acl::decode(&self::list(6, 7)).unwrap().unwrap().encode();
        assert!(fs.setxattr(ino, list, &value, XattrMode::Set).is_err());
    }
    fs.unlink(dir, name("f")).unwrap();
    fs.rmdir(dir, name("sub")).unwrap();
    fs.release(unnamed.attr.ino, opened.handle).unwrap();
    for ino in [file.ino, sub.ino, unnamed.attr.ino] {
        fs.forget(ino, 1);
    }
    assert_eq!(fs.check(&mut |_| ()).unwrap().findings, []);
}
