//! Making, finding, moving, linking, listing and removing names.

use std::path::Path;
use std::sync::Arc;

use varve_env::Env;
use varve_fs::{FormatOptions, MountOptions, VarveFs};
use varve_types::InodeId;
use varve_vfs::{Caller, FileType, FsError, RenameMode, Vfs, XattrMode};

use crate::crash::{STORE, sim_store};
use crate::interposed::interposed;
use crate::support::{BOTH, Calls, READ, ROOT, Rig, WRITE, name};

#[test]
fn what_was_made_is_found_again_after_a_remount() {
    let rig = Rig::new();
    let dir = rig.mk_dir(ROOT, "d");
    let file = rig.mk(dir, "f");
    rig.put_at(file, 0, b"hello");
    rig.symlink(Caller::ROOT, dir, name("s"), b"../elsewhere").unwrap();
    let before = rig.find(dir, "f").unwrap();
    let rig = rig.remount();
    let dir = rig.find(ROOT, "d").unwrap();
    assert_eq!((dir.kind, dir.nlink, dir.size), (FileType::Directory, 2, 2));
    let after = rig.find(dir.ino, "f").unwrap();
    assert_eq!(after, before);
    assert_eq!(rig.contents(after.ino), b"hello");
    let link = rig.find(dir.ino, "s").unwrap();
    assert_eq!(&rig.readlink(link.ino).unwrap()[..], b"../elsewhere");
    assert_eq!(rig.list(ROOT), ["d"]);
    assert_eq!(rig.list(dir.ino), ["f", "s"]);
}

#[test]
fn a_name_is_taken_once() {
    let rig = Rig::new();
    rig.mk(ROOT, "a");
    assert!(matches!(rig.mkdir(Caller::ROOT, ROOT, name("a"), 0o755), Err(FsError::Exists)));
    let exclusive = varve_vfs::OpenFlags { exclusive: true, ..BOTH };
    let again = rig.create(Caller::ROOT, ROOT, name("a"), 0o644, exclusive);
    assert!(matches!(again, Err(FsError::Exists)));
    let (entry, opened) = rig.create(Caller::ROOT, ROOT, name("a"), 0o600, BOTH).unwrap();
    assert_eq!(entry.attr.perm, 0o644, "an existing file is opened as it is");
    rig.release(entry.attr.ino, opened.handle).unwrap();
}

#[test]
fn directories_count_their_entries_and_links() {
    let rig = Rig::new();
    let a = rig.mk_dir(ROOT, "a");
    let b = rig.mk_dir(a, "b");
    rig.mk(a, "f");
    let attr = rig.getattr(a).unwrap();
    assert_eq!((attr.nlink, attr.size), (3, 2));
    assert!(matches!(rig.rmdir(ROOT, name("a")), Err(FsError::NotEmpty)));
    assert!(matches!(rig.unlink(a, name("b")), Err(FsError::IsDirectory)));
    assert!(matches!(rig.rmdir(a, name("f")), Err(FsError::NotDirectory)));
    rig.rmdir(a, name("b")).unwrap();
    rig.unlink(a, name("f")).unwrap();
    let attr = rig.getattr(a).unwrap();
    assert_eq!((attr.nlink, attr.size), (2, 0));
    assert_eq!(rig.getattr(b).unwrap().nlink, 0, "still known to the caller");
    rig.forget(b, 1);
    assert!(matches!(rig.getattr(b), Err(FsError::Stale)));
    assert!(rig.mkdir(Caller::ROOT, a, name("b"), 0o755).is_ok());
}

#[test]
fn nothing_is_made_in_a_removed_directory_or_in_a_file() {
    let rig = Rig::new();
    let a = rig.mk_dir(ROOT, "a");
    let file = rig.mk(ROOT, "f");
    rig.rmdir(ROOT, name("a")).unwrap();
    assert!(matches!(rig.mkdir(Caller::ROOT, a, name("b"), 0o755), Err(FsError::NotFound)));
    assert!(matches!(rig.find(a, "b"), Err(FsError::NotFound)));
    assert!(matches!(rig.find(file, "b"), Err(FsError::NotDirectory)));
    assert!(matches!(rig.find(InodeId::new(1 << 40), "b"), Err(FsError::Stale)));
}

