//! Stores on small file systems of their own, without any room or without any inode.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, Signal};
use varve_testkit::{Command, eventually, skipped, there_is};

use crate::harness::{can_mount, json, run, varve};

/// A file system on a loop device or in memory, with a store that is mounted beside it. It goes when it is dropped.
struct Device {
    dir: tempfile::TempDir,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ext4,
    Tmpfs,
}

impl Device {
    /// Of `mib` MiB, for about `inodes` files. `None`, which is said, where it cannot be made.
    fn new(kind: Kind, mib: u64, inodes: u64) -> Option<Device> {
        if !can_mount() {
            return None;
        }
        let device = Device { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(device.path()).unwrap();
        fs::create_dir(device.mnt()).unwrap();
        match kind {
            Kind::Tmpfs => {
                let options = format!("size={mib}m,nr_inodes={inodes}");
                let options = std::ffi::CString::new(options).unwrap();
                let flags = MountFlags::empty();
                rustix::mount::mount("none", device.path(), "tmpfs", flags, &*options).unwrap();
            }
            Kind::Ext4 => {
                if !there_is("mkfs.ext4") {
                    return None;
                }
                let image = device.dir.path().join("image");
                File::create(&image).unwrap().set_len(mib << 20).unwrap();
                let mut make = Command::new("mkfs.ext4");
                // Nothing is kept for root, who runs the tests.
                make.args(["-q", "-F", "-m", "0", "-N"]).arg(inodes.to_string()).arg(&image);
                run(&mut make);
                let mut mount = Command::new("mount");
                mount.args(["-o", "loop"]).arg(&image).arg(device.path());
                if !mount.output().unwrap().status.success() {
                    skipped("there is no right to mount file systems, or no loop device");
                    return None;
                }
            }
        }
        run(varve().arg("format").arg(device.store()));
        Some(device)
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("device")
    }

    fn store(&self) -> PathBuf {
        self.path().join("store")
    }

    fn mnt(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    fn mount(&self, options: &str) {
        run(varve().args(["mount", "-o", options]).arg(self.store()).arg(self.mnt()));
    }

    fn unmount(&self) {
        eventually("nobody uses the mount", || {
            let output = varve().arg("umount").arg(self.mnt()).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() || said.contains(" is in use"), "{said}");
            output.status.success()
        });
    }

    /// Kills the daemon, whose id the lock of the store has, and takes its mount away.
    fn kill_daemon(&self) {
        let status = json(varve().args(["status", "--json"]).arg(self.store()));
        let pid = i32::try_from(status["holder"]["pid"].as_i64().unwrap()).unwrap();
        rustix::process::kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        eventually("the mount is dead", || {
            rustix::fs::statfs(self.mnt()).err() == Some(Errno::NOTCONN)
        });
        rustix::mount::unmount(self.mnt(), UnmountFlags::DETACH).unwrap();
    }

    /// Others make empty files until there is no inode.
    fn take_inodes(&self) {
        let dir = self.path().join("inodes");
        let _ = fs::create_dir(&dir);
        let taken = fs::read_dir(&dir).unwrap().count();
        for number in taken.. {
            match File::create(dir.join(number.to_string())) {
                Ok(_) => {}
                Err(error) if is_full(&error) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Others write until there is no room for a byte.
    fn take_room(&self) {
        let filler = File::options().create(true).append(true).open(self.path().join("filler"));
        let mut filler = filler.unwrap();
        for piece in [1 << 20, 4096, 1] {
            while match filler.write(&vec![0x5a; piece]) {
                Ok(_) => true,
                Err(error) if is_full(&error) => false,
                Err(error) => panic!("{error}"),
            } {}
            filler.sync_all().unwrap();
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = varve().arg("umount").arg(self.mnt()).output();
        for dir in [self.mnt(), self.path()] {
            let _ = rustix::mount::unmount(dir, UnmountFlags::DETACH);
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::NOSPC)
}

/// The next daemon found no inode for its sockets: no command reached it.
#[test]
fn the_daemon_is_reached_where_others_have_taken_all_inodes() {
    for kind in [Kind::Ext4, Kind::Tmpfs] {
        let Some(device) = Device::new(kind, 64, 256) else { continue };
        device.mount("rw");
        let mnt = device.mnt();
        fs::write(mnt.join("file"), vec![1; 100_000]).unwrap();
        run(varve().args(["kv", "create"]).arg(&mnt).arg("tags"));
        run(varve().args(["snapshot", "create"]).arg(&mnt).arg("held"));
        fs::remove_file(mnt.join("file")).unwrap();
        for round in 0..4 {
            device.take_inodes();
            device.kill_daemon();
            device.take_inodes();
            // These listen, too, and what they leave is free.
            if round % 2 == 1 {
                run(varve().arg("fsck").arg(device.store()));
                device.take_inodes();
                device.mount("ro");
                device.unmount();
                device.take_inodes();
            }
            device.mount("rw");
            run(varve().args(["kv", "put"]).arg(&mnt).args(["tags", "key", &round.to_string()]));
            let found = run(varve().args(["kv", "get"]).arg(&mnt).args(["tags", "key"])).stdout;
            assert_eq!(String::from_utf8_lossy(&found).trim(), round.to_string(), "{kind:?}");
        }
        device.take_inodes();
        run(varve().args(["snapshot", "delete"]).arg(&mnt).arg("held"));
        device.unmount();
        run(varve().arg("fsck").arg(device.store()));
    }
}

/// Names and bytes of all files of the store, as whoever mounts it finds them.
fn files_in(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_in(&path));
        } else {
            let bytes = fs::read(&path).unwrap();
            found.push((path, bytes));
        }
    }
    found.sort();
    found
}

/// A store whose reserve is gone and whose device has no byte left, after a kill: it is checked, dumped and read as it is.
#[test]
fn a_store_is_read_checked_and_dumped_without_any_room() {
    for kind in [Kind::Ext4, Kind::Tmpfs] {
        for is_killed in [false, true] {
            let Some(device) = Device::new(kind, 64, 2000) else { continue };
            device.mount("rw");
            let mnt = device.mnt();
            fs::create_dir(mnt.join("dir")).unwrap();
            for number in 0..200 {
                fs::write(mnt.join("dir").join(number.to_string()), vec![2; 5000]).unwrap();
            }
            fs::write(mnt.join("large"), vec![3; 3_000_000]).unwrap();
            run(varve().arg("clone").arg(mnt.join("dir")).arg(mnt.join("copy")));
            let status = if is_killed {
                device.kill_daemon();
                "killed"
            } else {
                device.unmount();
                "closed"
            };
            let told = format!("{kind:?}, {status}");
            for entry in fs::read_dir(device.store().join("engine")).unwrap() {
                let path = entry.unwrap().path();
                if path.file_name().unwrap().to_string_lossy().starts_with("RESERVE-") {
                    fs::remove_file(path).unwrap();
                }
            }
            device.take_room();
            run(varve().arg("fsck").arg(device.store()));
            let dump = run(varve().arg("dump").arg(device.store())).stdout;
            let dumped = device.dir.path().join("dumped");
            fs::write(&dumped, &dump).unwrap();
            device.mount("ro");
            let found = files_in(&mnt);
            let len = |path: &Path| found.iter().find(|(at, _)| at == path).map(|at| at.1.len());
            assert_eq!(found.len(), 401, "{told}");
            assert_eq!(len(&mnt.join("copy").join("7")), Some(5000), "{told}");
            assert_eq!(len(&mnt.join("large")), Some(3_000_000), "{told}");
            device.unmount();
            // What was dumped is all of it.
            let again = device.dir.path().join("again");
            run(varve().arg("load").args([&again, &dumped]));
            run(varve().arg("mount").args([&again, &mnt]));
            assert!(files_in(&mnt) == found, "{told}: the dump has other files");
            device.unmount();
        }
    }
}

/// A clone that nobody had looked at could not be listed, read or removed on a device without room.
#[test]
fn a_clone_is_listed_read_and_removed_without_any_room() {
    for kind in [Kind::Ext4, Kind::Tmpfs] {
        let Some(device) = Device::new(kind, 64, 4000) else { continue };
        device.mount("rw");
        let mnt = device.mnt();
        let original = mnt.join("original");
        for dir in 0..20 {
            let dir = original.join(format!("{dir}/deep/er"));
            fs::create_dir_all(&dir).unwrap();
            for file in 0..20 {
                fs::write(dir.join(file.to_string()), vec![file; 100 * usize::from(file)]).unwrap();
            }
        }
        for number in 0..4 {
            fs::write(original.join(format!("large{number}")), vec![number; 700_000]).unwrap();
        }
        run(varve().arg("clone").arg(&original).arg(mnt.join("copy")));
        run(varve().arg("clone").arg(mnt.join("copy")).arg(mnt.join("again")));
        // Nothing that can be compressed.
        let noise = |number: u64| -> Vec<u8> {
            let words = (number << 32..).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            words.flat_map(u64::to_be_bytes).take(20_000).collect()
        };
        let write =
            |number: &u64| fs::write(mnt.join(format!("small{number}")), noise(*number)).is_err();
        let refused = (0..).find(write);
        assert!(refused.is_some());
        device.take_room();
        assert!(is_full(&fs::create_dir(mnt.join("more")).unwrap_err()), "{kind:?}");
        let below = |dir: &str| -> Vec<_> {
            let top = mnt.join(dir);
            let found = files_in(&top).into_iter();
            found
                .map(|(path, bytes)| (path.strip_prefix(&top).unwrap().to_owned(), bytes))
                .collect()
        };
        let expected = below("original");
        assert_eq!(expected.len(), 404);
        for copy in ["again", "copy"] {
            assert!(below(copy) == expected, "{kind:?}: {copy}");
            fs::metadata(mnt.join(copy).join("3/deep/er/7")).unwrap();
        }
        fs::remove_dir_all(mnt.join("again")).unwrap();
        assert!(below("copy") == expected, "{kind:?}");
        fs::remove_dir_all(mnt.join("copy")).unwrap();
        device.unmount();
        run(varve().arg("fsck").arg(device.store()));
    }
}
