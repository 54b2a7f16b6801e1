//! Bytes of data objects, in memory and on a local disk.
//!
//! Objects never change, so that what is cached is right for ever. It is cached in pieces, as the storage gave them: with the
//! checksums of [`crate::blocks`], which are compared again when a piece comes from the disk. Pieces on the disk are
//! files of one directory. Any of them may be removed at any time, and one that cannot be read or is damaged is fetched
//! again.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use quick_cache::sync::Cache;
use quick_cache::{Lifecycle, Options, OptionsBuilder, Weighter};
use serde::Serialize;
use varve_env::{Env, OpenMode};

use crate::blocks;
use crate::extents::ObjectId;
use crate::options::CacheOptions;
use crate::record::data_name;
use crate::requests::Requests;

/// Blocks of a piece.
const PIECE_BLOCKS: u64 = 16;
/// Bytes of the payload of a piece: what one request fetches at least.
pub(crate) const PIECE_BYTES: u64 = PIECE_BLOCKS * blocks::BLOCK_BYTES;
/// The most pieces that are fetched at the same time.
const FETCH_MAX: usize = 16;

/// A piece of an object.
type PieceId = (ObjectId, u64);

/// Reads of data objects.
#[derive(Debug)]
pub(crate) struct BlockCache {
    requests: Arc<Requests>,
    store: u128,
    memory: Cache<PieceId, Bytes, PieceBytes>,
    disk: Option<DiskCache>,
    /// Objects that are not there yet.
    staged: Mutex<HashMap<ObjectId, Bytes>>,
    /// Pieces that threads are fetching.
    under_way: Mutex<HashSet<PieceId>>,
    arrived: Condvar,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    memory_hits: AtomicU64,
    disk_hits: AtomicU64,
    misses: AtomicU64,
}

/// How often pieces of 1 MiB of data objects were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheCounts {
    /// In memory.
    pub memory_hits: u64,
    /// On the local disk.
    pub disk_hits: u64,
    /// Nowhere, so that they were fetched.
    pub misses: u64,
    /// Bytes that the pieces on the local disk take.
    pub disk_bytes: u64,
}

#[derive(Clone, Debug)]
struct PieceBytes;

impl Weighter<PieceId, Bytes> for PieceBytes {
    fn weight(&self, _: &PieceId, bytes: &Bytes) -> u64 {
        bytes.len() as u64 + 64
    }
}

/// One shard, since pieces are large: several would each hold too few of them.
fn room_for(bytes: u64) -> Options {
    let options = OptionsBuilder::new()
        .estimated_items_capacity((bytes / PIECE_BYTES) as usize)
        .weight_capacity(bytes)
        .shards(1)
        .build();
    match options {
        Ok(options) => options,
        // Both capacities are set.
        Err(error) => unreachable!("{error}"),
    }
}

impl BlockCache {
    /// The cache of the objects of a store, in memory and, if it is given, in a directory.
    pub(crate) fn open(
        machine: &Arc<dyn Env>,
        requests: Arc<Requests>,
        store: u128,
        memory_bytes: u64,
        disk: Option<&CacheOptions>,
    ) -> io::Result<BlockCache> {
        let disk =
            disk.map(|disk| DiskCache::open(Arc::clone(machine), store, disk)).transpose()?;
        let memory = Cache::with_options(
            room_for(memory_bytes.max(4 * PIECE_BYTES)),
            PieceBytes,
            Default::default(),
            Default::default(),
        );
        let (staged, counters) = (Mutex::default(), Counters::default());
        let (under_way, arrived) = (Mutex::default(), Condvar::new());
        Ok(BlockCache { requests, store, memory, disk, staged, under_way, arrived, counters })
    }

    /// The store whose objects it has.
    pub(crate) fn store(&self) -> u128 {
        self.store
    }

    pub(crate) fn counts(&self) -> CacheCounts {
        let Counters { memory_hits, disk_hits, .. } = &self.counters;
        CacheCounts {
            memory_hits: memory_hits.load(Ordering::Relaxed),
            disk_hits: disk_hits.load(Ordering::Relaxed),
            misses: self.misses(),
            disk_bytes: self.disk.as_ref().map_or(0, DiskCache::bytes),
        }
    }

    /// How many pieces were fetched so far.
    pub(crate) fn misses(&self) -> u64 {
        self.counters.misses.load(Ordering::Relaxed)
    }

    /// Reads these objects from memory until [`BlockCache::unstage`].
    pub(crate) fn stage(&self, objects: &[(ObjectId, Bytes)]) {
        self.staged.lock().extend(objects.iter().cloned());
    }

    /// The objects are there.
    pub(crate) fn unstage(&self, objects: &[ObjectId]) {
        let mut staged = self.staged.lock();
        objects.iter().for_each(|id| drop(staged.remove(id)));
    }