#[test]
fn rename_moves_replaces_and_refuses_as_posix_says() {
    let rig = Rig::new();
    let (a, b) = (rig.mk_dir(ROOT, "a"), rig.mk_dir(ROOT, "b"));
    let file = rig.mk(a, "f");
    rig.put_at(file, 0, b"data");
    rig.mv(a, "f", b, "g").unwrap();
    assert_eq!(rig.getattr(file).unwrap().size, 4);
    assert_eq!(rig.find(b, "g").unwrap().ino, file);
    assert!(matches!(rig.find(a, "f"), Err(FsError::NotFound)));
    let other = rig.mk(a, "f");
    rig.mv(a, "f", b, "g").unwrap();
    assert_eq!(rig.find(b, "g").unwrap().ino, other);
    assert_eq!(rig.getattr(file).unwrap().nlink, 0);
    assert!(matches!(rig.mv(ROOT, "a", b, "g"), Err(FsError::NotDirectory)));
    assert!(matches!(rig.mv(b, "g", ROOT, "a"), Err(FsError::IsDirectory)));
    assert!(matches!(rig.mv(ROOT, "a", ROOT, "b"), Err(FsError::NotEmpty)));
    assert!(matches!(rig.mv(ROOT, "b", b, "x"), Err(FsError::IntoOwnSubtree)));
    assert!(matches!(rig.mv(ROOT, "none", b, "x"), Err(FsError::NotFound)));
    let no_replace = rig.rename(b, name("g"), ROOT, name("a"), RenameMode::NoReplace);
    assert!(matches!(no_replace, Err(FsError::Exists)));
    rig.mv(ROOT, "a", b, "inner").unwrap();
    assert_eq!(rig.lookup_parent(a).unwrap().attr.ino, b);
    assert_eq!(rig.getattr(ROOT).unwrap().nlink, 3);
    assert_eq!(rig.getattr(b).unwrap().nlink, 3);
    assert!(matches!(rig.mv(ROOT, "b", a, "x"), Err(FsError::IntoOwnSubtree)));
}

#[test]
fn exchange_swaps_a_file_and_a_directory() {
    let rig = Rig::new();
    let a = rig.mk_dir(ROOT, "a");
    let inner = rig.mk_dir(a, "inner");
    let file = rig.mk(ROOT, "f");
    rig.rename(a, name("inner"), ROOT, name("f"), RenameMode::Exchange).unwrap();
    assert_eq!(rig.find(a, "inner").unwrap().ino, file);
    assert_eq!(rig.find(ROOT, "f").unwrap().ino, inner);
    assert_eq!(rig.lookup_parent(inner).unwrap().attr.ino, ROOT);
    assert_eq!(rig.getattr(a).unwrap().nlink, 2);
    assert_eq!(rig.getattr(ROOT).unwrap().nlink, 4);
    let up = rig.rename(a, name("inner"), ROOT, name("a"), RenameMode::Exchange);
    assert!(matches!(up, Err(FsError::IntoOwnSubtree)));
    let none = rig.rename(a, name("inner"), ROOT, name("none"), RenameMode::Exchange);
    assert!(matches!(none, Err(FsError::NotFound)));
}

#[test]
fn hard_links_share_one_inode_until_the_last_goes() {
    let rig = Rig::new();
    let dir = rig.mk_dir(ROOT, "d");
    let file = rig.mk(ROOT, "a");
    rig.put_at(file, 0, &[7; 1000]);
    let linked = rig.link(file, dir, name("b")).unwrap().attr;
    assert_eq!((linked.ino, linked.nlink, linked.size), (file, 2, 1000));
    rig.put_at(file, 1000, b"more");
    assert_eq!(rig.find(dir, "b").unwrap().size, 1004);
    rig.mv(ROOT, "a", dir, "b").unwrap();
    assert!(rig.find(ROOT, "a").is_ok(), "two names of one inode: rename does nothing");
    rig.unlink(ROOT, name("a")).unwrap();
    let rig = rig.remount();
    let dir = rig.find(ROOT, "d").unwrap().ino;
    let attr = rig.find(dir, "b").unwrap();
    assert_eq!((attr.ino, attr.nlink), (file, 1));
    assert_eq!(&rig.contents(file)[998..], &[7, 7, b'm', b'o', b'r', b'e']);
    assert!(matches!(rig.link(dir, ROOT, name("x")), Err(FsError::NotPermitted)));
    rig.unlink(dir, name("b")).unwrap();
    assert!(matches!(rig.link(file, ROOT, name("x")), Err(FsError::NotFound)));
}

