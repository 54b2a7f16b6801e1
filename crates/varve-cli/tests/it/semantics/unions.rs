//! Whiteouts, and overlayfs with what it writes on the place under test.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use varve_testkit::{Command, skipped};

use super::{Place, as_user, chmod, mode, names, pattern, refused, semantics};
use crate::harness::run;

semantics!(whiteouts, overlay_upper);

fn leave(dir: &Path, from: &str, to: &str, further: RenameFlags) -> rustix::io::Result<()> {
    let flags = RenameFlags::WHITEOUT | further;
    rustix::fs::renameat_with(CWD, dir.join(from), CWD, dir.join(to), flags)
}

fn is_whiteout(path: &Path) -> bool {
    let meta = fs::symlink_metadata(path).unwrap();
    meta.file_type().is_char_device() && meta.rdev() == 0
}

/// RENAME_WHITEOUT was EINVAL, so that overlayfs took no mount for its upper directory.
fn whiteouts(place: &Place) {
    let dir = place.dir().join("whiteouts");
    fs::create_dir_all(dir.join("d/inner")).unwrap();
    chmod(&place.dir(), 0o755);
    chmod(&dir, 0o777);
    for (name, len) in [("a", 100), ("b", 5000), ("c", 100_000)] {
        fs::write(dir.join(name), pattern(1, len)).unwrap();
    }
    fs::hard_link(dir.join("a"), dir.join("same")).unwrap();
    refused(leave(&dir, "a", "b", RenameFlags::NOREPLACE), Errno::EXIST);
    refused(leave(&dir, "a", "b", RenameFlags::EXCHANGE), Errno::INVAL);
    refused(leave(&dir, "absent", "b", RenameFlags::empty()), Errno::NOENT);
    leave(&dir, "a", "same", RenameFlags::empty()).unwrap();
    assert!(!is_whiteout(&dir.join("a")), "two names of one file");
    let links = fs::metadata(&dir).unwrap().nlink();
    leave(&dir, "b", "moved", RenameFlags::NOREPLACE).unwrap();
    leave(&dir, "c", "moved", RenameFlags::empty()).unwrap();
    leave(&dir, "d/inner", "inner", RenameFlags::empty()).unwrap();
    leave(&dir, "d", "inner/d", RenameFlags::empty()).unwrap();
    as_user(1000, &[1001], || leave(&dir, "a", "mine", RenameFlags::empty()).unwrap());
    for _ in 0..2 {
        let left = fs::symlink_metadata(dir.join("a")).unwrap();
        assert_eq!((left.uid(), left.gid(), left.nlink(), left.size()), (1000, 1001, 1, 0));
        for name in ["a", "b", "c", "d", "inner/d/inner"] {
            assert!(is_whiteout(&dir.join(name)), "{name}");
            assert_eq!(mode(&dir.join(name)), 0, "{name}");
        }
        assert!(fs::read(dir.join("moved")).unwrap() == pattern(1, 100_000));
        assert!(fs::read(dir.join("mine")).unwrap() == pattern(1, 100));
        assert_eq!(names(&dir), ["a", "b", "c", "d", "inner", "mine", "moved", "same"]);
        assert_eq!(fs::metadata(&dir).unwrap().nlink(), links);
        place.remount();
    }
    leave(&dir, "b", "c", RenameFlags::empty()).unwrap();
    fs::remove_file(dir.join("b")).unwrap();
    fs::rename(dir.join("moved"), dir.join("a")).unwrap();
    assert_eq!(names(&dir), ["a", "c", "d", "inner", "mine", "same"]);
}

/// An overlay, until it is dropped.
struct Overlay {
    /// What it is made of.
    base: PathBuf,
    upper: PathBuf,
    is_mounted: bool,
}

impl Overlay {
    /// Over a lower directory beside `upper`, which is made in `place`.
    fn new(place: &Path) -> Overlay {
        let overlay = Overlay {
            base: tempfile::tempdir().unwrap().keep(),
            upper: place.to_path_buf(),
            is_mounted: false,
        };
        for dir in ["lower", "merged"] {
            fs::create_dir(overlay.base.join(dir)).unwrap();
        }
        for dir in ["upper", "work"] {
            fs::create_dir(overlay.upper.join(dir)).unwrap();
        }
        overlay
    }

    fn lower(&self) -> PathBuf {
        self.base.join("lower")
    }

    fn merged(&self) -> PathBuf {
        self.base.join("merged")
    }

