//! The simulated machine as the code under test sees it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use varve_types::Timestamp;

use super::content::PAGE_BYTES;
use super::disk::{
    DirBody, EEXIST, EINVAL, EIO, EISDIR, ENOENT, ENOTDIR, ENOTEMPTY, EPERM, FileBody, NameEdit,
    errno,
};
use super::file::{SimFile, SimLock, stat_of};
use super::{Body, Disk, NodeId, SimEnv, SimOp, State, TICK_NS, is_crash};
use crate::watch::{Watch, Watched};
use crate::{
    DirItem, Env, File, FileKind, FileLock, FileStat, JoinHandle, OpenMode, Space, is_passing,
};

impl SimEnv {
    /// Finds or makes a file.
    fn open_file(&self, state: &mut State, path: &Path, mode: OpenMode) -> io::Result<SimFile> {
        let found = state
            .disk
            .resolve_parent(path)
            .and_then(|(dir, name)| Ok(state.disk.dir(dir)?.current.get(name).copied()));
        let creates = matches!(mode, OpenMode::CreateNew | OpenMode::CreateOrOpen);
        let op = if creates && matches!(found, Ok(None)) { SimOp::Create } else { SimOp::Open };
        state.begin(op, &[path], None)?;
        let node = match found? {
            Some(_) if mode == OpenMode::CreateNew => return errno(EEXIST),
            Some(node) if state.disk.kind(node) == FileKind::Dir => return errno(EISDIR),
            Some(node) => node,
            None if creates => {
                let (dir, name) = state.disk.resolve_parent(path)?;
                let now = state.tick();
                state.disk.create(dir, name, Body::File(FileBody::default()), now)?
            }
            None => return errno(ENOENT),
        };
        Ok(SimFile::open(&self.shared, state, node, path, mode != OpenMode::Read))
    }
}

