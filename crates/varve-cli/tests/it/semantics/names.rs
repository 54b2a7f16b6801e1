//! Names, directories, rename and link.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use varve_testkit::at_end;

use super::{Place, changed, names as listed, refused, refused_io, semantics, tick};

semantics!(
    names,
    listing_while_changing,
    directory_links,
    directory_times,
    remove_errors,
    removed_working_directory,
    setgid_directory,
    rename_replaces,
    rename_same_file,
    rename_flags,
    rename_errors,
    hard_links,
    link_directory,
);

fn names(place: &Place) {
    let dir = place.dir().join("names");
    fs::create_dir(&dir).unwrap();
    let mut wanted: Vec<OsString> = (1..=255u8)
        .filter(|byte| *byte != b'/')
        .map(|byte| OsStr::from_bytes(&[b'n', byte]).to_owned())
        .collect();
    wanted.push(OsStr::from_bytes(&[b'x'; 255]).to_owned());
    for name in &wanted {
        fs::write(dir.join(name), name.as_bytes()).unwrap();
    }
    refused_io(fs::write(dir.join(OsStr::from_bytes(&[b'x'; 256])), ""), Errno::NAMETOOLONG);
    wanted.sort();
    assert_eq!(listed(&dir), wanted);
    place.remount();
    assert_eq!(listed(&dir), wanted);
    for name in &wanted {
        assert_eq!(fs::read(dir.join(name)).unwrap(), name.as_bytes());
    }
}

fn listing_while_changing(place: &Place) {
    let dir = place.dir().join("listing");
    fs::create_dir(&dir).unwrap();
    for n in 0..3000 {
        fs::write(dir.join(format!("keep-{n}")), "").unwrap();
    }
    let opened = rustix::fs::open(&dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let mut seen: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    let mut buffer = Vec::with_capacity(4096);
    let mut listing = rustix::fs::RawDir::new(&opened, buffer.spare_capacity_mut());
    let mut count = 0;
    while let Some(entry) = listing.next() {
        *seen.entry(entry.unwrap().file_name().to_bytes().to_vec()).or_default() += 1;
        fs::write(dir.join(format!("other-{count}")), "").unwrap();
        if count % 2 == 1 {
            fs::remove_file(dir.join(format!("other-{}", count - 1))).unwrap();
        }
        count += 1;
        if count > 20_000 {
            break;
        }
    }
    for n in 0..3000 {
        assert_eq!(seen.get(format!("keep-{n}").as_bytes()), Some(&1), "keep-{n}");
    }
    assert_eq!((seen.get(&b"."[..]), seen.get(&b".."[..])), (Some(&1), Some(&1)));
}

fn directory_links(place: &Place) {
    let dir = place.dir().join("links");
    fs::create_dir(&dir).unwrap();
    for n in 0..5 {
        fs::create_dir(dir.join(format!("d{n}"))).unwrap();
        fs::write(dir.join(format!("f{n}")), "").unwrap();
    }
    let meta = fs::metadata(&dir).unwrap();
    assert_eq!(meta.nlink(), 7);
    if place.is_varve() {
        assert_eq!(meta.size(), 10);
    }
    fs::remove_dir(dir.join("d0")).unwrap();
    fs::rename(dir.join("d1"), place.dir().join("moved")).unwrap();
    assert_eq!(fs::metadata(&dir).unwrap().nlink(), 5);
    place.remount();
    assert_eq!(fs::metadata(&dir).unwrap().nlink(), 5);
}

fn directory_times(place: &Place) {
    let dir = place.dir().join("times");
    fs::create_dir(&dir).unwrap();
    fs::create_dir(dir.join("sub")).unwrap();
    let steps: [&dyn Fn(&Path); 4] = [
        &|dir| fs::write(dir.join("file"), "").unwrap(),
        &|dir| fs::rename(dir.join("file"), dir.join("renamed")).unwrap(),
        &|dir| fs::hard_link(dir.join("renamed"), dir.join("linked")).unwrap(),
        &|dir| fs::remove_file(dir.join("linked")).unwrap(),
    ];
    for step in steps {
        let before = changed(&dir);
        tick();
        step(&dir);
        let after = changed(&dir);
        assert!(after.0 > before.0 && after.1 > before.1, "{before:?} {after:?}");
    }
    let before = changed(&dir);
    tick();
    fs::write(dir.join("sub/file"), "").unwrap();
    fs::write(dir.join("renamed"), "changed").unwrap();
    assert_eq!(changed(&dir), before);
    place.remount();
    assert_eq!(changed(&dir), before);
}

fn remove_errors(place: &Place) {
    let dir = place.dir().join("remove");
    fs::create_dir_all(dir.join("full/sub")).unwrap();
    fs::write(dir.join("file"), "").unwrap();
    refused_io(fs::remove_dir(dir.join("full")), Errno::NOTEMPTY);
    refused_io(fs::remove_dir(dir.join("file")), Errno::NOTDIR);
    refused_io(fs::remove_file(dir.join("full")), Errno::ISDIR);
    refused_io(fs::remove_file(dir.join("absent")), Errno::NOENT);
    refused_io(fs::remove_dir(dir.join("absent")), Errno::NOENT);
    refused(rustix::fs::unlinkat(CWD, dir.join("full/."), AtFlags::REMOVEDIR), Errno::INVAL);
    assert_eq!(listed(&dir), ["file", "full"]);
}

fn removed_working_directory(place: &Place) {
    let dir = place.dir().join("gone");
    fs::create_dir(&dir).unwrap();
    let held = rustix::fs::open(&dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    fs::remove_dir(&dir).unwrap();
    assert_eq!(rustix::fs::fstat(&held).unwrap().st_nlink, 0);
    let made = rustix::fs::openat(&held, "new", OFlags::CREATE | OFlags::RDWR, Mode::RWXU);
    refused(made, Errno::NOENT);
    let names: Vec<_> = rustix::fs::Dir::read_from(&held)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_owned())
        .filter(|name| name.to_bytes() != b"." && name.to_bytes() != b"..")
        .collect();
    assert!(names.is_empty(), "{names:?}");
}

fn setgid_directory(place: &Place) {
    let dir = place.dir().join("setgid");
    fs::create_dir(&dir).unwrap();
    std::os::unix::fs::chown(&dir, Some(0), Some(4242)).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o2775)).unwrap();
    fs::write(dir.join("file"), "").unwrap();
    fs::create_dir(dir.join("sub")).unwrap();
    assert_eq!(fs::metadata(dir.join("file")).unwrap().gid(), 4242);
    let sub = fs::metadata(dir.join("sub")).unwrap();
    assert_eq!((sub.gid(), sub.mode() & 0o2000), (4242, 0o2000));
}

