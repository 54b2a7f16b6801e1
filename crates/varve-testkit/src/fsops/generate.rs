//! Makes random operations over a small set of names, so that they often meet.
//!
//! 1. [`Generator`] draws an operation and its paths.
//! 2. The caller reports whether it succeeded, and the generator updates its list of existing paths.
//!
//! Most operations use existing paths. All others use free names, taken names and invalid ones, so that errors are
//! tested as much as successes.
//!
//! Invariant: equal seeds and equal reports make equal operations.

use varve_types::{FileFlags, Timestamp};
use varve_vfs::{
    AccessMode, AllocateMode, Caller, OpenFlags, RenameMode, SeekFrom, SetAttr, SetTime, XattrMode,
};

use super::op::{Op, Slot, TreePath};
use crate::rng::Rng;

/// The world of a generator.
#[derive(Clone, Debug)]
pub struct Universe {
    /// Every name that can occur.
    pub names: Vec<Vec<u8>>,
    /// The most directories above a name.
    pub depth_max: usize,
    /// Handles open at a time.
    pub slots: usize,
    /// Sizes around which files are cut and written: where a file system changes its representation.
    pub sizes: Vec<u64>,
    /// Names of extended attributes.
    pub xattrs: Vec<Vec<u8>>,
    /// How many percent of the operations clone something.
    pub clones_percent: u64,
    /// How many percent copy from file to file.
    pub copies_percent: u64,
    /// How many percent set or clear file flags.
    pub flags_percent: u64,
}

/// The number of paths above which no clone is made, because each clone may double it.
const CLONED_PATHS_MAX: usize = 100;

impl Default for Universe {
    fn default() -> Universe {
        let mut names: Vec<Vec<u8>> =
            [&b"a"[..], b"b", b"c", b"d", b"e"].map(<[u8]>::to_vec).into();
        names.push(vec![b'l'; 255]);
        names.push(b"\xff \n\"".to_vec());
        Universe {
            names,
            depth_max: 4,
            slots: 4,
            sizes: vec![0, 1, 512, 4096, 16_384, 32_768, 65_536, 100_000],
            xattrs: [&b"user.a"[..], b"user.b", b"trusted.t"].map(<[u8]>::to_vec).into(),
            clones_percent: 0,
            copies_percent: 0,
            flags_percent: 0,
        }
    }
}

/// A seeded, endless sequence of operations.
#[derive(Clone, Debug)]
pub struct Generator {
    rng: Rng,
    universe: Universe,
    dirs: Vec<TreePath>,
    others: Vec<TreePath>,
    /// What has flags that forbid something.
    fixed: Vec<TreePath>,
}

impl Generator {
    /// Returns the sequence of `seed` in `universe`.
    pub fn new(seed: u64, universe: Universe) -> Generator {
        let dirs = vec![TreePath::default()];
        Generator { rng: Rng::new(seed), universe, dirs, others: Vec::new(), fixed: Vec::new() }
    }

    /// Returns the next operation. [`Generator::observe`] takes those that succeeded.
    pub fn next_op(&mut self) -> Op {
        let clones = self.universe.clones_percent;
        if clones > 0 && self.rng.below(100) < clones && self.known() < CLONED_PATHS_MAX {
            let from = if self.rng.chance(60) { self.dir() } else { self.any() };
            return Op::Clone { from, to: self.fresh() };
        }
        let copies = self.universe.copies_percent;
        if copies > 0 && self.rng.below(100) < copies {
            return self.copy_op();
        }
        let flags = self.universe.flags_percent;
        if flags > 0 && self.rng.below(100) < flags {
            return self.flags_op();
        }
        match self.rng.below(100) {
            0..35 => self.name_op(),
            35..45 => self.rename_op(),
            45..58 => self.open_op(),
            58..80 => self.handle_op(),
            80..88 => self.attr_op(),
            88..95 => self.xattr_op(),
            _ => self.look_op(),
        }
    }

    fn known(&self) -> usize {
        self.dirs.len() + self.others.len()
    }