impl Env for SimEnv {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let mut state = self.shared.state.lock();
        Ok(Arc::new(self.open_file(&mut state, path, mode)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        state.begin(SimOp::Rename, &[from, to], None)?;
        let disk = &mut state.disk;
        let node = disk.resolve(from)?;
        let (from_dir, from_name) = disk.resolve_parent(from)?;
        let (to_dir, to_name) = disk.resolve_parent(to)?;
        let moves_dir = disk.kind(node) == FileKind::Dir;
        if moves_dir && from != to && to.starts_with(from) {
            return errno(EINVAL);
        }
        match disk.dir(to_dir)?.current.get(to_name).copied() {
            Some(old) if old == node => return Ok(()),
            Some(old) => check_replace(disk, moves_dir, old)?,
            None => {}
        }
        disk.change_names(vec![
            NameEdit { dir: to_dir, name: to_name.to_owned(), node: Some(node) },
            NameEdit { dir: from_dir, name: from_name.to_owned(), node: None },
        ])
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        state.begin(SimOp::Link, &[from, to], None)?;
        let disk = &mut state.disk;
        let node = disk.resolve(from)?;
        let (dir, name) = disk.resolve_parent(to)?;
        if disk.dir(dir)?.current.contains_key(name) {
            return errno(EEXIST);
        }
        if disk.kind(node) == FileKind::Dir {
            return errno(EPERM);
        }
        disk.change_names(vec![NameEdit { dir, name: name.to_owned(), node: Some(node) }])
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        state.begin(SimOp::Remove, &[path], None)?;
        let node = state.disk.resolve(path)?;
        if state.disk.kind(node) == FileKind::Dir {
            return errno(EISDIR);
        }
        remove_name(&mut state.disk, path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        state.begin(SimOp::CreateDir, &[path], None)?;
        let (dir, name) = state.disk.resolve_parent(path)?;
        if state.disk.dir(dir)?.current.contains_key(name) {
            return errno(EEXIST);
        }
        let now = state.tick();
        state.disk.create(dir, name, Body::Dir(DirBody::default()), now).map(drop)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        state.begin(SimOp::RemoveDir, &[path], None)?;
        let node = state.disk.resolve(path)?;
        if !state.disk.dir(node)?.current.is_empty() {
            return errno(ENOTEMPTY);
        }
        remove_name(&mut state.disk, path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirItem>> {
        let mut state = self.shared.state.lock();
        state.begin(SimOp::List, &[dir], None)?;
        let disk = &state.disk;
        let names = &disk.dir(disk.resolve(dir)?)?.current;
        Ok(names
            .iter()
            .map(|(name, node)| DirItem { name: name.clone(), kind: disk.kind(*node) })
            .collect())
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        let mut state = self.shared.state.lock();
        state.begin(SimOp::Stat, &[path], None)?;
        stat_of(&state.disk, state.disk.resolve(path)?)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let state = &mut *self.shared.state.lock();
        // It takes a descriptor.
        state.begin(SimOp::Open, &[dir], None)?;
        let begun = state.begin(SimOp::SyncDir, &[dir], None);
        let node = state.disk.resolve(dir);
        match begun {
            Ok(()) if state.control.ignores(SimOp::SyncDir, dir) => Ok(()),
            Ok(()) => state.disk.sync_dir(node?),
            Err(error) => {
                if let (false, Ok(node)) = (is_crash(&error) || is_passing(&error), node) {
                    state.disk.lose_names(node, &mut state.rng);
                }
                Err(error)
            }
        }
    }

    fn watch(&self, dir: &Path) -> io::Result<Watch> {
        let mut state = self.shared.state.lock();
        state.begin(SimOp::Open, &[dir], None)?;
        state.disk.dir(state.disk.resolve(dir)?)?;
        Ok(Watch(Watched::Failures(AtomicU64::new(state.disk.failures))))
    }

    fn sync_below(&self, watch: &Watch, dir: &Path) -> io::Result<()> {
        let state = &mut *self.shared.state.lock();
        let begun = state.begin(SimOp::SyncFs, &[dir], None);
        let (disk, rng) = (&mut state.disk, &mut state.rng);
        let nodes = disk.resolve(dir).map(|node| disk.nodes_below(node));
        match &begun {
            Ok(()) if state.control.ignores(SimOp::SyncFs, dir) => {}
            Ok(()) => nodes?.into_iter().try_for_each(|node| match disk.kind(node) {
                FileKind::Dir => disk.sync_dir(node),
                _ => disk.sync_file(node, rng),
            })?,
            Err(error) if is_crash(error) || is_passing(error) => return begun,
            Err(_) => nodes?.into_iter().for_each(|node| match disk.kind(node) {
                FileKind::Dir => disk.lose_names(node, rng),
                _ => disk.lose_bytes(node, rng),
            }),
        }
        let Watched::Failures(told) = &watch.0 else { return begun };
        let is_news = told.swap(disk.failures, Ordering::AcqRel) != disk.failures;
        begun.and_then(|()| if is_news { errno(EIO) } else { Ok(()) })
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        let mut state = self.shared.state.lock();
        let held = state.disk.resolve(path).is_ok_and(|node| state.locked.contains(&node));
        if held {
            return state.begin(SimOp::Open, &[path], None).map(|()| None);
        }
        let file = self.open_file(&mut state, path, OpenMode::CreateOrOpen)?;
        state.locked.insert(file.node);
        Ok(Some(Box::new(SimLock { file })))
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let mut state = self.shared.state.lock();
        state.begin(SimOp::Stat, &[path], None)?;
        state.disk.resolve(path)?;
        let free_bytes = state.disk.free_pages() * PAGE_BYTES + state.disk.rules.unusable_bytes;
        let total_bytes = state.disk.capacity_pages * PAGE_BYTES;
        Ok(Space { total_bytes, free_bytes, available_bytes: free_bytes })
    }

    fn now(&self) -> Timestamp {
        self.shared.state.lock().tick()
    }

    fn monotonic(&self) -> Duration {
        let mut state = self.shared.state.lock();
        state.elapsed_ns += TICK_NS;
        Duration::from_nanos(state.elapsed_ns)
    }

    fn boot_id(&self) -> u128 {
        self.shared.state.lock().boot_id
    }

    fn random(&self) -> u64 {
        self.shared.state.lock().rng.next_u64()
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Box<dyn JoinHandle>> {
        crate::os::spawn_thread(name, body)
    }

    fn sleep(&self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let mut state = self.shared.state.lock();
        state.elapsed_ns = state.elapsed_ns.saturating_add(ns);
    }

    fn is_deterministic(&self) -> bool {
        true
    }
}

/// Returns whether a rename may replace `old`.
fn check_replace(disk: &Disk, moves_dir: bool, old: NodeId) -> io::Result<()> {
    match (moves_dir, disk.kind(old) == FileKind::Dir) {
        (false, true) => errno(EISDIR),
        (true, false) => errno(ENOTDIR),
        (true, true) if !disk.dir(old)?.current.is_empty() => errno(ENOTEMPTY),
        _ => Ok(()),
    }
}

/// Takes a name away.
fn remove_name(disk: &mut Disk, path: &Path) -> io::Result<()> {
    let (dir, name) = disk.resolve_parent(path)?;
    disk.change_names(vec![NameEdit { dir, name: name.to_owned(), node: None }])
}
