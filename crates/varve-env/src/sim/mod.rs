//! A seeded machine in memory, whose disk can fail, fill up and lose power.
//!
//! A test runs the code under test on a [`SimEnv`] and stops it somewhere: by itself, at the n-th
//! operation that changes something ([`SimEnv::crash_after`]) or at the n-th sync
//! ([`SimEnv::crash_at_sync`]). From there
//!
//! 1. [`SimEnv::power_cut`] makes the machine of the next boot, with one of the states that the
//!    promises of [`crate`] leave open. It does not touch the machine it starts from, so that many
//!    seeds show many states of one moment.
//! 2. [`SimEnv::process_kill`] makes the machine that the next process of the same boot finds: everything written is
//!    there, and unsynced changes are still unsynced. [`SimEnv::process_kill_within`] adds a part of the write that
//!    came next.
//!
//! To see every moment of one run, [`SimEnv::watch`] offers a copy of the machine before each operation. The calls
//! above work on a copy too.
//!
//! A test can also inject faults ([`SimEnv::fail`]), fill the disk ([`SimEnv::set_capacity`], or by other programs at
//! a given operation [`SimEnv::fill_after`]) under the rules of different disks ([`RoomRules`]), and damage files
//! ([`SimEnv::damage`]).
//!
//! Invariant: the same seed and the same calls give the same run.
//!
//! It does not simulate:
//!
//! - Unsynced file times and permissions: they are on disk at once.
//! - Storages that reserve a zeroed range: here its space is freed. Removals that need space.
//! - Lack of descriptors and of memory, except by an injected fault.
//! - A page cache that loses a part: it is lost with the machine, and as a whole. A sync below a directory covers
//!   only that directory, not the whole storage.
//! - Memory maps except windows, other programs that write to a file, and symbolic links.

mod content;
mod crash;
mod disk;
mod env;
mod fault;
mod file;
mod room;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use varve_types::Timestamp;

use crate::rng::Rng;
use content::{Change, PAGE_BYTES};
use crash::{Survival, UnderWay};
use disk::{Body, Disk, NodeId};
pub use fault::{FaultRule, JOURNAL_ENTRIES_MAX, JournalEntry, SimOp, is_crash};
pub use room::RoomRules;

/// The size of a new machine's disk, in bytes.
pub const CAPACITY_BYTES_DEFAULT: u64 = 1 << 40;
/// The time of day at which a new machine starts, in seconds since 1970.
pub const START_SECS: i64 = 1_700_000_000;
/// How far the clock moves with each call that reads it, in nanoseconds.
const TICK_NS: u64 = 1_000;
const NS_PER_SEC: i128 = 1_000_000_000;

/// The simulated machine.
pub struct SimEnv {
    shared: Arc<Shared>,
}

/// The state that the machine, its open files and its locks share.
struct Shared {
    state: Mutex<State>,
    /// The descriptor that open files report.
    descriptor: OnceLock<OwnedFd>,
}

/// The function that [`SimEnv::watch`] calls.
pub type Watcher = Box<dyn FnMut(&JournalEntry, &dyn Fn() -> Arc<SimEnv>) + Send>;

/// The whole state of the machine.
struct State {
    disk: Disk,
    control: fault::Control,
    rng: Rng,
    locked: BTreeSet<NodeId>,
    boot_id: u128,
    /// Nanoseconds since the machine started.
    elapsed_ns: u64,
    /// The time of day at `elapsed_ns` 0, in nanoseconds since 1970.
    start_ns: i128,
    watcher: Option<Watcher>,
    /// The next write, or the write before which the machine crashed.
    under_way: Option<UnderWay>,
}

impl State {
    /// Shows one operation to the watcher, counts it, and decides whether it succeeds.
    fn begin(&mut self, op: SimOp, paths: &[&Path], range: Option<(u64, u64)>) -> io::Result<()> {
        if op.mutates()
            && !self.control.crashed
            && let Some(mut watcher) = self.watcher.take()
        {
            let entry = JournalEntry::new(self.control.op_count + 1, op, paths, range);
            watcher(&entry, &|| self.copy());
            self.watcher = Some(watcher);
        }
        let count = self.control.op_count;
        for (_, left_bytes) in
            self.control.fills.extract_if(.., |(n, _)| op.mutates() && count >= *n)
        {
            self.disk.fill(left_bytes / PAGE_BYTES);
        }
        self.control.begin(op, paths, range)
    }

    /// Makes a copy whose operations all fail.
    fn copy(&self) -> Arc<SimEnv> {
        let (disk, rng) = (self.disk.clone(), self.rng.clone());
        let copy = SimEnv::with(disk, rng, self.boot_id, self.elapsed_ns, self.start_ns);
        {
            let mut state = copy.shared.state.lock();
            state.control.crashed = true;
            state.under_way = self.under_way.clone();
        }
        copy
    }

