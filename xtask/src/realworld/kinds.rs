//! A tree of what a copy may lose though names and contents are right: several owners and groups, set-id bits, a
//! sticky directory, access control lists with those inherited, extended attributes of all namespaces, hard links across
//! directories, files that are no regular ones, holes, odd names, times before 1970 and far from now.
//!
//! It is made by system calls on either side, so that what makes it is tried as well. What the plain directory
//! cannot keep, or who runs may not make, is left out on both, and said ([`Abilities::missing`]).

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, lsetxattr, makedev, mknodat,
    utimensat,
};

use super::small_tree::bytes;
use crate::run::{Failure, Outcome};

/// Owners and groups of files: small ids, those of people, the last that fits 16 bits, and above 31.
const OWNERS: &[(u32, u32)] = &[
    (0, 0),
    (1, 2),
    (1000, 100),
    (12_345, 54_321),
    (65_534, 65_534),
    (4_000_000_000, 3_000_000_000),
];

/// Permissions, for files and for directories.
const MODES: &[u32] = &[0o0000, 0o0640, 0o1777, 0o2755, 0o3770, 0o4755, 0o6711, 0o7777];

/// What can be made and kept besides regular files, directories, links, fifos and sockets.
#[derive(Default)]
pub(super) struct Abilities {
    owners: bool,
    devices: bool,
    acls: bool,
    user: bool,
    trusted: bool,
    capabilities: bool,
    missing: Vec<String>,
}

impl Abilities {
    /// Tries in `dir`.
    pub(super) fn of(dir: &Path) -> Result<Abilities, Failure> {
        let probe = dir.join("probe");
        File::create(&probe)?;
        let mut able = Abilities::default();
        able.owners = able.can("files of several owners", lchown(&probe, Some(1), Some(2)));
        able.acls = able.can("access control lists", set(&probe, ACCESS, &list([6, 5, 4])));
        able.user = able.can("attributes of users", set(&probe, "user.a", b"1"));
        able.trusted = able.can("trusted attributes", set(&probe, "trusted.a", b"1"));
        let capability = set(&probe, CAPABILITY, &capability());
        able.capabilities = able.can("capabilities of files", capability);
        let device = dir.join("device");
        let made = mknod(&device, FileType::CharacterDevice, makedev(1, 3));
        able.devices = able.can("device nodes", made);
        fs::remove_file(probe)?;
        if able.devices {
            fs::remove_file(device)?;
        }
        Ok(able)
    }

    /// What is left out, and why.
    pub(super) fn missing(&self) -> &[String] {
        &self.missing
    }

    fn can(&mut self, what: &str, tried: std::io::Result<()>) -> bool {
        if let Err(error) = &tried {
            self.missing.push(format!("{what}: not on the plain directory: {error}"));
        }
        tried.is_ok()
    }
}

/// Makes the tree at `top`, of all that there is.
pub(super) fn make(top: &Path, able: &Abilities) -> Outcome {
    let mut tree = Tree { able, made: Vec::new() };
    tree.dir(top)?;
    tree.names(&top.join("names with spaces"))?;
    tree.links(&top.join("links"))?;
    tree.modes(&top.join("modes"))?;
    tree.specials(&top.join("specials"))?;
    tree.holes(&top.join("holes"))?;
    if able.owners {
        tree.owners(&top.join("owners"))?;
    }
    if able.acls {
        tree.acls(&top.join("lists"))?;
    }
    tree.xattrs(&top.join("attributes"))?;
    tree.set_times()
}

/// The tree as far as it is made.
struct Tree<'a> {
    able: &'a Abilities,
    made: Vec<PathBuf>,
}

