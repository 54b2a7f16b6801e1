//! Formatting, opening, locking.

use std::path::Path;
use std::sync::Arc;

use varve_engine::StoreError;
use varve_env::sim::{SimEnv, SimOp};
use varve_env::{Env, OpenMode};
use varve_fs::superblock::SUPERBLOCK_NAME;
use varve_fs::{FormatOptions, MountOptions, VarveFs, format, holder};
use varve_vfs::{Caller, FsError, SetAttr, Vfs, XattrMode};

use crate::crash::{STORE, open};
use crate::support::{Calls, READ, ROOT, Rig, WRITE, name, os_env, store_of};

#[test]
fn format_refuses_what_is_not_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_of(dir.path());
    let options = FormatOptions::default();
    format(&os_env(), &store, &options).unwrap();
    let again = format(&os_env(), &store, &FormatOptions { force: true, ..options.clone() });
    assert!(matches!(again, Err(StoreError::Invalid(text)) if text.contains("already")));
    let other = dir.path().join("other");
    os_env().create_dir(&other).unwrap();
    os_env().open(&other.join("file"), OpenMode::CreateNew).unwrap();
    assert!(matches!(format(&os_env(), &other, &options), Err(StoreError::Invalid(_))));
    format(&os_env(), &other, &FormatOptions { force: true, ..options.clone() }).unwrap();
    let odd = FormatOptions { large_file_threshold_bytes: 1, ..options };
    assert!(matches!(format(&os_env(), &dir.path().join("x"), &odd), Err(StoreError::Invalid(_))));
}

/// A new root and a new key of names were written among the rows of a load that had failed: what was in them was found under no name.
#[test]
fn format_takes_no_directory_in_which_parts_of_a_store_are_left() {
    for left in ["engine", "objects", "views", "kept"] {
        let env = SimEnv::new(3);
        let (dyn_env, store): (Arc<dyn Env>, _) = (env.clone(), Path::new("/store"));
        let options = FormatOptions { force: true, ..FormatOptions::default() };
        env.create_dir(store).unwrap();
        if left == "engine" {
            format(&dyn_env, store, &options).unwrap();
            for name in [SUPERBLOCK_NAME, "VARVE.copy"] {
                env.remove_raw(&store.join(name)).unwrap();
            }
        } else {
            env.create_dir(&store.join(left)).unwrap();
            env.open(&store.join(left).join("7"), OpenMode::CreateNew).unwrap();
        }
        let before = env.files_raw();
        for force in [true, false] {
            let refused = format(&dyn_env, store, &FormatOptions { force, ..options.clone() });
            assert!(
                matches!(&refused, Err(StoreError::Invalid(text)) if text.contains(&format!("/store/{left}"))),
                "{refused:?}"
            );
        }
        assert_eq!(env.files_raw(), before);
    }
}

#[test]
fn a_store_is_open_once_and_says_by_whom() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_of(dir.path());
    format(&os_env(), &store, &FormatOptions::default()).unwrap();
    let options = MountOptions { mount_point: Some("/mnt/x".into()), ..MountOptions::default() };
    let fs = VarveFs::open(os_env(), &store, options.clone()).unwrap();
    let second = VarveFs::open(os_env(), &store, options.clone()).unwrap_err();
    assert!(matches!(second, StoreError::Locked { holder, .. } if holder.contains("/mnt/x")));
    assert!(holder(os_env().as_ref(), &store).unwrap().contains(&std::process::id().to_string()));
    assert!(serde_json::from_str::<serde_json::Value>(&fs.status_json()).is_ok());
    fs.close().unwrap();
    assert!(matches!(fs.find(ROOT, "x"), Err(FsError::Storage(_))));
    let fs = VarveFs::open(os_env(), &store, options).unwrap();
    assert!(fs.statfs().unwrap().blocks > 0);
}

/// Numbers that are passed over when a store is opened are not in use.
#[test]
fn inodes_in_use_are_those_that_there_are() {
    let env = SimEnv::new(7);
    let dyn_env: Arc<dyn Env> = env.clone();
    format(&dyn_env, Path::new(STORE), &FormatOptions::default()).unwrap();
    let in_use = |fs: &VarveFs| {
        let room = fs.statfs().unwrap();
        room.files - room.files_free
    };
    for already in 0..3 {
        let fs = open(&env);
        assert_eq!(in_use(&fs), already);
        fs.mk(ROOT, &format!("f{already}"));
        assert_eq!(in_use(&fs), already + 1);
        fs.close().unwrap();
    }
    let fs = open(&env);
    fs.unlink(ROOT, name("f0")).unwrap();
    assert_eq!(in_use(&fs), 2);
}