    /// Reads `buf.len()` bytes at `from` of the payload of an object.
    pub(crate) fn read(&self, id: ObjectId, from: u64, buf: &mut [u8]) -> io::Result<()> {
        if let Some(bytes) = self.staged.lock().get(&id) {
            let range = from as usize..from as usize + buf.len();
            let bytes = bytes.get(range).ok_or_else(|| self.too_short(id, from))?;
            buf.copy_from_slice(bytes);
            return Ok(());
        }
        let mut done = 0;
        while done < buf.len() {
            let at = from + done as u64;
            let piece = at / PIECE_BYTES;
            let bytes = match self.cached((id, piece)) {
                Some(bytes) => bytes,
                None => {
                    let end = from + buf.len() as u64;
                    let pieces: Vec<PieceId> = (piece..end.div_ceil(PIECE_BYTES))
                        .take(FETCH_MAX)
                        .map(|piece| (id, piece))
                        .collect();
                    match self.fetch(&pieces)?.into_iter().next() {
                        Some((fetched, bytes)) if fetched == (id, piece) => bytes,
                        // Another thread has fetched it meanwhile.
                        _ => continue,
                    }
                }
            };
            let within = (at % PIECE_BYTES) as usize;
            let count = (buf.len() - done).min(PIECE_BYTES as usize - within);
            let source = bytes.get(within..within + count).ok_or_else(|| self.too_short(id, at))?;
            buf[done..done + count].copy_from_slice(source);
            done += count;
        }
        Ok(())
    }

    /// Fetches what is not cached of some ranges of objects, at the same time.
    pub(crate) fn prefetch(&self, ranges: &[(ObjectId, u64, u64)]) -> io::Result<()> {
        let mut missing: Vec<PieceId> = Vec::new();
        for &(id, from, len) in ranges {
            if self.staged.lock().contains_key(&id) {
                continue;
            }
            for piece in from / PIECE_BYTES..(from + len).div_ceil(PIECE_BYTES) {
                if missing.last() != Some(&(id, piece)) && self.cached((id, piece)).is_none() {
                    missing.push((id, piece));
                }
            }
        }
        for pieces in missing.chunks(FETCH_MAX) {
            self.fetch(pieces)?;
        }
        Ok(())
    }

    fn cached(&self, piece: PieceId) -> Option<Bytes> {
        if let Some(bytes) = self.memory.get(&piece) {
            self.counters.memory_hits.fetch_add(1, Ordering::Relaxed);
            return Some(bytes);
        }
        let stored = self.disk.as_ref()?.read(piece)?;
        match blocks::decode(self.store, piece.0, piece.1 * PIECE_BLOCKS, &stored) {
            Ok(bytes) => {
                self.counters.disk_hits.fetch_add(1, Ordering::Relaxed);
                self.memory.insert(piece, bytes.clone());
                Some(bytes)
            }
            Err(what) => {
                log::warn!(
                    "a piece of {} in the cache is fetched again: {what}",
                    data_name(piece.0)
                );
                self.disk.as_ref()?.forget(piece);
                None
            }
        }
    }

    /// Fetches those of some pieces that no other thread is fetching, and waits for the others. Returns what it has fetched.
    fn fetch(&self, pieces: &[PieceId]) -> io::Result<Vec<(PieceId, Bytes)>> {
        let mut under_way = self.under_way.lock();
        let own: Vec<PieceId> =
            pieces.iter().copied().filter(|piece| under_way.insert(*piece)).collect();
        if own.is_empty() {
            if pieces.iter().any(|piece| under_way.contains(piece)) {
                self.arrived.wait(&mut under_way);
            }
            return Ok(Vec::new());
        }
        drop(under_way);
        let fetched = self.fetch_own(&own);
        let mut under_way = self.under_way.lock();
        under_way.retain(|piece| !own.contains(piece));
        self.arrived.notify_all();
        fetched
    }

    fn fetch_own(&self, pieces: &[PieceId]) -> io::Result<Vec<(PieceId, Bytes)>> {
        self.counters.misses.fetch_add(pieces.len() as u64, Ordering::Relaxed);
        let range = |&(id, piece): &PieceId| {
            let first = piece * PIECE_BLOCKS;
            (data_name(id), blocks::range_of(first..first + PIECE_BLOCKS))
        };
        let ranges: Vec<_> = pieces.iter().map(range).collect();
        let fetched = self.requests.read_all(&ranges)?;
        let each = pieces.iter().zip(fetched).map(|(&piece, stored)| {
            let (id, number) = piece;
            let bytes =
                blocks::decode(self.store, id, number * PIECE_BLOCKS, &stored).map_err(|what| {
                    let address = self.requests.address();
                    let text = format!("{} of {address} is damaged: {what}", data_name(id));
                    io::Error::new(io::ErrorKind::InvalidData, text)
                })?;
            if let Some(disk) = &self.disk {
                disk.write(piece, &stored);
            }
            self.memory.insert(piece, bytes.clone());
            Ok((piece, bytes))
        });
        each.collect()
    }

