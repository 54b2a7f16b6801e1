//! Files that were open when their last name went, over restarts: a store that keeps them lets their holders open them again, and
//! removes them when they are closed or nobody may open them any more.

use std::path::Path;
use std::sync::Arc;

use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_fs::fsck::{CheckOptions, Finding, Report, Severity, check_store};
use varve_fs::{FormatOptions, MountOptions, VarveFs};
use varve_types::InodeId;
use varve_vfs::{Caller, FsError, OpenFlags, Place, RenameMode, Vfs, XattrMode};

use crate::crash::{STORE, sim_store};
use crate::support::{BOTH, Calls, READ, ROOT, WRITE, name};

const SIZES: [usize; 4] = [0, 100, 40_000, 300_000];

fn open(env: &Arc<SimEnv>, keep_orphans: bool) -> VarveFs {
    let env: Arc<dyn Env> = env.clone();
    let options = MountOptions { keep_orphans, ..MountOptions::default() };
    VarveFs::open(env, Path::new(STORE), options).unwrap()
}

/// How the server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Kill,
    Close,
}

/// Ends the server and starts it again.
fn restart(env: &mut Arc<SimEnv>, fs: VarveFs, end: End, keep_orphans: bool) -> VarveFs {
    match end {
        End::Kill => *env = env.process_kill(),
        End::Close => fs.close().unwrap(),
    }
    drop(fs);
    if end == End::Close {
        // Also for who looks while nobody has it open.
        let env: Arc<dyn Env> = env.clone();
        let options = CheckOptions::default();
        is_sound(&check_store(env, Path::new(STORE), &options, &mut |_| ()).unwrap());
    }
    open(env, keep_orphans)
}