#[test]
fn what_is_no_store_or_damaged_is_told_apart() {
    let env = SimEnv::new(1);
    let dyn_env: Arc<dyn Env> = env.clone();
    let store = Path::new("/store");
    let open = || VarveFs::open(dyn_env.clone(), store, MountOptions::default());
    assert!(matches!(open(), Err(StoreError::NotAStore { .. })));
    format(&dyn_env, store, &FormatOptions::default()).unwrap();
    open().unwrap();
    env.damage(&store.join(SUPERBLOCK_NAME), 30, 1).unwrap();
    assert!(matches!(open(), Err(StoreError::Damaged { .. })));
}

/// A format that is cut short leaves no store, or a whole one.
#[test]
fn format_is_atomic_at_every_power_cut() {
    let count = {
        let env = SimEnv::new(2);
        let dyn_env: Arc<dyn Env> = env.clone();
        format(&dyn_env, Path::new("/store"), &FormatOptions::default()).unwrap();
        env.op_count()
    };
    for crash in 0..=count {
        let env = SimEnv::new(2);
        let dyn_env: Arc<dyn Env> = env.clone();
        env.crash_after(crash);
        let done = format(&dyn_env, Path::new("/store"), &FormatOptions::default()).is_ok();
        for cut in 0..3 {
            let env: Arc<dyn Env> = match cut {
                0 => env.power_cut_keep_nothing(),
                1 => env.power_cut_keep_all(),
                _ => env.power_cut(crash),
            };
            match VarveFs::open(env, Path::new("/store"), MountOptions::default()) {
                Ok(fs) => assert_eq!(fs.check(&mut |_| ()).unwrap().findings, []),
                Err(StoreError::NotAStore { .. }) => assert!(!done, "operation {crash}"),
                Err(error) => panic!("operation {crash}, cut {cut}: {error}"),
            }
        }
    }
}

/// The superblock gets its name when its bytes are durable; without that sync an empty one is found.
#[test]
fn canary_a_superblock_renamed_before_its_sync_is_noticed() {
    let env = SimEnv::new(2);
    env.ignore_syncs_of(SimOp::Sync, SUPERBLOCK_NAME);
    let dyn_env: Arc<dyn Env> = env.clone();
    format(&dyn_env, Path::new("/store"), &FormatOptions::default()).unwrap();
    let env = env.power_cut_keep_nothing();
    let opened = VarveFs::open(env, Path::new("/store"), MountOptions::default());
    assert!(matches!(opened, Err(StoreError::Damaged { .. })));
}

#[test]
fn a_read_only_mount_refuses_every_change() {
    let rig = Rig::new();
    let file = rig.mk(ROOT, "f");
    rig.put_at(file, 0, &[1; 100_000]);
    let dir = rig.mk_dir(ROOT, "d");
    let path = store_of(rig.dir.path());
    rig.fs.close().unwrap();
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let fs = VarveFs::open(os_env(), &path, options).unwrap();
    assert_eq!(fs.find(ROOT, "f").unwrap().size, 100_000);
    assert_eq!(fs.contents(file).len(), 100_000);
    let read_only = |result: Result<(), FsError>| assert!(matches!(result, Err(FsError::ReadOnly)));
    read_only(fs.mkdir(Caller::ROOT, ROOT, name("x"), 0o755).map(drop));
    read_only(fs.create(Caller::ROOT, ROOT, name("x"), 0o644, READ).map(drop));
    read_only(fs.tmpfile(Caller::ROOT, ROOT, 0o644, WRITE).map(drop));
    read_only(fs.unlink(ROOT, name("f")));
    read_only(fs.rmdir(ROOT, name("d")));
    read_only(fs.mv(ROOT, "f", dir, "f"));
    read_only(fs.link(file, dir, name("f")).map(drop));
    read_only(fs.open(file, WRITE).map(drop));
    read_only(
        fs.setattr(Caller::ROOT, file, SetAttr { perm: Some(0), ..SetAttr::default() }).map(drop),
    );
    read_only(fs.setxattr(file, b"user.a", b"", XattrMode::Set));
    read_only(fs.removexattr(file, b"user.a"));
}