    fn name_op(&mut self) -> Op {
        let caller = self.caller();
        match self.rng.below(20) {
            0..5 => Op::Mkdir { caller, path: self.fresh(), perm: self.perm() & 0o1777 },
            5..7 => Op::Mknod {
                caller,
                path: self.fresh(),
                mode: self.mode(),
                rdev: self.rng.below(999) as u32,
            },
            7..10 => {
                let len = [1, 5, 60, 600, 4095][self.rng.below(5) as usize];
                Op::Symlink { caller, path: self.fresh(), target: vec![b't'; len] }
            }
            10..12 => Op::Link { from: self.any(), to: self.fresh() },
            12..15 => Op::Unlink { path: self.other() },
            15..17 => Op::Rmdir { path: self.dir() },
            17 => Op::Unlink { path: self.any() },
            _ => Op::Rmdir { path: self.any() },
        }
    }

    fn rename_op(&mut self) -> Op {
        let mode = match self.rng.below(7) {
            0 => RenameMode::NoReplace,
            1 => RenameMode::Exchange,
            2 => RenameMode::Whiteout { caller: self.caller(), replaces: self.rng.chance(50) },
            _ => RenameMode::Replace,
        };
        let from = self.any();
        let to = if self.rng.chance(50) { self.any() } else { self.fresh() };
        Op::Rename { from, to, mode }
    }

    fn open_op(&mut self) -> Op {
        let (caller, flags, slot) = (self.caller(), self.flags(), self.slot());
        match self.rng.below(12) {
            0..6 => {
                let path = if self.rng.chance(70) { self.fresh() } else { self.other() };
                Op::Create { caller, path, perm: self.perm() & 0o1777, flags, slot }
            }
            6..11 => Op::Open { path: self.other(), flags, slot },
            _ => Op::Tmpfile { caller, dir: self.dir(), perm: 0o600, flags, slot },
        }
    }

    fn handle_op(&mut self) -> Op {
        let slot = self.slot();
        match self.rng.below(22) {
            0..7 => {
                let (offset, len) = (self.size(), self.rng.between(0, 3000) as usize);
                let len = if self.rng.chance(10) { len * 40 } else { len };
                let kill_set_id = self.rng.chance(20);
                Op::Write { slot, offset, len, fill: self.rng.next_u64(), kill_set_id }
            }
            7..12 => Op::Read { slot, offset: self.size(), len: self.rng.below(70_000) as usize },
            12..14 => Op::SlotSetAttr {
                caller: Caller::ROOT,
                slot,
                set: SetAttr { size: Some(self.size()), ..SetAttr::default() },
            },
            14 => Op::SlotGetattr { slot },
            15 => Op::SlotLink { slot, to: self.fresh() },
            16 | 17 => {
                let mode = *self.rng.pick(&[
                    AllocateMode::Extend,
                    AllocateMode::KeepSize,
                    AllocateMode::PunchHole,
                    AllocateMode::ZeroRange,
                    AllocateMode::ZeroKeepSize,
                ]);
                Op::Fallocate { slot, mode, offset: self.size(), len: self.rng.below(40_000) }
            }
            18 => {
                let what = *self.rng.pick(&[SeekFrom::Data, SeekFrom::Hole]);
                Op::Seek { slot, offset: self.size(), what }
            }
            19 => Op::Fsync { slot, data_only: self.rng.chance(50) },
            _ => Op::Release { slot },
        }
    }

    /// A copy of any range, or often of all of a file to the beginning of another.
    fn copy_op(&mut self) -> Op {
        let (from, slot) = (self.slot(), self.slot());
        if self.rng.chance(30) {
            return Op::CopyRange { from, from_offset: 0, slot, offset: 0, len: 1 << 20 };
        }
        let (from_offset, offset) = (self.size(), self.size());
        Op::CopyRange { from, from_offset, slot, offset, len: self.rng.below(70_000) }
    }

