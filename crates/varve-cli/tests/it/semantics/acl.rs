//! Access control lists, spoken to the kernel in its own bytes.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use super::{Place, as_user, chmod, mode, refused, refused_io, semantics, tick};
use crate::harness::run;
use varve_testkit::{Command, there_is};

semantics!(acl_checks, acl_and_mode, acl_inheritance, acl_refusals, acl_set_group_id);

pub(super) const ACCESS: &str = "system.posix_acl_access";
pub(super) const DEFAULT: &str = "system.posix_acl_default";

const OWNER: u16 = 1;
const USER: u16 = 2;
const OWNING_GROUP: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHERS: u16 = 32;
const NO_ID: u32 = u32::MAX;

/// A list's bytes: tag, permission and id of each entry.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// Owner, user 1000, owning group, group 2000, mask, others.
pub(super) fn six(perms: [u16; 6]) -> Vec<u8> {
    let tags = [
        (OWNER, NO_ID),
        (USER, 1000),
        (OWNING_GROUP, NO_ID),
        (GROUP, 2000),
        (MASK, NO_ID),
        (OTHERS, NO_ID),
    ];
    let entries: Vec<_> =
        tags.iter().zip(perms).map(|((tag, id), perm)| (*tag, perm, *id)).collect();
    list(&entries)
}

pub(super) fn three(perms: [u16; 3]) -> Vec<u8> {
    list(&[(OWNER, perms[0], NO_ID), (OWNING_GROUP, perms[1], NO_ID), (OTHERS, perms[2], NO_ID)])
}

fn set(path: &Path, name: &str, value: &[u8]) -> rustix::io::Result<()> {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())
}

pub(super) fn get(path: &Path, name: &str) -> rustix::io::Result<Vec<u8>> {
    let mut value = vec![0u8; 4096];
    let len = rustix::fs::lgetxattr(path, name, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

/// A directory that everybody can pass.
fn open_dir(place: &Place) -> std::path::PathBuf {
    chmod(&place.dir(), 0o755);
    place.dir()
}

fn acl_checks(place: &Place) {
    let path = open_dir(place).join("listed");
    fs::write(&path, "x").unwrap();
    set(&path, ACCESS, &six([6, 6, 4, 2, 6, 0])).unwrap();
    place.remount();
    let can = |uid, groups: &[u32]| {
        as_user(uid, groups, || {
            let read = File::open(&path).is_ok();
            (read, OpenOptions::new().append(true).open(&path).is_ok())
        })
    };
    // The named user; the named group, as first and as further group; the owning group; others.
    assert_eq!(can(1000, &[77]), (true, true));
    assert_eq!(can(1001, &[2000]), (false, true));
    assert_eq!(can(1001, &[77, 2000]), (false, true));
    assert_eq!(can(1001, &[77, 0]), (true, false));
    assert_eq!(can(1001, &[77]), (false, false));
    // Both groups: each right from one of them, no right that none has.
    assert_eq!(can(1001, &[0, 2000]), (true, true));
    let both = as_user(1001, &[0, 2000], || OpenOptions::new().read(true).write(true).open(&path));
    refused_io(both, Errno::ACCESS);
    // The mask limits all but owner and others.
    set(&path, ACCESS, &six([6, 6, 6, 6, 4, 2])).unwrap();
    assert_eq!((can(1000, &[77]), can(1001, &[2000])), ((true, false), (true, false)));
    assert_eq!(can(1001, &[77]), (false, true));
    std::os::unix::fs::chown(&path, Some(1002), None).unwrap();
    assert_eq!(can(1002, &[77]), (true, true));
    // On a directory: search, and making and removing names.
    let dir = place.dir().join("dir");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("file"), "").unwrap();
    set(&dir, ACCESS, &six([7, 7, 5, 5, 7, 0])).unwrap();
    as_user(1000, &[77], || {
        fs::write(dir.join("made"), "").unwrap();
        fs::remove_file(dir.join("made")).unwrap();
    });
    as_user(1001, &[2000], || {
        fs::metadata(dir.join("file")).unwrap();
        refused_io(fs::write(dir.join("made"), ""), Errno::ACCESS);
        refused_io(fs::remove_file(dir.join("file")), Errno::ACCESS);
    });
    refused_io(as_user(1001, &[77], || fs::metadata(dir.join("file"))), Errno::ACCESS);
}

fn acl_and_mode(place: &Place) {
    let path = place.dir().join("both");
    fs::write(&path, "").unwrap();
    chmod(&path, 0o640);
    refused(get(&path, ACCESS), Errno::NODATA);
    // A list sets the mode, whose group bits are the mask; chmod sets owner, mask and others.
    let before = fs::metadata(&path).unwrap();
    tick();
    set(&path, ACCESS, &six([7, 6, 5, 4, 2, 1])).unwrap();
    assert_eq!(mode(&path), 0o721);
    let after = fs::metadata(&path).unwrap();
    let ctime = |meta: &fs::Metadata| (meta.ctime(), meta.ctime_nsec());
    assert!(
        ctime(&after) > ctime(&before) && after.modified().unwrap() == before.modified().unwrap()
    );
    chmod(&path, 0o4653);
    place.remount();
    assert_eq!((get(&path, ACCESS).unwrap(), mode(&path)), (six([6, 6, 5, 4, 5, 3]), 0o4653));
    // A list without named entries and mask is the mode, and is not kept.
    set(&path, ACCESS, &three([6, 4, 0])).unwrap();
    assert_eq!((get(&path, ACCESS), mode(&path)), (Err(Errno::NODATA), 0o4640));
    let mut names = [0u8; 256];
    let len = rustix::fs::listxattr(&path, &mut names[..]).unwrap();
    assert!(!names[..len].windows(6).any(|part| part == b"system"));
    // With a mask it is more than a mode. Removing a list leaves the mode.
    let masked =
        list(&[(OWNER, 6, NO_ID), (OWNING_GROUP, 6, NO_ID), (MASK, 4, NO_ID), (OTHERS, 0, NO_ID)]);
    set(&path, ACCESS, &masked).unwrap();
    assert_eq!((get(&path, ACCESS).unwrap(), mode(&path)), (masked, 0o4640));
    rustix::fs::removexattr(&path, ACCESS).unwrap();
    rustix::fs::removexattr(&path, ACCESS).unwrap();
    set(&path, ACCESS, &list(&[])).unwrap();
    assert_eq!((get(&path, ACCESS), mode(&path)), (Err(Errno::NODATA), 0o4640));
    if !there_is("setfacl") || !there_is("getfacl") {
        return;
    }
    // The tools agree.
    run(Command::new("setfacl").args(["-m", "u:1000:rw,g:2000:r"]).arg(&path));
    assert_eq!(get(&path, ACCESS).unwrap(), six([6, 6, 4, 4, 6, 0]));
    let shown = run(Command::new("getfacl").args(["-cn"]).arg(&path));
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("user:1000:rw-\n") && shown.contains("mask::rw-\n"), "{shown}");
}