    /// Moves the clock on and returns the time of day.
    fn tick(&mut self) -> Timestamp {
        self.elapsed_ns += TICK_NS;
        let ns = self.start_ns + i128::from(self.elapsed_ns);
        let nanos = u32::try_from(ns.rem_euclid(NS_PER_SEC)).unwrap_or(0);
        i64::try_from(ns.div_euclid(NS_PER_SEC))
            .ok()
            .and_then(|secs| Timestamp::new(secs, nanos))
            .unwrap_or(Timestamp::EPOCH)
    }
}

impl SimEnv {
    /// A machine with an empty disk; equal seeds make equal machines.
    pub fn new(seed: u64) -> Arc<SimEnv> {
        let mut rng = Rng::new(seed);
        let boot_id = u128::from(rng.next_u64()) << 64;
        let disk = Disk::new(CAPACITY_BYTES_DEFAULT);
        SimEnv::with(disk, rng, boot_id, 0, i128::from(START_SECS) * NS_PER_SEC)
    }

    fn with(disk: Disk, rng: Rng, boot_id: u128, elapsed_ns: u64, start_ns: i128) -> Arc<SimEnv> {
        let control = fault::Control::default();
        let locked = BTreeSet::new();
        let (watcher, under_way) = (None, None);
        let state =
            State { disk, control, rng, locked, boot_id, elapsed_ns, start_ns, watcher, under_way };
        let shared = Shared { state: Mutex::new(state), descriptor: OnceLock::new() };
        Arc::new(SimEnv { shared: Arc::new(shared) })
    }

    /// Returns the machine of the next boot, where `seed` decides which unsynced changes survive. Counts, crash
    /// points and faults start anew; the capacity stays.
    pub fn power_cut(&self, seed: u64) -> Arc<SimEnv> {
        self.next_boot(seed, &mut Survival::Random(Rng::new(seed)))
    }

    /// Cuts the power as [`SimEnv::power_cut`] does. If the length of a file survived without the bytes, the file has
    /// bytes of removed files instead of zeros.
    pub fn power_cut_stale(&self, seed: u64) -> Arc<SimEnv> {
        self.next_boot(seed, &mut Survival::Stale(Rng::new(seed)))
    }

    /// Cuts the power so that only synced changes survive.
    pub fn power_cut_keep_nothing(&self) -> Arc<SimEnv> {
        self.next_boot(0, &mut Survival::Nothing)
    }

    /// Cuts the power so that all changes survive.
    pub fn power_cut_keep_all(&self) -> Arc<SimEnv> {
        self.next_boot(0, &mut Survival::Everything)
    }

    /// Cuts the power of the disk alone, as when it is plugged in anew, and the machine goes on. `seed` decides which
    /// unsynced changes survive, and the boot id stays.
    pub fn storage_cut(&self, seed: u64) -> Arc<SimEnv> {
        let state = self.shared.state.lock();
        let disk = crash::power_cut(&state.disk, &mut Survival::Random(Rng::new(seed)));
        SimEnv::with(disk, state.rng.clone(), state.boot_id, state.elapsed_ns, state.start_ns)
    }

    fn next_boot(&self, seed: u64, survival: &mut Survival) -> Arc<SimEnv> {
        let state = self.shared.state.lock();
        let disk = crash::power_cut(&state.disk, survival);
        let mut rng = state.rng.clone();
        let high = rng.next_u64() ^ Rng::new(seed).next_u64();
        let low = (state.boot_id as u64).wrapping_add(1);
        let boot_id = (u128::from(high) << 64) | u128::from(low);
        let start_ns = state.start_ns + i128::from(state.elapsed_ns);
        SimEnv::with(disk, rng, boot_id, 0, start_ns)
    }

    /// Returns the machine as the next process of the same boot finds it. From now on every operation on this one
    /// fails, also on open files.
    pub fn process_kill(&self) -> Arc<SimEnv> {
        let mut state = self.shared.state.lock();
        state.control.crashed = true;
        let disk = crash::process_kill(&state.disk);
        SimEnv::with(disk, state.rng.clone(), state.boot_id, state.elapsed_ns, state.start_ns)
    }

    /// Kills the process within a write: the one before which this machine crashed, or before which a watcher copied
    /// it. `seed` decides which part of the write is there.
    pub fn process_kill_within(&self, seed: u64) -> Arc<SimEnv> {
        let under_way = self.shared.state.lock().under_way.clone();
        let next = self.process_kill();
        if let Some(under_way) = under_way {
            let state = &mut *next.shared.state.lock();
            for piece in under_way.part(&mut Rng::new(seed)) {
                let now = state.tick();
                // A file without a name ended with the process, and there may be no space.
                let _ = state.disk.change_file(under_way.node, piece, now);
            }
        }
        next
    }

