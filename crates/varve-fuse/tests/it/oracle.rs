//! The same random operations on a mount and on a plain directory of the machine, answer by answer and at
//! the end tree by tree: the machine's own file system is the oracle.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, RenameFlags, XattrFlags};
use varve_testkit::rng::Rng;

use crate::support::mounted;

const SEEDS: u64 = 8;
const OPERATIONS: usize = 1500;

#[derive(Clone, Debug)]
enum Op {
    Open { path: PathBuf, flags: OFlags, slot: usize },
    Close { slot: usize },
    Write { slot: usize, offset: u64, fill: u8, len: usize },
    Read { slot: usize, offset: u64, len: usize },
    Copy { from: usize, from_offset: u64, slot: usize, offset: u64, len: usize },
    Resize { slot: usize, size: u64 },
    Allocate { slot: usize, flags: FallocateFlags, offset: u64, len: u64 },
    Sync { slot: usize },
    MakeDir { path: PathBuf, mode: u32 },
    MakeFifo { path: PathBuf },
    Unlink { path: PathBuf },
    RemoveDir { path: PathBuf },
    Rename { from: PathBuf, to: PathBuf, flags: RenameFlags },
    Link { from: PathBuf, to: PathBuf },
    Symlink { target: PathBuf, path: PathBuf },
    Truncate { path: PathBuf, size: u64 },
    Chmod { path: PathBuf, mode: u32 },
    Chown { path: PathBuf, uid: u32 },
    SetTimes { path: PathBuf, secs: i64 },
    SetXattr { path: PathBuf, value: u8, flags: XattrFlags },
    RemoveXattr { path: PathBuf },
    GetXattr { path: PathBuf },
    Stat { path: PathBuf },
    List { path: PathBuf },
}

fn path(rng: &mut Rng) -> PathBuf {
    let depth = rng.between(1, 4);
    (0..depth).map(|_| *rng.pick(&["a", "b", "c", "a-name-that-is-longer"])).collect()
}

fn open_flags(rng: &mut Rng) -> OFlags {
    let access = *rng.pick(&[OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR, OFlags::RDWR]);
    let mut flags = access | OFlags::CREATE | OFlags::NONBLOCK;
    flags.set(OFlags::CREATE, rng.chance(70));
    for (flag, percent) in [(OFlags::EXCL, 20), (OFlags::TRUNC, 20), (OFlags::APPEND, 20)] {
        flags.set(flag, rng.chance(percent));
    }
    flags
}

fn generate(rng: &mut Rng) -> Op {
    let slot = rng.below(4) as usize;
    let (offset, len) = (rng.below(20_000), rng.between(1, 9000));
    match rng.below(32) {
        0..=5 => Op::Open { path: path(rng), flags: open_flags(rng), slot },
        6 => Op::Close { slot },
        7..=9 => Op::Write { slot, offset, fill: rng.below(256) as u8, len: len as usize },
        10 => Op::Read { slot, offset, len: len as usize },
        11 => Op::Resize { slot, size: offset },
        12 => {
            let zero_keep = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let none = FallocateFlags::empty();
            let keep = FallocateFlags::KEEP_SIZE;
            let flags = *rng.pick(&[none, keep, punch, FallocateFlags::ZERO_RANGE, zero_keep]);
            Op::Allocate { slot, flags, offset, len }
        }
        13 => Op::Sync { slot },
        14..=15 => {
            Op::MakeDir { path: path(rng), mode: *rng.pick(&[0o777, 0o700, 0o1755, 0o2755]) }
        }
        16 => Op::MakeFifo { path: path(rng) },
        17 => Op::Unlink { path: path(rng) },
        18 => Op::RemoveDir { path: path(rng) },
        19..=20 => {
            let flags = [RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE];
            Op::Rename { from: path(rng), to: path(rng), flags: *rng.pick(&flags) }
        }
        21 => Op::Link { from: path(rng), to: path(rng) },
        22 => Op::Symlink { target: path(rng), path: path(rng) },
        23 => Op::Truncate { path: path(rng), size: offset },
        24 => {
            Op::Chmod { path: path(rng), mode: *rng.pick(&[0o644, 0o600, 0o4755, 0o2755, 0o1777]) }
        }
        25 => Op::Chown { path: path(rng), uid: *rng.pick(&[0, 1000]) },
        26 => Op::SetTimes {
            path: path(rng),
            secs: *rng.pick(&[-5, 0, 1_000_000_000, 4_000_000_000]),
        },
        27 => {
            let flags = [XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE];
            Op::SetXattr { path: path(rng), value: rng.below(256) as u8, flags: *rng.pick(&flags) }
        }
        28 if rng.chance(30) => Op::RemoveXattr { path: path(rng) },
        28 => Op::GetXattr { path: path(rng) },
        30..=31 => {
            let (from, from_offset) = (rng.below(4) as usize, rng.below(20_000));
            Op::Copy { from, from_offset, slot, offset, len: len as usize }
        }
        _ if rng.chance(50) => Op::Stat { path: path(rng) },
        _ => Op::List { path: path(rng) },
    }
}