fn acl_inheritance(place: &Place) {
    let dir = place.dir().join("parent");
    fs::create_dir(&dir).unwrap();
    let default = six([7, 7, 5, 4, 7, 1]);
    set(&dir, DEFAULT, &default).unwrap();
    assert_eq!(mode(&dir) & 0o777, 0o755, "a default list is not for the directory itself");
    place.remount();
    let script = "umask 077; : > file; mkdir sub; mkfifo fifo; mkdir sub/deeper; ln -s x link";
    run(Command::new("sh").args(["-c", script]).current_dir(&dir));
    // The umask counts for nothing; the mode of the call limits owner, mask and others.
    let of = |name: &str| (get(&dir.join(name), ACCESS), get(&dir.join(name), DEFAULT));
    assert_eq!(
        (of("file"), mode(&dir.join("file"))),
        ((Ok(six([6, 7, 5, 4, 6, 0])), Err(Errno::NODATA)), 0o660)
    );
    for name in ["sub", "sub/deeper"] {
        assert_eq!(of(name), (Ok(default.clone()), Ok(default.clone())), "{name}");
        assert_eq!(mode(&dir.join(name)), 0o771);
    }
    assert_eq!(of("fifo").0, Ok(six([6, 7, 5, 4, 6, 0])));
    assert_eq!(mode(&dir.join("link")), 0o777);
    refused(get(&dir.join("link"), ACCESS), Errno::OPNOTSUPP);
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let unnamed = rustix::fs::open(&dir, flags, Mode::from(0o600)).unwrap();
    let mut value = vec![0u8; 256];
    let len = rustix::fs::fgetxattr(&unnamed, ACCESS, &mut value[..]).unwrap();
    assert_eq!(value[..len], six([6, 7, 5, 4, 0, 0]));
    // What exists keeps what it has; a default list of a mode gives modes only.
    set(&dir, DEFAULT, &three([7, 4, 0])).unwrap();
    fs::create_dir(dir.join("plain")).unwrap();
    assert_eq!(
        (of("plain"), mode(&dir.join("plain"))),
        ((Err(Errno::NODATA), Ok(three([7, 4, 0]))), 0o740)
    );
    assert_eq!(of("sub").0, Ok(default));
    fs::rename(dir.join("file"), place.dir().join("moved")).unwrap();
    fs::hard_link(place.dir().join("moved"), dir.join("plain/linked")).unwrap();
    assert_eq!(of("plain/linked").0, Ok(six([6, 7, 5, 4, 6, 0])));
    rustix::fs::removexattr(&dir, DEFAULT).unwrap();
    run(Command::new("sh").args(["-c", "umask 027; : > after"]).current_dir(&dir));
    assert_eq!((of("after").0, mode(&dir.join("after"))), (Err(Errno::NODATA), 0o640));
}