#[test]
fn a_file_unlinked_while_open_lives_until_its_release() {
    let rig = Rig::new();
    let file = rig.mk(ROOT, "a");
    rig.put_at(file, 0, b"alive");
    let handle = rig.open_as(file, BOTH);
    rig.unlink(ROOT, name("a")).unwrap();
    assert_eq!(rig.getattr(file).unwrap().nlink, 0);
    assert_eq!(&rig.read(file, handle, 0, 100).unwrap()[..], b"alive");
    rig.write(file, handle, 5, &[1; 100_000], false).unwrap();
    assert_eq!(rig.getattr(file).unwrap().size, 100_005);
    assert!(matches!(rig.link(file, ROOT, name("b")), Err(FsError::NotFound)));
    rig.release(file, handle).unwrap();
    assert_eq!(rig.contents(file).len(), 100_005, "still known to whoever looked it up");
    rig.forget(file, 1);
    assert!(matches!(rig.getattr(file), Err(FsError::Stale)));
    rig.sync().unwrap();
    assert_eq!(rig.check(&mut |_| ()).unwrap().findings, []);
}

/// A program looked a file up, another replaced it, and the first one's open was refused with ESTALE:
/// a reader of a file that is replaced by rename must find the old one or the new one.
#[test]
fn a_file_found_before_its_last_name_went_can_still_be_opened() {
    let rig = Rig::new();
    for (text, size) in [("empty", 0), ("inline", 100), ("chunks", 40_000), ("object", 300_000)] {
        let file = rig.mk(ROOT, text);
        let bytes = vec![b'v'; size];
        rig.put_at(file, 0, &bytes);
        rig.setxattr(file, b"user.x", b"y", XattrMode::Set).unwrap();
        rig.mk(ROOT, "next");
        rig.rename(ROOT, name("next"), ROOT, name(text), RenameMode::Replace).unwrap();
        assert_eq!(rig.contents(file), bytes, "{text}");
        let handle = rig.open_as(file, BOTH);
        rig.write(file, handle, size as u64, &[b'w'; 70_000], false).unwrap();
        rig.release(file, handle).unwrap();
        assert_eq!(rig.getattr(file).unwrap().size, size as u64 + 70_000, "{text}");
        assert_eq!(rig.contents(rig.find(ROOT, text).unwrap().ino), b"", "{text}");
        rig.forget(file, 1);
        assert!(matches!(rig.getattr(file), Err(FsError::Stale)), "{text}");
        rig.sync().unwrap();
        let report = rig.check(&mut |_| ()).unwrap();
        assert_eq!((report.findings, report.chunks, report.objects), (vec![], 0, 0), "{text}");
    }
}

#[test]
fn a_temporary_file_can_get_a_name() {
    let rig = Rig::new();
    let (entry, opened) = rig.tmpfile(Caller::ROOT, ROOT, 0o600, BOTH).unwrap();
    let ino = entry.attr.ino;
    assert_eq!(entry.attr.nlink, 0);
    rig.write(ino, opened.handle, 0, b"x", false).unwrap();
    rig.link(ino, ROOT, name("named")).unwrap();
    rig.release(ino, opened.handle).unwrap();
    let rig = rig.remount();
    assert_eq!(rig.contents(rig.find(ROOT, "named").unwrap().ino), b"x");
    let (entry, opened) = rig.tmpfile(Caller::ROOT, ROOT, 0o600, WRITE).unwrap();
    rig.release(entry.attr.ino, opened.handle).unwrap();
    rig.forget(entry.attr.ino, 1);
    assert!(matches!(rig.getattr(entry.attr.ino), Err(FsError::Stale)));
}

