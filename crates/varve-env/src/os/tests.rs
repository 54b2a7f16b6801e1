//! What only the real machine can show; `tests/it` runs the promises both machines share.

use super::*;

#[test]
fn boot_id_is_the_kernels_and_stable() {
    let text = std::fs::read_to_string(BOOT_ID_PATH).unwrap();
    assert_eq!(Some(OsEnv::new().boot_id()), parse_boot_id(&text));
    assert_eq!(OsEnv::new().boot_id(), OsEnv::new().boot_id());
    assert_eq!(parse_boot_id("00000000-0000-0000-0000-0000000000ff\n"), Some(255));
    assert_eq!(parse_boot_id("no boot id"), None);
}

#[test]
fn files_and_directories_are_closed_to_others() {
    use std::os::unix::fs::PermissionsExt;
    let (env, dir) = (OsEnv::new(), tempfile::tempdir().unwrap());
    env.open(&dir.path().join("f"), OpenMode::CreateNew).unwrap();
    env.create_dir(&dir.path().join("d")).unwrap();
    let mode =
        |name| std::fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o077;
    assert_eq!((mode("f"), mode("d")), (0, 0));
}

#[test]
fn descriptors_are_handed_out_and_not_inherited() {
    let (env, dir) = (OsEnv::new(), tempfile::tempdir().unwrap());
    let file = env.open(&dir.path().join("f"), OpenMode::CreateNew).unwrap();
    let flags = rustix::io::fcntl_getfd(file.fd().unwrap()).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
}

#[test]
fn clocks_and_randomness_move() {
    let env = OsEnv::new();
    let (before, started) = (env.now(), env.monotonic());
    env.sleep(Duration::from_millis(2));
    assert!(env.now() > before);
    assert!(env.monotonic() >= started + Duration::from_millis(2));
    assert_ne!(env.random(), env.random());
    assert!(!env.is_deterministic());
}

#[test]
fn threads_run_and_panics_are_seen() {
    let env = OsEnv::new();
    let good = env.spawn("good", Box::new(|| {})).unwrap();
    assert_eq!(good.join(), Ok(()));
    let bad =
        env.spawn("bad", Box::new(|| std::panic::resume_unwind(Box::new("planned")))).unwrap();
    assert_eq!(bad.join(), Err(ThreadPanicked));
}

#[test]
fn who_only_asks_for_a_lock_is_not_taken_for_its_holder() {
    let (env, dir) = (OsEnv::new(), tempfile::tempdir().unwrap());
    let path = dir.path().join("LOCK");
    assert!(env.is_locked(&path).is_err(), "there is none");
    let lock = env.lock(&path).unwrap().unwrap();
    assert!(env.is_locked(&path).unwrap());
    drop(lock);
    assert!(!env.is_locked(&path).unwrap());
    // As another who asks at the same time.
    let asker = std::fs::File::open(&path).unwrap();
    rustix::fs::flock(&asker, rustix::fs::FlockOperation::LockShared).unwrap();
    assert!(!env.is_locked(&path).unwrap());
    assert!(env.lock(&path).unwrap().is_none());
}

/// A disk that had lost its power, and with it what was not synced, was taken for one whose page cache was still there.
#[test]
fn a_disk_that_is_plugged_in_anew_is_another() {
    let dir = tempfile::tempdir().unwrap();
    let (image, mounted) = (dir.path().join("image"), dir.path().join("mnt"));
    std::fs::create_dir(&mounted).unwrap();
    std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let done = |program: &str, words: &[&std::ffi::OsStr]| {
        let output = std::process::Command::new(program).args(words).output();
        output.is_ok_and(|output| output.status.success())
    };
    let (image, at) = (image.as_os_str(), mounted.as_os_str());
    if !done("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), image]) {
        return varve_testkit::skipped("there is no mkfs.ext4 on this machine");
    }
    let mut ids = Vec::new();
    for _ in 0..2 {
        if !done("mount", &["-o".as_ref(), "loop".as_ref(), image, at]) {
            return varve_testkit::skipped("this user may not mount an image");
        }
        let id = || {
            let env = OsEnv::new();
            env.confine(&mounted).unwrap();
            env.boot_id()
        };
        ids.push((id(), id()));
        assert!(done("umount", &[at]));
    }
    assert!(ids.iter().all(|(one, again)| one == again), "the same to each process: {ids:?}");
    assert_ne!(ids[0].0, ids[1].0);
}