    fn attr_op(&mut self) -> Op {
        let mut set = SetAttr::default();
        match self.rng.below(6) {
            0 => set.perm = Some(self.perm()),
            1 => set.uid = Some(self.rng.below(3) as u32),
            2 => set.gid = Some(self.rng.below(3) as u32),
            3 => set.size = Some(self.size()),
            4 => set.kill_set_id = true,
            _ => {
                let secs = self.rng.next_u64() as i64 >> 30;
                let time =
                    Timestamp::new(secs, self.rng.below(1_000_000_000) as u32).map(SetTime::To);
                set.mtime = time.filter(|_| self.rng.chance(70));
                set.atime = time.filter(|_| self.rng.chance(70)).or(Some(SetTime::Now));
            }
        }
        Op::SetAttr { caller: self.caller(), path: self.any(), set }
    }

    fn xattr_op(&mut self) -> Op {
        let few = self.dirs.len().min(2) as u64;
        let path = if self.rng.chance(60) {
            self.dirs[self.rng.below(few) as usize].clone()
        } else {
            self.any()
        };
        let name = self.rng.pick(&self.universe.xattrs).clone();
        match self.rng.below(6) {
            0..3 => {
                let mode = *self.rng.pick(&[XattrMode::Set, XattrMode::Create, XattrMode::Replace]);
                let len = [0, 1, 40, 5000][self.rng.below(4) as usize];
                Op::SetXattr { path, name, len, fill: self.rng.next_u64(), mode }
            }
            3 => Op::GetXattr { path, name },
            4 => Op::ListXattr { path },
            _ => Op::RemoveXattr { path, name },
        }
    }

    /// Mostly takes back what was set first, so that the tree goes on changing.
    fn flags_op(&mut self) -> Op {
        if !self.fixed.is_empty() && self.rng.chance(50) {
            let flags = if self.rng.chance(80) { 0 } else { 1 << 2 };
            let flags = FileFlags::from_bits(flags).unwrap_or_default();
            return Op::SetFlags { path: self.fixed.remove(0), flags };
        }
        let path = self.any();
        match self.rng.below(4) {
            0 => Op::GetFlags { path },
            _ => {
                let flags = FileFlags::from_bits(self.rng.below(8) as u8).unwrap_or_default();
                Op::SetFlags { path, flags }
            }
        }
    }

    fn look_op(&mut self) -> Op {
        match self.rng.below(12) {
            0..3 => {
                let (page, with_attr) = (self.rng.between(1, 9) as usize, self.rng.chance(50));
                Op::Readdir { path: self.dir(), page, with_attr }
            }
            3 => Op::Readdir { path: self.any(), page: 100, with_attr: false },
            4 => Op::Getattr { path: self.any() },
            5..9 => Op::Readlink { path: self.other() },
            9 => {
                let [read, write, execute] = [(); 3].map(|()| self.rng.chance(40));
                let mode = AccessMode { read, write, execute };
                Op::Access { caller: self.caller(), path: self.any(), mode }
            }
            10 => Op::FsyncDir { path: self.dir() },
            _ => Op::Sync,
        }
    }

    /// Tells the generator that an operation succeeded, so that it knows what there is.
    pub fn observe(&mut self, op: &Op) {
        match op {
            Op::Mkdir { path, .. } => push(&mut self.dirs, path),
            Op::Mknod { path, .. } | Op::Symlink { path, .. } | Op::Create { path, .. } => {
                push(&mut self.others, path);
            }
            Op::SetFlags { path, flags } if flags.fixed() => push(&mut self.fixed, path),
            Op::Link { to, .. } | Op::SlotLink { to, .. } => push(&mut self.others, to),
            Op::Unlink { path } => self.others.retain(|known| known != path),
            Op::Rmdir { path } => self.dirs.retain(|known| known != path),
            Op::Clone { from, to } => {
                copy_known(&mut self.dirs, from, to);
                copy_known(&mut self.others, from, to);
            }
            Op::Rename { from, to, .. } if from == to => {}
            Op::Rename { from, to, mode } => {
                let swaps = *mode == RenameMode::Exchange;
                move_known(&mut self.dirs, from, to, swaps);
                move_known(&mut self.others, from, to, swaps);
                if mode.whiteout_by().is_some() {
                    push(&mut self.others, from);
                }
            }
            _ => {}
        }
    }