    fn too_short(&self, id: ObjectId, at: u64) -> io::Error {
        let (name, address) = (data_name(id), self.requests.address());
        let text = format!("{name} of {address} is damaged: it has no byte {at}, which a file has");
        io::Error::new(io::ErrorKind::InvalidData, text)
    }
}

/// Pieces as files of a local directory.
#[derive(Debug)]
pub(crate) struct DiskCache {
    files: Arc<Files>,
    index: Cache<PieceId, u64, FileBytes, quick_cache::DefaultHashBuilder, Remove>,
}

#[derive(Debug)]
struct Files {
    machine: Arc<dyn Env>,
    dir: PathBuf,
    store: u128,
}

#[derive(Clone, Debug)]
struct FileBytes;

impl Weighter<PieceId, u64> for FileBytes {
    fn weight(&self, _: &PieceId, bytes: &u64) -> u64 {
        *bytes
    }
}

/// Removes the files of pieces that the index has no room for.
#[derive(Clone, Debug)]
struct Remove(Arc<Files>);

impl Lifecycle<PieceId, u64> for Remove {
    type RequestState = ();

    fn on_evict(&self, (): &mut Self::RequestState, piece: PieceId, bytes: u64) {
        let _ = self.0.machine.remove_file(&self.0.path(piece, bytes));
    }
}

impl Files {
    /// The file of a piece. Its name says how long it is, since a cut one may have right checksums.
    fn path(&self, (id, piece): PieceId, bytes: u64) -> PathBuf {
        let ObjectId { epoch, number } = id;
        self.dir.join(format!("{:x}-{epoch:x}-{number:x}-{piece:x}-{bytes:x}", self.store))
    }

    /// The piece of this store whose file has this name, and its length.
    fn piece(&self, name: &str) -> Option<(PieceId, u64)> {
        let (store, name) = name.split_once('-')?;
        let mut parts = name.split('-').map(|part| u64::from_str_radix(part, 16).ok());
        let (epoch, number, piece) = (parts.next()??, parts.next()??, parts.next()??);
        let bytes = parts.next()??;
        let is_own = u128::from_str_radix(store, 16) == Ok(self.store);
        is_own.then_some(((ObjectId { epoch, number }, piece), bytes))
    }
}

impl DiskCache {
    /// Opens the cache of a store. Reads the names that are there, and removes the files that are no pieces of it.
    fn open(
        machine: Arc<dyn Env>,
        store: u128,
        CacheOptions { dir, bytes_max }: &CacheOptions,
    ) -> io::Result<DiskCache> {
        match machine.create_dir(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let files = Arc::new(Files { machine, dir: dir.clone(), store });
        let index = Cache::with_options(
            room_for((*bytes_max).max(4 * PIECE_BYTES)),
            FileBytes,
            Default::default(),
            Remove(Arc::clone(&files)),
        );
        let cache = DiskCache { files, index };
        for item in cache.files.machine.list(dir)? {
            let path = dir.join(&item.name);
            match item.name.to_str().and_then(|name| cache.files.piece(name)) {
                Some((piece, bytes)) => cache.index.insert(piece, bytes),
                // Of a store that was at the same address before, or not whole.
                None => drop(cache.files.machine.remove_file(&path)),
            }
        }
        Ok(cache)
    }

    fn bytes(&self) -> u64 {
        self.index.weight()
    }

    fn read(&self, piece: PieceId) -> Option<Vec<u8>> {
        let len = self.index.get(&piece)?;
        let read = || {
            let file = self.files.machine.open(&self.files.path(piece, len), OpenMode::Read)?;
            let mut bytes = vec![0; len as usize];
            file.read_exact_at(&mut bytes, 0)?;
            io::Result::Ok(bytes)
        };
        match read() {
            Ok(bytes) => Some(bytes),
            Err(_) => {
                self.forget(piece);
                None
            }
        }
    }

    /// Keeps a piece if the disk takes it.
    fn write(&self, piece: PieceId, bytes: &[u8]) {
        let len = bytes.len() as u64;
        let path = self.files.path(piece, len);
        let new = path.with_extension("new");
        let write = || {
            let file = self.files.machine.open(&new, OpenMode::CreateNew)?;
            file.write_all_at(bytes, 0)?;
            self.files.machine.rename(&new, &path)
        };
        match write() {
            Ok(()) => self.index.insert(piece, len),
            // Another thread is writing the same piece.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                log::debug!("the cache does not take {}: {error}", path.display());
                let _ = self.files.machine.remove_file(&new);
            }
        }
    }

    fn forget(&self, piece: PieceId) {
        if let Some((_, bytes)) = self.index.remove(&piece) {
            let _ = self.files.machine.remove_file(&self.files.path(piece, bytes));
        }
    }
}
