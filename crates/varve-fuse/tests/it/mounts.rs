//! Mounting, finding and unmounting.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use varve_fuse::{
    MountError, MountMethod, MountOptions, MountTarget, SessionOptions, UnmountError, UnmountMode,
    find_mounts, mount, unmount, walk_apart,
};
use varve_testkit::{Command, PATIENCE, eventually, skipped};
use varve_types::InodeId;

use crate::objectfs::ObjectFs;
use crate::support::{TestMount, model, mounted};

#[test]
fn a_mount_is_listed_with_its_source_until_it_is_unmounted() {
    let Some(mount) = mounted() else { return };
    let dir = mount.dir().canonicalize().unwrap();
    let found: Vec<_> =
        find_mounts().unwrap().into_iter().filter(|found| found.dir == dir).collect();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].source, "test,store");
    assert!(!found[0].read_only);
    mount.finish().unwrap();
    assert!(find_mounts().unwrap().iter().all(|found| found.dir != dir));
    assert!(matches!(unmount(&dir, UnmountMode::Plain), Err(UnmountError::NotMounted(_))));
}

#[test]
fn the_setuid_helper_mounts_and_unmounts() {
    let mut options = MountOptions::new("st\\or,e");
    options.methods = vec![MountMethod::Fusermount];
    let fs = model();
    let Some(mount) = TestMount::with_options(fs, &options, &SessionOptions::default()) else {
        return;
    };
    assert_eq!(mount.method(), MountMethod::Fusermount);
    fs::write(mount.path("a"), b"x").unwrap();
    assert_eq!(fs::read(mount.path("a")).unwrap(), b"x");
    let dir = mount.dir().canonicalize().unwrap();
    let found = find_mounts().unwrap().into_iter().find(|found| found.dir == dir).unwrap();
    assert_eq!(found.source, "st\\or,e");
    mount.finish().unwrap();
}

#[test]
fn a_process_with_threads_is_told_why_it_gets_no_namespace() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = MountOptions::new("store");
    options.methods = vec![MountMethod::Namespace];
    std::thread::scope(|scope| {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || ended.recv());
        match mount(dir.path(), &options) {
            Err(MountError::Refused { refusals, .. }) => {
                assert_eq!(refusals.len(), 1);
                assert!(refusals[0].reason.contains("threads"), "{}", refusals[0]);
            }
            other => panic!("{other:?}"),
        }
        drop(end);
    });
}

#[test]
fn two_mounts_at_once_do_not_mix() {
    let (Some(one), Some(two)) = (mounted(), mounted()) else { return };
    fs::write(one.path("a"), b"one").unwrap();
    fs::write(two.path("a"), b"two").unwrap();
    assert_eq!(fs::read(one.path("a")).unwrap(), b"one");
    assert_eq!(fs::read(two.path("a")).unwrap(), b"two");
    one.finish().unwrap();
    assert_eq!(fs::read(two.path("a")).unwrap(), b"two");
    two.finish().unwrap();
}

#[test]
fn a_mount_in_use_stays_unless_it_is_unmounted_lazily() {
    let Some(mount) = mounted() else { return };
    let file = fs::File::create(mount.path("a")).unwrap();
    assert!(matches!(unmount(mount.dir(), UnmountMode::Plain), Err(UnmountError::Busy(_))));
    unmount(mount.dir(), UnmountMode::Lazy).unwrap();
    assert!(!mount.path("a").exists());
    file.write_all_at(b"still served", 0).unwrap();
    drop(file);
    mount.join().unwrap();
}

const NO_CONTROL: &str = "the kernel's control of FUSE connections is not mounted";

/// Whether the connection of a file can be ended by the kernel's control.
fn has_control(file: &fs::File) -> bool {
    let connection = rustix::fs::minor(file.metadata().unwrap().dev()).to_string();
    Path::new("/sys/fs/fuse/connections").join(connection).exists()
}

/// What could not be served was only taken out of the tree by who has mounted without CAP_SYS_ADMIN: whoever waited for an answer, and
/// so the threads that served, waited for each other.
#[test]
fn a_mount_that_is_given_up_ends_whoever_has_mounted() {
    let Some(mount) = mounted() else { return };
    let file = fs::File::create(mount.path("a")).unwrap();
    if !has_control(&file) {
        return skipped(NO_CONTROL);
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rights = capabilities(None).unwrap();
            rights.effective.remove(CapabilitySet::SYS_ADMIN);
            set_capabilities(None, rights).unwrap();
            mount.stop_handle().give_up();
        });
    });
    mount.join().unwrap();
    assert!(file.write_all_at(b"not served any more", 0).is_err());
}