/// Nothing is wrong; what waits for its end is no error.
fn is_sound(report: &Report) {
    let wrong = |severity| severity != Severity::Unfinished;
    let wrong: Vec<_> = report.findings.iter().filter(|found| wrong(found.severity())).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// How many orphans a check reports. Objects that wait for the reaper do not count.
fn orphans(fs: &VarveFs) -> usize {
    let report = fs.check(&mut |_| ()).unwrap();
    is_sound(&report);
    let is_orphan = |found: &&Finding| match found {
        Finding::Pending { what, .. } => what.starts_with("removed while in use"),
        _ => false,
    };
    report.findings.iter().filter(is_orphan).count()
}

/// No row and no object of a file is left.
fn is_empty(fs: &VarveFs) {
    fs.sync().unwrap();
    let report = fs.check(&mut |_| ()).unwrap();
    assert_eq!(report.findings, []);
    assert_eq!((report.files, report.chunks, report.objects), (0, 0, 0));
    let usage = fs.usage(ROOT).unwrap();
    assert_eq!((usage.files, usage.dirs), (0, 0));
}

/// Files of all sizes, open for writing, whose names are gone.
fn removed(fs: &VarveFs) -> Vec<InodeId> {
    let remove = |size: usize| {
        let text = format!("f{size}");
        let ino = fs.mk(ROOT, &text);
        fs.put_at(ino, 0, &vec![7; size]);
        fs.setxattr(ino, b"user.x", b"y", XattrMode::Set).unwrap();
        fs.open_as(ino, BOTH);
        fs.unlink(ROOT, name(&text)).unwrap();
        ino
    };
    let mut inos = SIZES.map(remove).to_vec();
    let (entry, _) = fs.tmpfile(Caller::ROOT, ROOT, 0o600, BOTH).unwrap();
    inos.push(entry.attr.ino);
    inos
}

#[test]
fn an_open_file_without_a_name_is_opened_again_after_a_restart() {
    for end in [End::Kill, End::Close] {
        let mut env = sim_store(3, &FormatOptions::default());
        let fs = open(&env, true);
        let inos = removed(&fs);
        // Over several restarts, as the server may die again in its grace period.
        let fs = restart(&mut env, fs, end, true);
        assert_eq!(orphans(&fs), inos.len());
        let fs = restart(&mut env, fs, end, true);
        assert_eq!(orphans(&fs), inos.len(), "{end:?}");
        let mut held = Vec::new();
        for (ino, size) in inos.iter().zip(SIZES.into_iter().chain([0])) {
            let (one, other) = (fs.reopen(*ino, None, BOTH).unwrap(), fs.reopen(*ino, None, READ));
            let bytes = fs.read(*ino, one.handle, 0, 1 << 20).unwrap();
            assert!(bytes == vec![7; size], "{end:?}: {size} bytes");
            fs.write(*ino, one.handle, size as u64, &[8; 5000], false).unwrap();
            let bytes = fs.read(*ino, one.handle, size as u64, 1 << 20).unwrap();
            assert!(bytes == [8; 5000][..]);
            assert!(matches!(fs.lookup_at(*ino, None, false), Err(FsError::Stale)));
            held.push((*ino, one.handle, other.unwrap().handle));
        }
        // The grace period is over, and leaves alone what is open.
        fs.end_grace().unwrap();
        assert_eq!(orphans(&fs), inos.len());
        for (ino, one, other) in held {
            fs.release(ino, one).unwrap();
            assert!(!fs.read(ino, other, 0, 1 << 20).unwrap().is_empty());
            fs.release(ino, other).unwrap();
            assert!(matches!(fs.reopen(ino, None, READ), Err(FsError::Stale)));
        }
        is_empty(&fs);
        fs.end_grace().unwrap();
        is_empty(&restart(&mut env, fs, end, true));
    }
}

#[test]
fn what_nobody_opens_again_goes_with_the_grace_period() {
    for end in [End::Kill, End::Close] {
        let mut env = sim_store(4, &FormatOptions::default());
        let fs = open(&env, true);
        let inos = removed(&fs);
        let fs = restart(&mut env, fs, end, true);
        let opened = fs.reopen(inos[2], None, WRITE).unwrap();
        fs.end_grace().unwrap();
        assert_eq!(orphans(&fs), 1);
        for ino in inos.iter().filter(|ino| **ino != inos[2]) {
            assert!(matches!(fs.reopen(*ino, None, READ), Err(FsError::Stale)));
        }
        fs.release(inos[2], opened.handle).unwrap();
        is_empty(&fs);
        // Without a grace period the next mount removes them, and so does a close.
        let inos = removed(&fs);
        let fs = restart(&mut env, fs, end, false);
        is_empty(&fs);
        removed(&fs);
        let fs = restart(&mut env, fs, end, true);
        assert_eq!(orphans(&fs), if end == End::Kill { inos.len() } else { 0 });
    }
}

/// Whoever has a file open may have been away when others moved it, and when the server began anew.
#[test]
fn an_open_file_that_moved_is_opened_again_where_it_was() {
    for end in [End::Kill, End::Close] {
        let mut env = sim_store(6, &FormatOptions::default());
        let fs = open(&env, true);
        let dir = fs.mk_dir(ROOT, "dir");
        let mut files = Vec::new();
        for size in SIZES {
            let text = format!("f{size}");
            let ino = fs.mk(ROOT, &text);
            fs.put_at(ino, 0, &vec![7; size]);
            let place = fs.place(ino).unwrap();
            fs.open_as(ino, BOTH);
            files.push((ino, text, place, size));
        }
        let other = fs.mk(dir, "other");
        let other_place = fs.place(other).unwrap();
        let mode = RenameMode::Replace;
        for (_, text, ..) in &files {
            fs.rename(ROOT, name(text), dir, name(text), mode).unwrap();
        }
        fs.open_as(other, READ);
        fs.rename(dir, name("f0"), dir, name("other"), RenameMode::Exchange).unwrap();
        fs.rename(dir, name("f0"), dir, name("again"), mode).unwrap();
        let fs = restart(&mut env, fs, end, true);
        files.push((other, "again".to_owned(), other_place, 0));
        files[0].1 = "other".to_owned();
        for (ino, text, place, size) in files {
            let opened = fs.reopen(ino, place, BOTH).unwrap();
            let bytes = fs.read(ino, opened.handle, 0, 1 << 20).unwrap();
            assert!(bytes == vec![7; size], "{end:?}: {size} bytes");
            assert_eq!(fs.lookup(dir, name(&text)).unwrap().attr.ino, ino);
            fs.release(ino, opened.handle).unwrap();
        }
        assert_eq!(orphans(&fs), 0);
    }
}

/// Only what is open pays for that, and only in a store that is served.
#[test]
fn a_file_that_is_not_open_moves_within_rows_of_names() {
    for keep_orphans in [false, true] {
        let env = sim_store(7, &FormatOptions::default());
        let fs = open(&env, keep_orphans);
        let ino = fs.mk(ROOT, "f");
        let place = fs.place(ino).unwrap();
        let opened = (!keep_orphans).then(|| fs.open_as(ino, READ));
        fs.rename(ROOT, name("f"), ROOT, name("g"), RenameMode::Replace).unwrap();
        assert_ne!(fs.place(ino).unwrap(), place);
        if let Some(handle) = opened {
            fs.release(ino, handle).unwrap();
        }
        fs.forget(ino, u64::MAX);
        let refused = fs.reopen(ino, place, READ);
        assert!(matches!(refused, Err(FsError::Stale)), "{refused:?}");
    }
}

/// A file with a name is opened again where it is, and neither cut nor known for longer than it is open.
#[test]
fn a_file_with_a_name_is_opened_again() {
    let mut env = sim_store(5, &FormatOptions::default());
    let fs = open(&env, true);
    let ino = fs.mk(ROOT, "f");
    fs.put_at(ino, 0, b"bytes");
    let place = fs.place(ino).unwrap();
    let fs = restart(&mut env, fs, End::Kill, true);
    assert!(matches!(fs.reopen(ino, None, READ), Err(FsError::Stale)), "it takes a walk");
    let flags = OpenFlags { truncate: true, ..BOTH };
    let opened = fs.reopen(ino, place, flags).unwrap();
    assert_eq!(fs.read(ino, opened.handle, 0, 100).unwrap(), &b"bytes"[..]);
    // It becomes an orphan as any that is open.
    fs.unlink(ROOT, name("f")).unwrap();
    assert_eq!(orphans(&fs), 1);
    fs.end_grace().unwrap();
    assert_eq!(fs.read(ino, opened.handle, 0, 100).unwrap(), &b"bytes"[..]);
    fs.release(ino, opened.handle).unwrap();
    is_empty(&fs);
    // Also with rows whose keys read as if they were of such inodes.
    let dir = fs.mk_dir(ROOT, "d");
    fs.mk(dir, "f");
    for ino in (0..16).chain([1 << 40]) {
        let place = Some(Place::from_bytes([1; Place::BYTES]));
        let refused = fs.reopen(InodeId::new(ino), place, READ);
        assert!(matches!(refused, Err(FsError::Stale | FsError::IsDirectory)), "{ino}");
    }
}

/// A crash while an orphan moves to an object leaves it as it was.
#[test]
fn an_orphan_that_was_growing_is_kept() {
    let grown = |fs: &VarveFs, ino: InodeId, handle| {
        fs.write(ino, handle, 40_000, &[9; 100_000], false).map(drop)
    };
    let begun = || {
        let env = sim_store(6, &FormatOptions::default());
        let fs = open(&env, true);
        let ino = fs.mk(ROOT, "f");
        fs.put_at(ino, 0, &[7; 40_000]);
        let handle = fs.open_as(ino, BOTH);
        fs.unlink(ROOT, name("f")).unwrap();
        (env, fs, ino, handle)
    };
    let points = {
        let (env, fs, ino, handle) = begun();
        let before = env.op_count();
        grown(&fs, ino, handle).unwrap();
        before..env.op_count()
    };
    assert!(points.end - points.start > 3);
    for point in points {
        let (env, fs, ino, handle) = begun();
        env.crash_after(point);
        let _ = grown(&fs, ino, handle);
        let env = env.process_kill();
        drop(fs);
        let fs = open(&env, true);
        assert_eq!(orphans(&fs), 1, "operation {point}");
        let opened = fs.reopen(ino, None, BOTH).unwrap();
        let bytes = fs.read(ino, opened.handle, 0, 1 << 20).unwrap();
        assert!(bytes.len() >= 40_000 && bytes[..40_000] == [7; 40_000], "operation {point}");
        grown(&fs, ino, opened.handle).unwrap();
        assert_eq!(fs.read(ino, opened.handle, 0, 1 << 20).unwrap().len(), 140_000);
        fs.release(ino, opened.handle).unwrap();
        is_empty(&fs);
    }
}