    /// Returns whether this machine crashed before a write, of which [`SimEnv::process_kill_within`] may leave a
    /// part.
    pub fn crashed_at_write(&self) -> bool {
        self.shared.state.lock().under_way.is_some()
    }

    /// Returns how many operations so far changed, or tried to change, what the disk may hold.
    pub fn op_count(&self) -> u64 {
        self.shared.state.lock().control.op_count
    }

    /// Returns how many of these operations were syncs.
    pub fn sync_count(&self) -> u64 {
        self.shared.state.lock().control.sync_count
    }

    /// Crashes the machine when [`SimEnv::op_count`] is `n`: every further operation fails, with an error that
    /// [`is_crash`] recognizes.
    pub fn crash_after(&self, n: u64) {
        self.shared.state.lock().control.crash_after = Some(n);
    }

    /// Crashes the machine at the sync that makes [`SimEnv::sync_count`] `n`. This sync makes nothing durable, and
    /// fails like every later operation, with an error that [`is_crash`] recognizes.
    pub fn crash_at_sync(&self, n: u64) {
        self.shared.state.lock().control.crash_at_sync = Some(n);
    }

    /// Returns whether an operation failed at a crash point, or the process was killed.
    pub fn crashed(&self) -> bool {
        self.shared.state.lock().control.crashed
    }

    /// Returns the last operations, oldest first.
    pub fn journal(&self) -> Vec<JournalEntry> {
        self.shared.state.lock().control.journal.iter().cloned().collect()
    }

    /// Adds a fault.
    pub fn fail(&self, rule: FaultRule) {
        self.shared.state.lock().control.faults.push(rule);
    }

    /// Returns how many operations of one kind there were, failed ones included.
    pub fn count_of(&self, op: SimOp) -> u64 {
        self.shared.state.lock().control.counts[op as usize]
    }

    /// Returns how many operations met a fault.
    pub fn fault_count(&self) -> u64 {
        self.shared.state.lock().control.fault_count
    }

    /// Fails the write-back of all unsynced changes of a file: each change is on disk or lost for good. Only a watch
    /// that is open by now ([`Env::watch`](crate::Env::watch)) reports this, as if another process had seen the error of the file.
    pub fn lose_unsynced(&self, path: &Path) -> io::Result<()> {
        let state = &mut *self.shared.state.lock();
        let node = state.disk.resolve(path)?;
        state.disk.lose_bytes(node, &mut state.rng);
        Ok(())
    }

    /// Ends all faults.
    pub fn clear_faults(&self) {
        self.shared.state.lock().control.faults.clear();
    }

    /// From now on syncs succeed and do nothing, as on a disk that lies. For tests of tests.
    pub fn set_ignore_syncs(&self, ignore: bool) {
        self.shared.state.lock().control.ignored.clear();
        if ignore {
            self.ignore_syncs_of(SimOp::Sync, "");
            self.ignore_syncs_of(SimOp::SyncDir, "");
            self.ignore_syncs_of(SimOp::SyncFs, "");
        }
    }

    /// From now on syncs of the kind `op` of paths that contain `path_part` succeed and do nothing, as if
    /// the program left them out. For tests of tests.
    pub fn ignore_syncs_of(&self, op: SimOp, path_part: &str) {
        self.shared.state.lock().control.ignored.push((op, path_part.to_owned()));
    }

    /// Calls `watcher` before each operation that changes what the disk may hold, with the operation and a function
    /// that copies the machine as it is. A copy shares its memory with this machine until one of them changes. All
    /// its operations fail; it serves [`SimEnv::power_cut`] and [`SimEnv::process_kill`]. The watcher must not use
    /// this machine.
    pub fn watch(&self, watcher: Watcher) {
        self.shared.state.lock().watcher = Some(watcher);
    }

    /// Ends watching.
    pub fn unwatch(&self) {
        self.shared.state.lock().watcher = None;
    }

    /// Returns a copy of the machine as it is, as [`SimEnv::watch`] makes them.
    pub fn copy(&self) -> Arc<SimEnv> {
        self.shared.state.lock().copy()
    }

    /// Returns the number of open files.
    pub fn open_handles(&self) -> u32 {
        self.shared.state.lock().disk.nodes.values().map(|node| node.handles).sum()
    }

    /// Makes the disk `bytes` large, rounded down to a multiple of 4096. Its content stays, even if that is more.
    pub fn set_capacity(&self, bytes: u64) {
        self.shared.state.lock().disk.capacity_pages = bytes / PAGE_BYTES;
    }