    fn mount(&mut self) -> Result<(), String> {
        let (lower, upper) = (self.lower(), self.upper.display());
        let options = format!(
            "lowerdir={},upperdir={upper}/upper,workdir={upper}/work,redirect_dir=on",
            lower.display()
        );
        let mut mount = Command::new("mount");
        mount.args(["-t", "overlay", "overlay", "-o", &options]).arg(self.merged());
        let output = mount.output().unwrap();
        self.is_mounted = output.status.success();
        match self.is_mounted {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    fn unmount(&mut self) {
        run(Command::new("umount").arg(self.merged()));
        self.is_mounted = false;
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        if self.is_mounted {
            let _ = Command::new("umount").arg("-l").arg(self.merged()).status();
        }
        let _ = fs::remove_dir_all(&self.base);
    }
}

/// Whether this machine has overlayfs, and `place` may be its upper directory; on a mount of ours it must.
fn mounts(place: &Place, overlay: &mut Overlay) -> bool {
    let systems = fs::read_to_string("/proc/filesystems").unwrap();
    if !systems.lines().any(|line| line.ends_with("\toverlay")) {
        skipped("there is no overlayfs on this machine");
        return false;
    }
    match overlay.mount() {
        Ok(()) => true,
        Err(why) if !place.is_varve() => {
            skipped(&format!("the directory for temporary files takes no overlay: {why}"));
            false
        }
        Err(why) => panic!("{why}"),
    }
}

fn fill(lower: &Path) {
    for dir in ["kept", "replaced", "moved/deep", "gone"] {
        fs::create_dir_all(lower.join(dir)).unwrap();
    }
    for (name, len) in [
        ("kept/small", 100),
        ("kept/chunks", 20_000),
        ("kept/large", 300_000),
        ("kept/removed", 10),
        ("replaced/old", 10),
        ("moved/deep/file", 5000),
        ("gone/file", 10),
    ] {
        fs::write(lower.join(name), pattern(len as u64, len)).unwrap();
    }
    symlink("small", lower.join("kept/link")).unwrap();
    rustix::fs::setxattr(
        lower.join("kept/small"),
        "user.note",
        b"kept",
        rustix::fs::XattrFlags::empty(),
    )
    .unwrap();
    chmod(&lower.join("kept/small"), 0o640);
}

/// Changes each kind of what an overlay shows.
fn work(merged: &Path) {
    let kept = |name: &str| merged.join("kept").join(name);
    let open = |name: &str| OpenOptions::new().write(true).open(kept(name)).unwrap();
    open("small").write_all_at(b"copied up", 3).unwrap();
    open("chunks").set_len(9000).unwrap();
    open("large").write_all_at(b"copied up", 200_000).unwrap();
    let mapped = File::open(kept("large")).unwrap();
    fs::remove_file(kept("removed")).unwrap();
    fs::rename(kept("link"), kept("renamed-link")).unwrap();
    fs::hard_link(kept("small"), kept("second")).unwrap();
    fs::remove_dir_all(merged.join("replaced")).unwrap();
    fs::create_dir(merged.join("replaced")).unwrap();
    fs::write(merged.join("replaced/new"), "new").unwrap();
    fs::rename(merged.join("moved"), merged.join("elsewhere")).unwrap();
    fs::rename(merged.join("gone/file"), merged.join("elsewhere/deep/file")).unwrap();
    fs::remove_dir_all(merged.join("gone")).unwrap();
    for n in 0..100 {
        fs::write(merged.join(format!("kept/new-{n}")), pattern(n, 50 * n as usize)).unwrap();
    }
    for n in 0..50 {
        fs::rename(kept(&format!("new-{n}")), kept(&format!("new-{}", n + 50))).unwrap();
    }
    drop(mapped);
}

fn check(merged: &Path) {
    let kept = |name: &str| merged.join("kept").join(name);
    let patched = |len: usize, at: usize| {
        let mut bytes = pattern(len as u64, len);
        bytes[at..at + 9].copy_from_slice(b"copied up");
        bytes
    };
    assert!(fs::read(kept("small")).unwrap() == patched(100, 3));
    assert_eq!(fs::metadata(kept("small")).unwrap().permissions().mode() & 0o777, 0o640);
    let mut note = [0; 10];
    assert_eq!(rustix::fs::getxattr(kept("second"), "user.note", &mut note), Ok(4));
    assert!(fs::read(kept("chunks")).unwrap() == pattern(20_000, 20_000)[..9000]);
    assert!(fs::read(kept("large")).unwrap() == patched(300_000, 200_000));
    assert_eq!(fs::read_link(kept("renamed-link")).unwrap(), Path::new("small"));
    assert_eq!(names(&merged.join("replaced")), ["new"]);
    assert_eq!(names(merged), ["elsewhere", "kept", "replaced"]);
    assert_eq!(fs::read(merged.join("elsewhere/deep/file")).unwrap(), pattern(10, 10));
    let mut wanted = vec!["chunks", "large", "renamed-link", "second", "small"];
    let new: Vec<String> = (50..100).map(|n| format!("new-{n}")).collect();
    wanted.extend(new.iter().map(String::as_str));
    wanted.sort_unstable();
    assert_eq!(names(&merged.join("kept")), wanted);
    for n in 0..50u64 {
        assert!(fs::read(kept(&format!("new-{}", n + 50))).unwrap() == pattern(n, 50 * n as usize));
    }
}

fn overlay_upper(place: &Place) {
    let mut overlay = Overlay::new(&place.dir());
    fill(&overlay.lower());
    if !mounts(place, &mut overlay) {
        return;
    }
    work(&overlay.merged());
    check(&overlay.merged());
    overlay.unmount();
    place.remount();
    let upper = overlay.upper.join("upper");
    for name in ["kept/removed", "kept/link", "gone", "moved"] {
        assert!(is_whiteout(&upper.join(name)), "{name}");
    }
    let attribute = |name: &str, attribute: &str| {
        let mut value = [0; 64];
        let attribute = format!("trusted.overlay.{attribute}");
        let len = rustix::fs::getxattr(upper.join(name), &attribute[..], &mut value).unwrap();
        value[..len].to_vec()
    };
    assert_eq!(attribute("replaced", "opaque"), b"y");
    assert_eq!(attribute("elsewhere", "redirect"), b"moved");
    overlay.mount().unwrap();
    check(&overlay.merged());
    overlay.unmount();
}
