//! A file system that changes hands while files are open: nobody who uses it notices.

use std::path::Path;
use std::sync::Arc;

use varve_env::Env;
use varve_env::os::OsEnv;
use varve_env::sim::SimEnv;
use varve_fs::{FormatOptions, HandedOver, MountOptions, VarveFs, format};
use varve_testkit::fsops::{Lockstep, Times, tree};
use varve_types::InodeId;
use varve_vfs::{Caller, FsError, Handle, OpenFlags, Vfs};

use crate::support::{BOTH, Calls, READ, ROOT, Rig, name, store_of};

fn succeed(fs: VarveFs, env: Arc<dyn Env>, dir: &Path, options: &MountOptions) -> VarveFs {
    fs.sync().unwrap();
    let handed_over = fs.hand_over().unwrap();
    drop(fs);
    VarveFs::resume(env, dir, options.clone(), handed_over).unwrap()
}

/// The same random operations as on the model, with files left open over every handover.
fn lockstep(seed: u64, format_options: &FormatOptions, options: &MountOptions) {
    let env = SimEnv::new(seed);
    let dyn_env: Arc<dyn Env> = env.clone();
    let store = Path::new("/store");
    format(&dyn_env, store, format_options).unwrap();
    let mut lockstep = Lockstep::new(seed);
    let mut fs = VarveFs::open(dyn_env.clone(), store, options.clone()).unwrap();
    for _ in 0..8 {
        lockstep.run(&fs, 150).unwrap();
        let before = tree(&fs).unwrap();
        fs = succeed(fs, dyn_env.clone(), store, options);
        assert_eq!(before.differences(&tree(&fs).unwrap(), Times::Compare), [""; 0], "seed {seed}");
    }
    lockstep.check_tree(&fs).unwrap();
    lockstep.release_all(&fs).unwrap();
    fs.sync().unwrap();
    assert_eq!(fs.check(&mut |_| ()).unwrap().findings, [], "seed {seed}");
    let before = tree(&fs).unwrap();
    fs.close().unwrap();
    let fs = VarveFs::open(dyn_env, store, options.clone()).unwrap();
    assert_eq!(before.differences(&tree(&fs).unwrap(), Times::Compare), [""; 0], "seed {seed}");
    lockstep.check_tree(&fs).unwrap();
}

#[test]
fn random_operations_go_on_over_handovers() {
    for seed in 500..506 {
        lockstep(seed, &FormatOptions::default(), &MountOptions::default());
    }
    let low = FormatOptions { large_file_threshold_bytes: 4096, ..FormatOptions::default() };
    for seed in 510..516 {
        lockstep(seed, &low, &MountOptions::default());
    }
    let tiny = MountOptions { located_inodes_max: Some(64), ..MountOptions::default() };
    for seed in 520..523 {
        lockstep(seed, &FormatOptions::default(), &tiny);
    }
    let one = MountOptions { open_files_max: 2, ..MountOptions::default() };
    for seed in 530..533 {
        lockstep(seed, &low, &one);
    }
}

/// Files in every state a file can be open in.
struct Everything {
    small: (InodeId, Handle),
    large: (InodeId, Handle),
    appended: (InodeId, Handle),
    removed_small: (InodeId, Handle),
    removed_large: (InodeId, Handle),
    temporary: (InodeId, Handle),
    exclusive: (InodeId, Handle),
}

static LARGE: [u8; 100_000] = [7; 100_000];

fn open_everything(fs: &VarveFs) -> Everything {
    let make = |text: &str, flags: OpenFlags, data: &[u8]| {
        let (entry, opened) = fs.create(Caller::ROOT, ROOT, name(text), 0o644, flags).unwrap();
        let (ino, handle) = (entry.attr.ino, opened.handle);
        fs.write(ino, handle, 0, data, false).unwrap();
        (ino, handle)
    };
    let nameless = |flags: OpenFlags| {
        let (entry, opened) = fs.tmpfile(Caller::ROOT, ROOT, 0o600, flags).unwrap();
        fs.write(entry.attr.ino, opened.handle, 0, b"nameless", false).unwrap();
        (entry.attr.ino, opened.handle)
    };
    let everything = Everything {
        small: make("small", BOTH, b"small"),
        large: make("large", BOTH, &LARGE),
        appended: make("appended", OpenFlags { append: true, ..BOTH }, b"first "),
        removed_small: make("removed small", BOTH, &LARGE[..30_000]),
        removed_large: make("removed large", BOTH, &LARGE),
        temporary: nameless(BOTH),
        exclusive: nameless(OpenFlags { exclusive: true, ..BOTH }),
    };
    fs.unlink(ROOT, name("removed small")).unwrap();
    fs.unlink(ROOT, name("removed large")).unwrap();
    everything
}