fn acl_refusals(place: &Place) {
    let dir = open_dir(place);
    let path = dir.join("file");
    fs::write(&path, "").unwrap();
    let three_named =
        [(OWNER, 7, NO_ID), (USER, 7, 5), (OWNING_GROUP, 7, NO_ID), (OTHERS, 7, NO_ID)];
    let unordered = [(OWNER, 7, NO_ID), (OTHERS, 7, NO_ID), (OWNING_GROUP, 7, NO_ID)];
    for wrong in [
        list(&three_named),
        list(&unordered),
        list(&[(OWNER, 7, NO_ID), (OTHERS, 7, NO_ID)]),
        list(&[(OWNER, 8, NO_ID), (OWNING_GROUP, 7, NO_ID), (OTHERS, 7, NO_ID)]),
        list(&[(3, 7, NO_ID), (OWNING_GROUP, 7, NO_ID), (OTHERS, 7, NO_ID)]),
        three([7, 7, 7])[..27].to_vec(),
        vec![2, 0],
    ] {
        refused(set(&path, ACCESS, &wrong), Errno::INVAL);
    }
    refused(set(&path, ACCESS, &[3, 0, 0, 0]), Errno::OPNOTSUPP);
    refused(set(&path, DEFAULT, &six([7; 6])), Errno::ACCESS);
    refused(get(&path, DEFAULT), Errno::NODATA);
    let link = dir.join("link");
    std::os::unix::fs::symlink("file", &link).unwrap();
    refused(set(&link, ACCESS, &six([7; 6])), Errno::OPNOTSUPP);
    // Only the owner and root set lists; everybody may read them.
    let by_other =
        as_user(1000, &[1000], || (set(&path, ACCESS, &six([7; 6])), get(&path, ACCESS)));
    assert_eq!(by_other, (Err(Errno::PERM), Err(Errno::NODATA)));
    refused(as_user(1000, &[1000], || rustix::fs::removexattr(&path, ACCESS)), Errno::PERM);
    std::os::unix::fs::chown(&path, Some(1000), None).unwrap();
    as_user(1000, &[1000], || set(&path, ACCESS, &six([7; 6]))).unwrap();
    assert_eq!(as_user(1001, &[1001], || get(&path, ACCESS)), Ok(six([7; 6])));
    // A list as long as the kernel can pass on, and a longer one.
    let many = |users: u32| {
        let mut entries = vec![(OWNER, 7, NO_ID)];
        entries.extend((0..users).map(|id| (USER, 4, id)));
        entries.extend([(OWNING_GROUP, 7, NO_ID), (MASK, 7, NO_ID), (OTHERS, 0, NO_ID)]);
        list(&entries)
    };
    set(&path, ACCESS, &many(200)).unwrap();
    assert_eq!(get(&path, ACCESS), Ok(many(200)));
    if place.is_varve() {
        set(&path, ACCESS, &many(507)).unwrap();
        refused(set(&path, ACCESS, &many(508)), Errno::TOOBIG);
    }
    drop(rustix::fs::openat(CWD, &path, OFlags::RDONLY, Mode::empty()).unwrap());
}

fn acl_set_group_id(place: &Place) {
    let path = open_dir(place).join("file");
    fs::write(&path, "").unwrap();
    let prepare = || {
        std::os::unix::fs::chown(&path, Some(1000), Some(4242)).unwrap();
        chmod(&path, 0o2770);
    };
    // Kept by one who is in the file's group, and by root; lost by others.
    for (groups, kept) in [(&[1000, 4242][..], true), (&[1000][..], false)] {
        prepare();
        as_user(1000, groups, || set(&path, ACCESS, &six([7, 6, 5, 4, 7, 0]))).unwrap();
        assert_eq!(mode(&path), if kept { 0o2770 } else { 0o770 }, "{groups:?}");
    }
    prepare();
    set(&path, ACCESS, &six([7, 6, 5, 4, 7, 0])).unwrap();
    assert_eq!(mode(&path), 0o2770);
}