/// A directory and the files a program has open in it.
struct Side {
    root: PathBuf,
    slots: [Option<File>; 4],
}

impl Side {
    fn new(root: &Path) -> Side {
        Side { root: root.to_path_buf(), slots: [const { None }; 4] }
    }

    fn slot(&self, slot: usize) -> io::Result<&File> {
        self.slots[slot].as_ref().ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    /// What the operation answers, in a form that is the same on every file system.
    fn apply(&mut self, op: &Op) -> Result<String, i32> {
        self.try_apply(op).map_err(|err| err.raw_os_error().unwrap_or(-1))
    }

    fn try_apply(&mut self, op: &Op) -> io::Result<String> {
        let at = |path: &Path| self.root.join(path);
        match op {
            Op::Open { path, flags, slot } => {
                let opened = rustix::fs::open(at(path), *flags, Mode::from_raw_mode(0o640));
                self.slots[*slot] = None;
                self.slots[*slot] = Some(File::from(opened?));
            }
            Op::Close { slot } => self.slots[*slot] = None,
            Op::Write { slot, offset, fill, len } => {
                let written = self.slot(*slot)?.write_at(&vec![*fill; *len], *offset)?;
                return Ok(format!("{written} bytes"));
            }
            Op::Read { slot, offset, len } => {
                let mut data = vec![0; *len];
                let read = self.slot(*slot)?.read_at(&mut data, *offset)?;
                return Ok(format!("{:?}", &data[..read]));
            }
            Op::Copy { from, from_offset, slot, offset, len } => {
                return copy((self.slot(*from)?, *from_offset), (self.slot(*slot)?, *offset), *len);
            }
            Op::Resize { slot, size } => self.slot(*slot)?.set_len(*size)?,
            Op::Allocate { slot, flags, offset, len } => {
                rustix::fs::fallocate(self.slot(*slot)?, *flags, *offset, *len)?;
            }
            Op::Sync { slot } => rustix::fs::fdatasync(self.slot(*slot)?)?,
            Op::MakeDir { path, mode } => rustix::fs::mkdir(at(path), Mode::from_raw_mode(*mode))?,
            Op::MakeFifo { path } => {
                let kind = rustix::fs::FileType::Fifo;
                rustix::fs::mknodat(CWD, at(path), kind, Mode::from_raw_mode(0o600), 0)?;
            }
            Op::Unlink { path } => fs::remove_file(at(path))?,
            Op::RemoveDir { path } => fs::remove_dir(at(path))?,
            Op::Rename { from, to, flags } => {
                rustix::fs::renameat_with(CWD, at(from), CWD, at(to), *flags)?;
            }
            Op::Link { from, to } => fs::hard_link(at(from), at(to))?,
            Op::Symlink { target, path } => symlink(target, at(path))?,
            Op::Truncate { path, size } => {
                let flags = OFlags::WRONLY | OFlags::NONBLOCK;
                File::from(rustix::fs::open(at(path), flags, Mode::empty())?).set_len(*size)?;
            }
            Op::Chmod { path, mode } => {
                fs::set_permissions(at(path), fs::Permissions::from_mode(*mode))?;
            }
            Op::Chown { path, uid } => std::os::unix::fs::lchown(at(path), Some(*uid), None)?,
            Op::SetTimes { path, secs } => set_times(&at(path), *secs)?,
            Op::SetXattr { path, value, flags } => {
                rustix::fs::lsetxattr(at(path), "user.x", &[*value; 10], *flags)?;
            }
            Op::RemoveXattr { path } => rustix::fs::lremovexattr(at(path), "user.x")?,
            Op::GetXattr { path } => {
                let mut value = [0u8; 20];
                let len = rustix::fs::lgetxattr(at(path), "user.x", &mut value)?;
                return Ok(format!("{:?}", &value[..len]));
            }
            Op::Stat { path } => return describe(&at(path)),
            Op::List { path } => {
                let names: io::Result<Vec<_>> = fs::read_dir(at(path))?
                    .map(|entry| entry.map(|entry| entry.file_name()))
                    .collect();
                let mut names = names?;
                names.sort();
                return Ok(format!("{names:?}"));
            }
        }
        Ok(String::new())
    }

    /// Every path that may be seen with what stands there, and which paths are one file.
    fn tree(&self) -> BTreeMap<PathBuf, String> {
        let mut tree = BTreeMap::new();
        let mut first_names = BTreeMap::new();
        let mut rest = vec![self.root.clone()];
        while let Some(dir) = rest.pop() {
            let Ok(entries) = fs::read_dir(&dir) else { continue };
            let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
            paths.sort();
            for path in paths {
                let Ok(found) = fs::symlink_metadata(&path) else { continue };
                let name = path.strip_prefix(&self.root).unwrap().to_path_buf();
                let mut text = describe(&path).unwrap();
                if !found.is_dir() {
                    let first = first_names.entry(found.ino()).or_insert_with(|| name.clone());
                    text += &format!(" same as {}", first.display());
                }
                if found.is_file() {
                    text += &format!(" {:?}", fs::read(&path).map_err(|err| err.kind()));
                }
                if found.is_dir() {
                    rest.push(path);
                }
                tree.insert(name, text);
            }
        }
        tree
    }
}

fn copy(
    (from, mut at): (&File, u64),
    (to, mut to_at): (&File, u64),
    len: usize,
) -> io::Result<String> {
    let copied = rustix::fs::copy_file_range(from, Some(&mut at), to, Some(&mut to_at), len)?;
    Ok(format!("{copied} bytes"))
}

fn set_times(path: &Path, secs: i64) -> io::Result<()> {
    let stamp = rustix::fs::Timespec { tv_sec: secs, tv_nsec: 123_000_000 };
    let times = rustix::fs::Timestamps { last_access: stamp, last_modification: stamp };
    Ok(rustix::fs::utimensat(CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?)
}

/// The attributes of an object that every file system agrees on. Times are given only where they were set.
fn describe(path: &Path) -> io::Result<String> {
    let found = fs::symlink_metadata(path)?;
    let kind = found.file_type();
    let size = if kind.is_dir() { 0 } else { found.len() };
    let set = if found.mtime_nsec() == 123_000_000 { found.mtime() } else { 1 };
    let target = if kind.is_symlink() { fs::read_link(path)? } else { PathBuf::new() };
    let (mode, links, uid) = (found.mode(), found.nlink(), found.uid());
    assert_eq!(kind.is_fifo(), mode & 0o170_000 == 0o010_000);
    let target = target.as_os_str().as_bytes().escape_ascii().to_string();
    Ok(format!("{mode:o} {links} links of {uid}, {size} bytes, mtime {set}, target {target}"))
}

#[test]
fn a_mount_answers_as_the_machines_own_file_system() {
    let plain = tempfile::tempdir().unwrap();
    for seed in 0..SEEDS {
        let Some(mount) = mounted() else { return };
        let plain = plain.path().join(seed.to_string());
        fs::create_dir(&plain).unwrap();
        let (mut ours, mut oracle) = (Side::new(mount.dir()), Side::new(&plain));
        let mut rng = Rng::new(seed);
        for step in 0..OPERATIONS {
            let op = generate(&mut rng);
            let (answer, expected) = (ours.apply(&op), oracle.apply(&op));
            assert_eq!(answer, expected, "seed {seed}, step {step}: {op:?}");
        }
        let (tree, expected) = (ours.tree(), oracle.tree());
        assert!(!expected.is_empty());
        assert_eq!(tree, expected, "seed {seed}");
        drop(ours);
        mount.finish().unwrap();
    }
}