impl Tree<'_> {
    fn dir(&mut self, path: &Path) -> Outcome {
        fs::create_dir(path)?;
        // Whatever mask this process has.
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
        self.made.push(path.to_path_buf());
        Ok(())
    }

    fn file(&mut self, path: PathBuf, content: &[u8]) -> Result<PathBuf, Failure> {
        fs::write(&path, content)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
        self.made.push(path.clone());
        Ok(path)
    }

    fn names(&mut self, dir: &Path) -> Outcome {
        self.dir(dir)?;
        for name in [&b" "[..], b"two words", b"line\nand line", b"\xff\xfe\x80", b"'\"\\$(x)"] {
            self.file(dir.join(OsString::from_vec(name.to_vec())), name)?;
        }
        Ok(())
    }

    /// Names of one file in several directories, of a symbolic link and of a fifo, too.
    fn links(&mut self, dir: &Path) -> Outcome {
        self.dir(dir)?;
        let (left, right) = (dir.join("left"), dir.join("right"));
        self.dir(&left)?;
        self.dir(&right)?;
        let small = self.file(left.join("small"), b"one file, two directories")?;
        let large = self.file(right.join("large"), &bytes(11, 300_000))?;
        symlink("small", left.join("symlink"))?;
        self.made.push(left.join("symlink"));
        self.special(left.join("fifo"), FileType::Fifo, 0)?;
        fs::hard_link(small, right.join("small"))?;
        fs::hard_link(large, left.join("large again"))?;
        fs::hard_link(left.join("symlink"), right.join("symlink"))?;
        fs::hard_link(left.join("fifo"), right.join("fifo"))?;
        Ok(())
    }

    fn modes(&mut self, dir: &Path) -> Outcome {
        self.dir(dir)?;
        for mode in MODES {
            let file = self.file(dir.join(format!("file {mode:04o}")), b"x")?;
            let below = dir.join(format!("directory {mode:04o}"));
            self.dir(&below)?;
            self.file(below.join("file"), b"y")?;
            for path in [file, below] {
                fs::set_permissions(path, fs::Permissions::from_mode(*mode))?;
            }
        }
        Ok(())
    }

    fn specials(&mut self, dir: &Path) -> Outcome {
        self.dir(dir)?;
        self.special(dir.join("fifo"), FileType::Fifo, 0)?;
        self.special(dir.join("socket"), FileType::Socket, 0)?;
        if self.able.devices {
            for (major, minor) in [(1, 3), (255, 255), (259, 70_000)] {
                let number = makedev(major, minor);
                for (name, kind) in
                    [("character", FileType::CharacterDevice), ("block", FileType::BlockDevice)]
                {
                    self.special(dir.join(format!("{name} {major} {minor}")), kind, number)?;
                }
            }
        }
        Ok(())
    }

    fn special(&mut self, path: PathBuf, kind: FileType, number: u64) -> Outcome {
        mknod(&path, kind, number)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640))?;
        self.made.push(path);
        Ok(())
    }

    fn holes(&mut self, dir: &Path) -> Outcome {
        self.dir(dir)?;
        let path = self.file(dir.join("sparse"), b"")?;
        let mut file = File::options().write(true).open(path)?;
        for offset in [1_u64 << 20, 9 << 20] {
            file.seek(SeekFrom::Start(offset))?;
            file.write_all(&bytes(offset, 10_000))?;
        }
        file.set_len(16 << 20)?;
        let path = self.file(dir.join("a hole alone"), b"")?;
        File::options().write(true).open(path)?.set_len(3 << 20)?;
        Ok(())
    }

    fn owners(&mut self, dir: &Path) -> Outcome {
        self.dir(dir)?;
        for (owner, group) in OWNERS {
            let below = dir.join(format!("{owner}-{group}"));
            self.dir(&below)?;
            let file = self.file(below.join("file"), b"owned")?;
            let set_id = self.file(below.join("set-id"), b"#!/bin/true")?;
            let link = below.join("symlink");
            symlink("file", &link)?;
            self.made.push(link.clone());
            let fifo = below.join("fifo");
            self.special(fifo.clone(), FileType::Fifo, 0)?;
            for path in [&file, &set_id, &link, &fifo, &below] {
                lchown(path, Some(*owner), Some(*group))?;
            }
            // A change of owner takes these bits away.
            fs::set_permissions(set_id, fs::Permissions::from_mode(0o6755))?;
            fs::set_permissions(&below, fs::Permissions::from_mode(0o2775))?;
            // With the directory's group.
            self.file(below.join("file of the group"), b"")?;
        }
        Ok(())
    }

    fn acls(&mut self, dir: &Path) -> Outcome {
        self.dir(dir)?;
        let file = self.file(dir.join("readable by one more"), b"x")?;
        set(&file, ACCESS, &list([6, 4, 0]))?;
        let masked = self.file(dir.join("masked"), b"x")?;
        set(&masked, ACCESS, &list([7, 1, 5]))?;
        let fifo = dir.join("fifo");
        self.special(fifo.clone(), FileType::Fifo, 0)?;
        set(&fifo, ACCESS, &list([6, 6, 0]))?;
        let below = dir.join("directory");
        self.dir(&below)?;
        set(&below, ACCESS, &list([7, 5, 5]))?;
        set(&below, DEFAULT, &list([6, 3, 1]))?;
        // What is made in it inherits, and is not told its mode again.
        fs::create_dir(below.join("inherits"))?;
        fs::write(below.join("inherits/file"), "inherits")?;
        self.made.extend([below.join("inherits"), below.join("inherits/file")]);
        Ok(())
    }

    fn xattrs(&mut self, dir: &Path) -> Outcome {
        self.dir(dir)?;
        let file = self.file(dir.join("file"), b"attributes")?;
        let large = self.file(dir.join("large"), &bytes(12, 200_000))?;
        for path in [&file, &large, dir] {
            if self.able.user {
                set(path, "user.short", b"1")?;
                set(path, "user.empty", b"")?;
                set(path, "user.long", &bytes(9, 1500))?;
                set(path, "user.name with spaces, \u{e4} and =", b"\0\xff\n")?;
            }
            if self.able.trusted {
                set(path, "trusted.hidden", b"from others")?;
            }
        }
        if self.able.capabilities {
            set(&file, CAPABILITY, &capability())?;
        }
        Ok(())
    }

    /// Gives each another time of change, before 1970 as well, with nanoseconds. What is made in a directory
    /// changes its time, so this is last.
    fn set_times(&self) -> Outcome {
        for (at, path) in (0_i64..).zip(&self.made) {
            let time =
                Timespec { tv_sec: -300_000_000 + at * 7_777_777, tv_nsec: 123_456_789 + at };
            let times = Timestamps { last_access: time, last_modification: time };
            utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }
}

fn mknod(path: &Path, kind: FileType, number: u64) -> std::io::Result<()> {
    Ok(mknodat(CWD, path, kind, Mode::from_raw_mode(0o600), number)?)
}

fn set(path: &Path, name: &str, value: &[u8]) -> std::io::Result<()> {
    Ok(lsetxattr(path, name, value, XattrFlags::empty())?)
}

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const CAPABILITY: &str = "security.capability";

/// A list as the kernel takes it (acl(5), linux/posix_acl_xattr.h): owner with all, the first permissions for user 1000
/// and for group 2000, the second for the mask, the third for the group and for others.
fn list([named, mask, others]: [u16; 3]) -> Vec<u8> {
    let nobody = u32::MAX;
    let entries = [
        (0x01, 7, nobody),
        (0x02, named, 1000),
        (0x04, others, nobody),
        (0x08, named, 2000),
        (0x10, mask, nobody),
        (0x20, others, nobody),
    ];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(u16::to_le_bytes(tag));
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// CAP_NET_RAW, effective and permitted, as the second version of linux/capability.h has it.
fn capability() -> Vec<u8> {
    let words = [0x0200_0001_u32, 1 << 13, 0, 0, 0];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