    /// Sets the rules by which the disk gives out space from now on. Its content stays, even if that takes more by
    /// these rules.
    pub fn set_room_rules(&self, rules: RoomRules) {
        let disk = &mut self.shared.state.lock().disk;
        disk.rules = rules;
        disk.recount_all();
    }

    /// Lets files of other programs take all space except `left_bytes`; with `u64::MAX` they take none.
    pub fn fill(&self, left_bytes: u64) {
        self.shared.state.lock().disk.fill(left_bytes / PAGE_BYTES);
    }

    /// When [`SimEnv::op_count`] is `n`, lets files of other programs take all space except `left_bytes`.
    /// May be called several times.
    pub fn fill_after(&self, n: u64, left_bytes: u64) {
        self.shared.state.lock().control.fills.push((n, left_bytes));
    }

    /// Sets whether copies of files share space, as far as callers can see. Each copy still takes space of its own.
    pub fn set_shares_room(&self, shares: bool) {
        self.shared.state.lock().disk.shares_room = shares;
    }

    /// Makes each open file report this descriptor from now on, so that callers treat it as a file that they can pass
    /// on. Nobody may use the descriptor. Only the first call counts.
    pub fn set_descriptor(&self, descriptor: OwnedFd) {
        let _ = self.shared.descriptor.set(descriptor);
    }

    /// Returns the bytes in use, a multiple of 4096.
    pub fn used_bytes(&self) -> u64 {
        self.shared.state.lock().disk.used_pages * PAGE_BYTES
    }

    /// Sets the time of day; the monotonic clock stays.
    pub fn set_time(&self, time: Timestamp) {
        let mut state = self.shared.state.lock();
        let ns = i128::from(time.secs()) * NS_PER_SEC + i128::from(time.nanos());
        state.start_ns = ns - i128::from(state.elapsed_ns);
    }

    /// Flips the bits `xor` of one byte, in the page cache and on disk.
    pub fn damage(&self, path: &Path, offset: u64, xor: u8) -> io::Result<()> {
        let mut byte = self.read_raw(path)?.get(offset as usize).copied().unwrap_or(0);
        byte ^= xor;
        self.change_raw(path, &Change::Write { offset, bytes: [byte].into() })
    }

    /// Overwrites bytes, in the page cache and on disk.
    pub fn write_raw(&self, path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.change_raw(path, &Change::Write { offset, bytes: bytes.into() })
    }

    /// Cuts or extends a file, in the page cache and on disk.
    pub fn truncate_raw(&self, path: &Path, len: u64) -> io::Result<()> {
        self.change_raw(path, &Change::SetLen(len))
    }

    /// Removes a file's name, also on disk.
    pub fn remove_raw(&self, path: &Path) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        let (dir, name) = state.disk.resolve_parent(path)?;
        let node = state.disk.resolve(path)?;
        state.disk.file(node)?;
        state.disk.change_names(vec![disk::NameEdit { dir, name: name.to_owned(), node: None }])?;
        state.disk.sync_dir(dir)
    }

    /// Returns all bytes of a file as readers see them. This works after a crash too.
    pub fn read_raw(&self, path: &Path) -> io::Result<Vec<u8>> {
        let state = self.shared.state.lock();
        Ok(state.disk.file(state.disk.resolve(path)?)?.current.to_vec())
    }

    /// Returns the paths of all files.
    pub fn files_raw(&self) -> Vec<std::path::PathBuf> {
        let state = self.shared.state.lock();
        let mut found = Vec::new();
        let mut waiting = vec![(std::path::PathBuf::from("/"), disk::ROOT)];
        while let Some((path, node)) = waiting.pop() {
            match state.disk.dir(node) {
                Ok(dir) => {
                    waiting.extend(dir.current.iter().map(|(name, id)| (path.join(name), *id)))
                }
                Err(_) => found.push(path),
            }
        }
        found.sort();
        found
    }

    /// Applies a change to both states of a file.
    fn change_raw(&self, path: &Path, change: &Change) -> io::Result<()> {
        let state = &mut *self.shared.state.lock();
        let node = state.disk.resolve(path)?;
        let file = state.disk.file_mut(node)?;
        file.current.apply(change);
        file.durable.apply(change);
        state.disk.recount(node);
        Ok(())
    }
}

impl fmt::Debug for SimEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state.lock();
        f.debug_struct("SimEnv")
            .field("boot_id", &state.boot_id)
            .field("op_count", &state.control.op_count)
            .field("crashed", &state.control.crashed)
            .finish_non_exhaustive()
    }
}