    fn dir(&mut self) -> TreePath {
        self.rng.pick(&self.dirs).clone()
    }

    fn other(&mut self) -> TreePath {
        if self.others.is_empty() || self.rng.chance(5) {
            return self.fresh();
        }
        self.rng.pick(&self.others).clone()
    }

    fn any(&mut self) -> TreePath {
        match self.rng.below(10) {
            0..6 => self.other(),
            6..9 => self.dir(),
            _ => self.fresh(),
        }
    }

    /// A name, mostly a free one, in a directory, or now and then in something else.
    fn fresh(&mut self) -> TreePath {
        const TRIES: usize = 4;
        let mut path = self.random_name();
        for _ in 0..TRIES {
            if !self.others.contains(&path) && !self.dirs.contains(&path) {
                break;
            }
            path = self.random_name();
        }
        path
    }

    fn random_name(&mut self) -> TreePath {
        let dir = if self.rng.chance(4) { self.any_known() } else { self.dir() };
        let dir = if dir.0.len() > self.universe.depth_max { TreePath::default() } else { dir };
        let name: &Vec<u8> = self.rng.pick(&self.universe.names);
        dir.join(name)
    }

    fn any_known(&mut self) -> TreePath {
        if self.others.is_empty() { self.dir() } else { self.rng.pick(&self.others).clone() }
    }

    fn slot(&mut self) -> Slot {
        self.rng.below(self.universe.slots as u64) as Slot
    }

    fn caller(&mut self) -> Caller {
        *self.rng.pick(&[Caller::ROOT, Caller { uid: 1, gid: 2, umask: 0o022 }])
    }

    fn perm(&mut self) -> u32 {
        *self.rng.pick(&[0o644, 0o600, 0o755, 0o777, 0o1777, 0o2755, 0o2644, 0o4755, 0o6711, 0])
    }

    fn mode(&mut self) -> u32 {
        let kind =
            *self.rng.pick(&[0, 0o100_000, 0o010_000, 0o020_000, 0o060_000, 0o140_000, 0o040_000]);
        kind | self.perm() & 0o1777
    }

    fn flags(&mut self) -> OpenFlags {
        let (read, write) =
            *self.rng.pick(&[(true, false), (true, true), (true, true), (false, true)]);
        OpenFlags {
            read,
            write,
            append: self.rng.chance(15),
            appends: self.universe.flags_percent > 0 && self.rng.chance(30),
            truncate: write && self.rng.chance(10),
            exclusive: self.rng.chance(25),
            sync: self.rng.chance(5),
            execute: false,
        }
    }

    /// A size or offset, close to where representations change.
    fn size(&mut self) -> u64 {
        let near = *self.rng.pick(&self.universe.sizes);
        match self.rng.below(3) {
            0 => near,
            1 => near + self.rng.below(700),
            _ => near.saturating_sub(self.rng.below(700)),
        }
    }
}

fn push(known: &mut Vec<TreePath>, path: &TreePath) {
    if !known.contains(path) {
        known.push(path.clone());
    }
}

/// Adds the paths at and below `from` again at `to`.
fn copy_known(known: &mut Vec<TreePath>, from: &TreePath, to: &TreePath) {
    let below = known.iter().filter(|path| path.is_within(from));
    let copies: Vec<TreePath> =
        below.map(|path| TreePath([&to.0[..], &path.0[from.0.len()..]].concat())).collect();
    copies.iter().for_each(|path| push(known, path));
}

/// Moves the paths at and below `from` to `to`. The paths that were there are removed, or moved to `from` in a swap.
fn move_known(known: &mut Vec<TreePath>, from: &TreePath, to: &TreePath, swaps: bool) {
    if !swaps {
        known.retain(|path| !path.is_within(to));
    }
    for path in known {
        let (old, new) = if path.is_within(from) { (from, to) } else { (to, from) };
        if path.is_within(old) {
            let below = path.0.split_off(old.0.len());
            path.0 = [new.0.clone(), below].concat();
        }
    }
}