/// The number of the mount was looked for in the mount table: of one that was detached it was not found.
#[test]
fn a_detached_mount_that_is_given_up_ends() {
    let Some(mount) = mounted() else { return };
    let file = fs::File::create(mount.path("a")).unwrap();
    if !has_control(&file) {
        return skipped(NO_CONTROL);
    }
    unmount(mount.dir(), UnmountMode::Lazy).unwrap();
    file.write_all_at(b"still served", 0).unwrap();
    mount.stop_handle().give_up();
    assert!(file.write_all_at(b"not served any more", 0).is_err());
    mount.join().unwrap();
}

/// There it could be that of another one, which has its numbers since.
#[test]
fn a_mount_that_is_gone_ends_no_other() {
    let Some(gone) = mounted() else { return };
    let stop = gone.stop_handle().clone();
    gone.finish().unwrap();
    let options = MountOptions::new("other");
    let Some(other) = TestMount::with_options(model(), &options, &SessionOptions::default()) else {
        return;
    };
    let file = fs::File::create(other.path("a")).unwrap();
    stop.give_up();
    file.write_all_at(b"still served", 0).unwrap();
    drop(file);
    other.finish().unwrap();
}

#[test]
fn a_read_only_mount_refuses_changes() {
    let mut options = MountOptions::new("store");
    options.read_only = true;
    let fs = model();
    let Some(mount) = TestMount::with_options(fs, &options, &SessionOptions::default()) else {
        return;
    };
    let refused = fs::write(mount.path("a"), b"x").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    let dir = mount.dir().canonicalize().unwrap();
    assert!(find_mounts().unwrap().iter().any(|found| found.dir == dir && found.read_only));
    mount.finish().unwrap();
}

#[test]
fn only_directories_can_be_mounted_on() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let options = MountOptions::new("store");
    assert!(matches!(mount(file.path(), &options), Err(MountError::BadDirectory { .. })));
    let missing = file.path().join("missing");
    assert!(matches!(mount(&missing, &options), Err(MountError::BadDirectory { .. })));
}

/// Set in the process that a test kills.
const TO_BE_KILLED: &str = "VARVE_TEST_TO_BE_KILLED";

#[test]
fn a_server_that_is_killed_while_it_waits_for_itself_is_gone() {
    if std::env::var_os(TO_BE_KILLED).is_some() {
        return wait_for_itself();
    }
    let Some(probe) = mounted() else { return };
    probe.finish().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "mounts::a_server_that_is_killed_while_it_waits_for_itself_is_gone"])
        .env(TO_BE_KILLED, "1")
        .env("TMPDIR", dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let tasks = format!("/proc/{}/task", server.id());
    eventually("a walk", || {
        let children =
            fs::read_dir(&tasks).unwrap().map(|task| task.unwrap().path().join("children"));
        children.flat_map(fs::read_to_string).any(|children| !children.is_empty())
    });
    // Until the request is read.
    std::thread::sleep(Duration::from_millis(300));
    server.kill().unwrap();
    let begin = Instant::now();
    let mut is_gone = false;
    while !is_gone && begin.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(5));
        is_gone = server.try_wait().unwrap().is_some();
    }
    let inside = dir.path().canonicalize().unwrap();
    for found in find_mounts().unwrap().iter().filter(|found| found.dir.starts_with(&inside)) {
        unmount(&found.dir, UnmountMode::Force).unwrap();
    }
    server.wait().unwrap();
    assert!(is_gone, "it was there until its mount was taken away");
}

/// Serves a mount and waits for an answer that never comes.
fn wait_for_itself() {
    let mut fs = ObjectFs::new();
    fs.syncs_together = Some(Barrier::new(2));
    let mount = TestMount::new(Arc::new(fs), &SessionOptions::default()).unwrap();
    let path = mount.path("a");
    fs::write(&path, b"x").unwrap();
    let walk = || (fs::File::open(&path).and_then(|file| file.sync_all()), ());
    walk_apart(None, walk).unwrap();
}

/// A file that could not be written kept all behind it from being written.
#[test]
fn all_files_are_written_back_that_can_be() {
    let fs = Arc::new(ObjectFs::new());
    let Some(mount) = TestMount::new(fs.clone(), &SessionOptions::default()) else { return };
    let dir = mount.dir().canonicalize().unwrap();
    let id = find_mounts().unwrap().into_iter().find(|found| found.dir == dir).unwrap().id;
    let [absent, failing, last] = ["absent", "failing", "last"].map(|name| {
        fs::write(mount.path(name), name).unwrap();
        let ino = InodeId::new(fs::metadata(mount.path(name)).unwrap().ino());
        (ino, PathBuf::from(name))
    });
    fs::remove_file(mount.path("absent")).unwrap();
    *fs.sync_fails.lock() = Some(failing.0);
    let target = MountTarget::new(id, dir, ".");
    let synced = || std::mem::take(&mut *fs.synced.lock());
    let refused = target.write_back(&[absent.clone(), failing, absent.clone(), last.clone()]);
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
    assert_eq!(synced(), [last.0]);
    let refused = target.write_back(&[absent, last.clone()]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotFound);
    assert_eq!(synced(), [last.0]);
    mount.finish().unwrap();
}