#[test]
fn readdir_goes_on_where_it_stopped_while_names_come_and_go() {
    let rig = Rig::new();
    let names: Vec<String> = (0..100).map(|i| format!("n{i:03}")).collect();
    for text in &names {
        rig.mk(ROOT, text);
    }
    for step in [1, 2, 7, 1000] {
        assert_eq!(rig.list_by(ROOT, step), names);
    }
    let (mut seen, mut cookie, mut done) = (Vec::new(), 0, false);
    while !done {
        done = true;
        rig.readdir(ROOT, cookie, true, &mut |entry| {
            if !done {
                return false;
            }
            done = false;
            cookie = entry.cookie;
            seen.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        })
        .unwrap();
        if seen.len() == 50 {
            for text in seen.iter().filter(|text| !text.starts_with('.')) {
                rig.unlink(ROOT, name(text)).unwrap();
            }
        }
    }
    seen.retain(|text| !text.starts_with('.'));
    seen.sort();
    assert_eq!(seen, names, "each name once, although the first half was removed meanwhile");
}

#[test]
fn readdir_with_attributes_counts_lookups_of_what_was_taken() {
    let rig = Rig::new();
    let file = rig.mk(ROOT, "f");
    rig.forget(file, 1);
    assert!(matches!(rig.getattr(file), Err(FsError::Stale)));
    rig.readdir(ROOT, 2, true, &mut |entry| {
        assert_eq!(entry.attr.unwrap().ino, file);
        false
    })
    .unwrap();
    assert!(matches!(rig.getattr(file), Err(FsError::Stale)), "not taken, not counted");
    rig.readdir(ROOT, 2, true, &mut |_| true).unwrap();
    assert_eq!(rig.getattr(file).unwrap().ino, file);
    rig.forget(file, 1);
    assert!(matches!(rig.getattr(file), Err(FsError::Stale)));
}

/// The last lookup was forgotten while an open was under way, which kept the orphan for the opener; the open
/// failed, and nobody removed the orphan before the next mount.
#[test]
fn an_open_that_fails_while_the_file_is_forgotten_leaves_nothing() {
    let sim = sim_store(1, &FormatOptions::default());
    let env = Arc::new(interposed(&sim));
    let options = MountOptions::default();
    let fs = VarveFs::open(Arc::clone(&env) as Arc<dyn Env>, Path::new(STORE), options).unwrap();
    let fs = Arc::new(fs);
    let ino = fs.mk(ROOT, "f");
    fs.put_at(ino, 0, &[1; 100_000]);
    fs.unlink(ROOT, name("f")).unwrap();
    let other = Arc::clone(&fs);
    *env.hooks.instead.lock() = Some(Box::new(move || other.forget(ino, 1)));
    assert!(matches!(fs.open(ino, READ), Err(FsError::Storage(_))));
    assert!(env.hooks.instead.lock().is_none(), "the object was not opened");
    assert!(matches!(fs.getattr(ino), Err(FsError::Stale)));
    fs.sync().unwrap();
    assert_eq!(fs.check(&mut |_| ()).unwrap().findings, []);
    let objects = sim.files_raw().into_iter().filter(|path| path.starts_with("/store/objects"));
    assert_eq!(objects.count(), 0);
}

#[test]
fn a_file_and_a_directory_may_have_more_than_65_000_links() {
    const MANY: u32 = 66_000;
    let rig = Rig::new();
    let (file, dir) = (rig.mk(ROOT, "file"), rig.mk_dir(ROOT, "dir"));
    for n in 1..MANY {
        rig.link(file, dir, name(&format!("name-{n}"))).unwrap();
        rig.forget(file, 1);
    }
    assert_eq!(rig.getattr(file).unwrap().nlink, MANY);
    for n in 2..MANY {
        rig.mk_dir(dir, &format!("dir-{n}"));
    }
    assert_eq!(rig.getattr(dir).unwrap().nlink, MANY);
    for n in 1..MANY {
        rig.unlink(dir, name(&format!("name-{n}"))).unwrap();
    }
    assert_eq!(rig.getattr(file).unwrap().nlink, 1);
}
