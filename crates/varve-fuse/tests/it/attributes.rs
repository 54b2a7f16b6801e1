//! Extended attributes and access control lists: what the kernel asks for, and how often.

use std::fs::{self, File};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::XattrFlags;
use rustix::io::Errno;
use varve_fuse::SessionOptions;
use varve_testkit::Command;
use varve_vfs::Vfs;

use crate::objectfs::ObjectFs;
use crate::support::{TestMount, model};

#[test]
fn extended_attributes_are_kept_and_the_status_is_readable() {
    let fs = model();
    let Some(mount) = TestMount::new(fs.clone(), &SessionOptions::default()) else { return };
    let path = mount.path("a");
    fs::write(&path, b"").unwrap();
    let mut buffer = [0u8; 64];
    assert_eq!(rustix::fs::getxattr(&path, "user.k", &mut buffer), Err(Errno::NODATA));
    rustix::fs::setxattr(&path, "user.k", b"value", XattrFlags::empty()).unwrap();
    assert_eq!(rustix::fs::setxattr(&path, "user.k", b"v", XattrFlags::CREATE), Err(Errno::EXIST));
    let len = rustix::fs::getxattr(&path, "user.k", &mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"value");
    assert_eq!(rustix::fs::getxattr(&path, "user.k", &mut buffer[..2]), Err(Errno::RANGE));
    let len = rustix::fs::listxattr(&path, &mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"user.k\0");
    rustix::fs::removexattr(&path, "user.k").unwrap();
    assert_eq!(rustix::fs::removexattr(&path, "user.k"), Err(Errno::NODATA));
    let other = rustix::fs::setxattr(&path, "system.other", b"v", XattrFlags::empty());
    assert_eq!(other, Err(Errno::OPNOTSUPP));
    let len = rustix::fs::getxattr(mount.dir(), "user.varve.status", &mut buffer).unwrap();
    assert_eq!(&buffer[..len], fs.status_json().as_bytes());
    assert_eq!(rustix::fs::listxattr(mount.dir(), &mut buffer), Ok(0));
    mount.finish().unwrap();
}

/// The kernel asks for a list only to check somebody who is not the owner, and remembers the answer.
#[test]
fn access_control_lists_cost_owners_nothing_and_others_one_question() {
    let fs = Arc::new(ObjectFs::new());
    let Some(mount) = TestMount::new(fs.clone(), &SessionOptions::default()) else { return };
    let dir = mount.path("d");
    fs::create_dir(&dir).unwrap();
    for i in 0..100 {
        fs::create_dir(dir.join(format!("{i}"))).unwrap();
        File::create(dir.join(format!("{i}/file"))).unwrap();
        fs::metadata(dir.join(format!("{i}/file"))).unwrap();
        fs::rename(dir.join(format!("{i}/file")), dir.join(format!("{i}/other"))).unwrap();
        fs::remove_file(dir.join(format!("{i}/other"))).unwrap();
    }
    assert_eq!(fs.getxattrs.load(Relaxed), 0);
    let mut stat = Command::new("stat");
    stat.arg("1/absent").args(["1"; 100]).current_dir(&dir).uid(65_534).gid(65_534);
    stat.output().unwrap();
    // The root, `d` and `d/1`.
    assert_eq!(fs.getxattrs.load(Relaxed), 3);
    stat.output().unwrap();
    // Of the root the kernel remembers nothing, so each path that begins there asks again.
    assert!(fs.getxattrs.load(Relaxed) < 10, "{}", fs.getxattrs.load(Relaxed));
    mount.finish().unwrap();
}

#[test]
fn without_access_control_lists_nobody_asks_for_them() {
    let fs = Arc::new(ObjectFs::new());
    let options = SessionOptions { acl: false, ..SessionOptions::default() };
    let Some(mount) = TestMount::new(fs.clone(), &options) else { return };
    fs::write(mount.path("a"), b"").unwrap();
    let list = b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x04\0\x06\0\xff\xff\xff\xff\x20\0\x06\0\xff\xff\xff\xff";
    let name = "system.posix_acl_access";
    let set = rustix::fs::setxattr(mount.path("a"), name, list, XattrFlags::empty());
    assert_eq!(set, Err(Errno::OPNOTSUPP));
    fs.getxattrs.store(0, Relaxed);
    Command::new("stat").arg(mount.path("a")).uid(65_534).gid(65_534).output().unwrap();
    assert_eq!(fs.getxattrs.load(Relaxed), 0);
    mount.finish().unwrap();
}

#[test]
fn without_extended_attributes_they_are_not_supported() {
    let options = SessionOptions { xattr: false, ..SessionOptions::default() };
    let Some(mount) = TestMount::new(model(), &options) else { return };
    let mut buffer = [0u8; 64];
    assert_eq!(rustix::fs::getxattr(mount.dir(), "user.k", &mut buffer), Err(Errno::OPNOTSUPP));
    let set = rustix::fs::setxattr(mount.dir(), "user.k", b"v", XattrFlags::empty());
    assert_eq!(set, Err(Errno::OPNOTSUPP));
    mount.finish().unwrap();
}