fn rename_replaces(place: &Place) {
    let dir = place.dir().join("replace");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("target"), "version 0").unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = at_end(|| done.store(true, Ordering::Relaxed));
        let reader = scope.spawn(|| {
            let mut reads = 0;
            while !done.load(Ordering::Relaxed) {
                let text = fs::read_to_string(dir.join("target")).unwrap();
                assert!(text.starts_with("version "), "{text:?}");
                reads += 1;
            }
            reads
        });
        for n in 0..500 {
            fs::write(dir.join("next"), format!("version {n}")).unwrap();
            fs::rename(dir.join("next"), dir.join("target")).unwrap();
        }
        drop(end);
        assert!(reader.join().unwrap() > 0);
    });
    assert_eq!(listed(&dir), ["target"]);
}

fn rename_same_file(place: &Place) {
    let dir = place.dir().join("same");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("a"), "one").unwrap();
    fs::hard_link(dir.join("a"), dir.join("b")).unwrap();
    fs::rename(dir.join("a"), dir.join("b")).unwrap();
    fs::rename(dir.join("a"), dir.join("a")).unwrap();
    assert_eq!(listed(&dir), ["a", "b"]);
    assert_eq!(fs::metadata(dir.join("a")).unwrap().nlink(), 2);
}

fn rename_flags(place: &Place) {
    let dir = place.dir().join("flags");
    fs::create_dir_all(dir.join("d/inner")).unwrap();
    fs::write(dir.join("f"), "file").unwrap();
    fs::write(dir.join("g"), "other").unwrap();
    let rename = |from: &str, to: &str, flags| {
        rustix::fs::renameat_with(CWD, dir.join(from), CWD, dir.join(to), flags)
    };
    refused(rename("f", "g", RenameFlags::NOREPLACE), Errno::EXIST);
    rename("g", "h", RenameFlags::NOREPLACE).unwrap();
    refused(rename("f", "absent", RenameFlags::EXCHANGE), Errno::NOENT);
    rename("f", "d", RenameFlags::EXCHANGE).unwrap();
    assert!(dir.join("f/inner").is_dir());
    assert_eq!(fs::read(dir.join("d")).unwrap(), b"file");
    fs::create_dir(dir.join("e")).unwrap();
    rename("f/inner", "d", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(dir.join("f/inner")).unwrap(), b"file");
    assert_eq!(fs::metadata(&dir).unwrap().nlink(), 5);
    refused(rename("d", "f/inner/x", RenameFlags::EXCHANGE), Errno::NOTDIR);
    place.remount();
    assert_eq!(listed(&dir), ["d", "e", "f", "h"]);
    assert_eq!(fs::metadata(dir.join("f")).unwrap().nlink(), 2);
}

