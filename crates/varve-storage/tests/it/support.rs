//! Stores on object stores in memory.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use varve_env::sim::SimEnv;
use varve_env::{Env, OpenMode};
use varve_storage::{MemoryObjects, Owner, Remote, RemoteEnv, Retry, StoreOptions};

/// The directory in the place of which stores are shown.
pub(crate) const ANCHOR: &str = "/anchor";

pub(crate) fn path(name: &str) -> PathBuf {
    Path::new(ANCHOR).join(name)
}

/// A store with checkpoints after every few records, whose garbage goes at once.
pub(crate) fn remote(objects: &Arc<MemoryObjects>) -> Remote {
    let options = StoreOptions {
        checkpoint_records: 5,
        reader_age: Duration::ZERO,
        lease: Duration::from_secs(30),
        ..StoreOptions::default()
    };
    let objects = Arc::<MemoryObjects>::clone(objects);
    Remote { objects, options, retry: Retry::default(), cache: None }
}

pub(crate) fn owner(process: u32) -> Owner {
    Owner { host: "host".into(), process, purpose: "test".into(), ..Owner::default() }
}

/// Opens a store as its owner, where every earlier owner is dead.
pub(crate) fn own(objects: &Arc<MemoryObjects>, seed: u64) -> io::Result<Arc<RemoteEnv>> {
    let machine: Arc<dyn Env> = SimEnv::new(seed);
    RemoteEnv::own(machine, Path::new(ANCHOR), remote(objects), owner(1), |_| true)
}

/// Opens a store as its owner, so many seconds after [`own`] does.
pub(crate) fn own_later(objects: &Arc<MemoryObjects>, seconds: u64) -> Arc<RemoteEnv> {
    let machine = SimEnv::new(1);
    machine.sleep(Duration::from_secs(seconds));
    RemoteEnv::own(machine, Path::new(ANCHOR), remote(objects), owner(1), |_| true).unwrap()
}

/// An empty store.
pub(crate) fn format() -> Arc<MemoryObjects> {
    let objects = Arc::new(MemoryObjects::default());
    let machine: Arc<dyn Env> = SimEnv::new(0);
    varve_storage::format(&machine, &remote(&objects)).unwrap();
    objects
}

pub(crate) fn write(env: &dyn Env, name: &str, bytes: &[u8]) -> io::Result<()> {
    let file = env.open(&path(name), OpenMode::CreateOrOpen)?;
    file.write_all_at(bytes, 0)?;
    file.set_len(bytes.len() as u64)?;
    file.sync_data()
}

pub(crate) fn read(env: &dyn Env, name: &str) -> io::Result<Vec<u8>> {
    let file = env.open(&path(name), OpenMode::Read)?;
    let mut bytes = vec![0; file.stat()?.len as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}