#[test]
fn whatever_is_open_goes_on() {
    let rig = Rig::new();
    let before = open_everything(&rig);
    let gone = rig.mk(ROOT, "known and gone");
    rig.unlink(ROOT, name("known and gone")).unwrap();
    let Rig { fs, dir, .. } = rig;
    let options = MountOptions::default();
    let mut fs = succeed(fs, OsEnv::new(), &store_of(dir.path()), &options);
    fs = succeed(fs, OsEnv::new(), &store_of(dir.path()), &options);
    let read = |(ino, handle): (InodeId, Handle)| fs.read(ino, handle, 0, 1 << 20).unwrap();
    assert_eq!(read(before.small), b"small"[..]);
    assert_eq!(read(before.large), LARGE[..]);
    assert_eq!(read(before.removed_small), LARGE[..30_000]);
    assert_eq!(read(before.removed_large), LARGE[..]);
    let (ino, handle) = before.appended;
    fs.write(ino, handle, 0, b"second", false).unwrap();
    assert_eq!(read(before.appended), b"first second"[..]);
    assert_eq!(fs.getattr(gone).unwrap().nlink, 0);
    fs.link(before.temporary.0, ROOT, name("named")).unwrap();
    let refused = fs.link(before.exclusive.0, ROOT, name("never"));
    assert!(matches!(refused, Err(FsError::NotFound)));
    assert_eq!(fs.contents(before.temporary.0), b"nameless");
    let new = fs.open_as(before.small.0, READ);
    let old = [before.small, before.large, before.appended, before.removed_small];
    let rest = [before.removed_large, before.temporary, before.exclusive];
    for (ino, handle) in old.into_iter().chain(rest) {
        assert_ne!(handle, new, "a handle is given once");
        fs.release(ino, handle).unwrap();
    }
    fs.release(before.small.0, new).unwrap();
    for (ino, _) in [before.removed_small, before.removed_large, before.exclusive] {
        fs.forget(ino, 1);
        assert!(matches!(fs.getattr(ino), Err(FsError::Stale)));
    }
    fs.sync().unwrap();
    let report = fs.check(&mut |_| ()).unwrap();
    assert_eq!(report.findings, []);
    assert_eq!(report.objects, 1, "only the large file with a name is left");
}

/// The process that took over dies; the next mount must find the orphans.
#[test]
fn orphans_that_changed_hands_are_reclaimed_after_a_crash() {
    let env = SimEnv::new(1);
    let dyn_env: Arc<dyn Env> = env.clone();
    let store = Path::new("/store");
    format(&dyn_env, store, &FormatOptions::default()).unwrap();
    let fs = VarveFs::open(dyn_env.clone(), store, MountOptions::default()).unwrap();
    let before = open_everything(&fs);
    let fs = succeed(fs, dyn_env.clone(), store, &MountOptions::default());
    assert_eq!(fs.getattr(before.removed_large.0).unwrap().nlink, 0);
    let next: Arc<dyn Env> = env.process_kill();
    drop(fs);
    let fs = VarveFs::open(next, store, MountOptions::default()).unwrap();
    for (ino, _) in [before.removed_small, before.removed_large, before.temporary] {
        assert!(matches!(fs.getattr(ino), Err(FsError::Stale)));
    }
    fs.sync().unwrap();
    assert_eq!(fs.check(&mut |_| ()).unwrap().findings, []);
    assert_eq!(fs.list(ROOT), ["appended", "large", "small"]);
}

#[test]
fn the_lock_is_held_throughout_and_a_broken_state_is_refused() {
    let rig = Rig::new();
    let Rig { fs, dir, .. } = rig;
    let store = store_of(dir.path());
    let HandedOver { state, lock } = fs.hand_over().unwrap();
    let other = VarveFs::open(OsEnv::new(), &store, MountOptions::default());
    assert!(matches!(other, Err(varve_engine::StoreError::Locked { .. })));
    assert!(lock.fd().is_some(), "the lock can go to another process");
    let half = HandedOver { state: state[..state.len() / 2].to_vec(), lock };
    let resumed = VarveFs::resume(OsEnv::new(), &store, MountOptions::default(), half);
    assert!(resumed.unwrap_err().to_string().contains("handed over"));
    VarveFs::open(OsEnv::new(), &store, MountOptions::default()).unwrap().close().unwrap();
}