fn rename_errors(place: &Place) {
    let dir = place.dir().join("errors");
    fs::create_dir_all(dir.join("a/b/c")).unwrap();
    fs::create_dir_all(dir.join("full/sub")).unwrap();
    fs::create_dir(dir.join("empty")).unwrap();
    fs::write(dir.join("file"), "").unwrap();
    let rename = |from: &str, to: &str| fs::rename(dir.join(from), dir.join(to));
    refused_io(rename("a", "a/x"), Errno::INVAL);
    refused_io(rename("a", "a/b/c/x"), Errno::INVAL);
    refused_io(rename("a/b", "a"), Errno::NOTEMPTY);
    refused_io(rename("a", "full"), Errno::NOTEMPTY);
    refused_io(rename("file", "empty"), Errno::ISDIR);
    refused_io(rename("empty", "file"), Errno::NOTDIR);
    refused_io(rename("absent", "x"), Errno::NOENT);
    refused_io(rename("file", "absent/x"), Errno::NOENT);
    refused_io(rename("file", "file/x"), Errno::NOTDIR);
    rename("a", "empty").unwrap();
    assert!(dir.join("empty/b/c").is_dir());
    assert_eq!(listed(&dir), ["empty", "file", "full"]);
}

fn hard_links(place: &Place) {
    let dir = place.dir().join("hard");
    fs::create_dir_all(dir.join("sub")).unwrap();
    fs::write(dir.join("a"), "shared").unwrap();
    fs::hard_link(dir.join("a"), dir.join("sub/b")).unwrap();
    fs::hard_link(dir.join("sub/b"), dir.join("c")).unwrap();
    let ids = |name: &str| {
        let meta = fs::metadata(dir.join(name)).unwrap();
        (meta.ino(), meta.nlink(), meta.size(), meta.mode())
    };
    assert_eq!(ids("a"), ids("sub/b"));
    assert_eq!(ids("a").1, 3);
    fs::write(dir.join("c"), "changed by c").unwrap();
    fs::set_permissions(dir.join("sub/b"), fs::Permissions::from_mode(0o600)).unwrap();
    place.remount();
    assert_eq!(fs::read(dir.join("a")).unwrap(), b"changed by c");
    assert_eq!((ids("a"), ids("a").3 & 0o777), (ids("c"), 0o600));
    refused_io(fs::hard_link(dir.join("a"), dir.join("c")), Errno::EXIST);
    fs::remove_file(dir.join("a")).unwrap();
    fs::remove_file(dir.join("c")).unwrap();
    assert_eq!(ids("sub/b").1, 1);
    fs::rename(dir.join("sub/b"), dir.join("last")).unwrap();
    place.remount();
    assert_eq!(fs::read(dir.join("last")).unwrap(), b"changed by c");
}

fn link_directory(place: &Place) {
    let dir = place.dir().join("dirlink");
    fs::create_dir(&dir).unwrap();
    refused_io(fs::hard_link(&dir, place.dir().join("second")), Errno::PERM);
}
