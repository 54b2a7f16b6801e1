//! An open store: its tree, its journal and its owner.
//!
//! A change goes this way:
//!
//! 1. It is done in the tree or in what was written to a [`Node`], and noted for the next record.
//! 2. A sync uploads what is too large for a record, and joins the next [`Store::commit`]. One caller makes the record of
//!    all that wait by then; others gather for the one after it.
//! 3. The record is created in the next place of the journal. If that place is taken, another owner has fenced this one
//!    off: it is deposed, answers nothing any more, and nothing it has not acknowledged takes effect.
//! 4. After many records a checkpoint makes tables of directories that changed and then a root. An open reads the newest
//!    root and the records behind it.
//!
//! Invariants:
//! - Records are made one after the other, and the next one only when the last one is in its place.
//! - An object is there before a record names it.
//! - What a root leaves behind is removed when the root is there and the oldest reader has moved on.

use std::io;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};
use serde::Serialize;
use varve_env::Env;

use crate::blocks;
use crate::cache::{BlockCache, CacheCounts};
use crate::checkpoint::{Checkpoint, UPLOADS_MAX};
use crate::extents::ObjectId;
use crate::node::{Node, Uploaded};
use crate::objects::Created;
use crate::options::{Remote, StoreOptions};
use crate::record::{Change, Kind, Owner, Record, data_name, encode, journal_name};
use crate::replay::Loaded;
use crate::requests::{RequestCounts, Requests};
use crate::tree::Tree;

/// Bytes of a file that go into the record itself. More become objects first.
const INLINE_BYTES_MAX: u64 = 256 << 10;
/// Bytes of an object that a file is cut into.
const CHUNK_BYTES: usize = 4 << 20;

/// What [`crate::RemoteEnv::counts`] reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StorageCounts {
    /// Requests.
    pub requests: RequestCounts,
    /// The cache of data objects.
    pub cache: CacheCounts,
    /// Records of the journal that this process made.
    pub records: u64,
    /// Syncs that these records answered.
    pub syncs: u64,
    /// Roots that this process made.
    pub checkpoints: u64,
}

impl StorageCounts {
    /// All of them by name.
    pub(crate) fn named(&self) -> Vec<(&'static str, u64)> {
        let StorageCounts { requests, cache, records, syncs, checkpoints } = self;
        vec![
            ("creates", requests.creates),
            ("replaces", requests.replaces),
            ("reads", requests.reads),
            ("lists", requests.lists),
            ("removes", requests.removes),
            ("bytes_written", requests.bytes_written),
            ("bytes_read", requests.bytes_read),
            ("retries", requests.retries),
            ("waited_us", requests.waited_us),
            ("cache_memory_hits", cache.memory_hits),
            ("cache_disk_hits", cache.disk_hits),
            ("cache_misses", cache.misses),
            ("cache_disk_bytes", cache.disk_bytes),
            ("records", *records),
            ("syncs", *syncs),
            ("checkpoints", *checkpoints),
        ]
    }
}

/// A store that is open.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) machine: Arc<dyn Env>,
    pub(crate) requests: Arc<Requests>,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) options: StoreOptions,
    pub(crate) writer: Option<Writer>,
    pub(crate) live: Mutex<Live>,
    pub(crate) counts: Mutex<StorageCounts>,
}

/// What only the owner has.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) epoch: u64,
    pub(crate) id: u64,
    pub(crate) owner: Owner,
    pub(crate) next_number: AtomicU64,
    pub(crate) commits: Mutex<Commits>,
    pub(crate) committed: Condvar,
    pub(crate) is_deposed: AtomicBool,
    pub(crate) deposed_by: Mutex<Option<String>>,
    /// When it was known last that nobody had fenced this owner off, as the machine's monotonic milliseconds.
    pub(crate) sure_at: AtomicU64,
}

#[derive(Debug, Default)]
pub(crate) struct Commits {
    waiting: Vec<Arc<Node>>,
    /// The number of the batch that gathers.
    gathering: u64,
    /// All batches before this one are done.
    done: u64,
    is_running: bool,
    /// The last batch that failed, and why.
    failed: Option<(u64, String)>,
}

/// The files, and what is to be recorded of them.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) tree: Tree,
    /// Changes of names since the last record.
    pub(crate) pending: Vec<Change>,
    /// Files that were written to since the last record.
    pub(crate) dirty: Vec<Arc<Node>>,
    pub(crate) store: u128,
    pub(crate) seq: u64,
    /// A record that is made and perhaps not in its place.
    pub(crate) unsent: Option<(u64, Bytes)>,
    pub(crate) records_since_root: u64,
    pub(crate) bytes_since_root: u64,
    pub(crate) root: Option<u64>,
    /// A checkpoint whose objects are not all there yet.
    pub(crate) checkpoint: Option<Arc<Checkpoint>>,
    pub(crate) fences: Vec<u64>,
    pub(crate) is_closed: bool,
}

impl Store {
    /// Makes an empty store, which has no owner. Fails if anything is below the prefix.
    pub(crate) fn format(machine: &Arc<dyn Env>, requests: &Arc<Requests>) -> io::Result<()> {
        if let Some(found) = requests.list("", None)?.first() {
            let text = format!("{} is not empty: it has {}", requests.address(), found.name);
            return Err(io::Error::new(io::ErrorKind::DirectoryNotEmpty, text));
        }
        let store = u128::from(machine.random()) << 64 | u128::from(machine.random());
        let record = |seq, kind| Record {
            store,
            seq,
            epoch: 1,
            writer: machine.random(),
            at: machine.now().secs(),
            next_number: 0,
            kind,
        };
        let owner = Owner { purpose: "format".to_owned(), ..Owner::default() };
        for record in [record(1, Kind::Fence(owner)), record(2, Kind::Close)] {
            let name = journal_name(record.seq);
            match requests.create(&name, &encode(&name, &record))? {
                Created::New => {}
                // Its own first attempt, if that was not answered.
                Created::Exists if requests.read(&name, None)? == encode(&name, &record) => {}
                Created::Exists => {
                    let text = format!("{}: another program formats it", requests.address());
                    return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
                }
            }
        }
        Ok(())
    }

    pub(crate) fn none(requests: &Requests) -> io::Error {
        let text = format!("there is no store at {}", requests.address());
        io::Error::new(io::ErrorKind::NotFound, text)
    }

    /// A store of which this state was read.
    pub(crate) fn with(
        machine: Arc<dyn Env>,
        requests: Arc<Requests>,
        remote: Remote,
        live: Live,
        writer: Option<Writer>,
    ) -> io::Result<Arc<Store>> {
        let (memory_bytes, disk) = (remote.options.memory_bytes, remote.cache.as_ref());
        let cache =
            BlockCache::open(&machine, Arc::clone(&requests), live.store, memory_bytes, disk)?;
        let cache = Arc::new(cache);
        let (options, live, counts) = (remote.options, Mutex::new(live), Mutex::default());
        Ok(Arc::new(Store { machine, requests, cache, options, writer, live, counts }))
    }

    /// The newest state, to read.
    pub(crate) fn read(machine: Arc<dyn Env>, remote: Remote) -> io::Result<Arc<Store>> {
        let requests = Arc::new(Requests::new(&machine, &remote));
        let loaded = Loaded::read(&requests)?.ok_or_else(|| Store::none(&requests))?;
        Store::with(machine, requests, remote, loaded.live, None)
    }

    /// The newest state once more, to read, with the cache and the counts of this one.
    pub(crate) fn read_again(&self) -> io::Result<Arc<Store>> {
        let requests = Arc::clone(&self.requests);
        let loaded = Loaded::read(&requests)?.ok_or_else(|| Store::none(&requests))?;
        if loaded.live.store != self.cache.store() {
            let text = format!("another store is at {} now", requests.address());
            return Err(io::Error::other(text));
        }
        Ok(Arc::new(Store {
            machine: Arc::clone(&self.machine),
            requests,
            cache: Arc::clone(&self.cache),
            options: self.options.clone(),
            writer: None,
            live: Mutex::new(loaded.live),
            counts: Mutex::default(),
        }))
    }

    /// Whether there is a record behind the state that was read. One request. False too when the record was there and is
    /// removed by now, which is so at the earliest when the state has been old for the age of the oldest reader.
    pub(crate) fn is_behind(&self) -> io::Result<bool> {
        let next = journal_name(self.live.lock().seq + 1);
        self.requests.exists(&next)
    }

    /// The owner's state; `ReadOnlyFilesystem` for a reader.
    fn writer(&self) -> io::Result<&Writer> {
        self.writer.as_ref().ok_or_else(|| io::ErrorKind::ReadOnlyFilesystem.into())
    }

    /// Locks the files, to look at them.
    pub(crate) fn files(&self) -> io::Result<MutexGuard<'_, Live>> {
        self.check()?;
        Ok(self.live.lock())
    }

    /// Locks the files, to change them.
    pub(crate) fn change(&self) -> io::Result<MutexGuard<'_, Live>> {
        self.writer()?;
        self.check()?;
        let mut live = self.live.lock();
        if live.is_closed {
            return Err(io::Error::other(format!("{} is closed", self.requests.address())));
        }
        live.tree.at = self.machine.now().secs();
        Ok(live)
    }

    /// Notes that a file was written to for the first time since the last record.
    pub(crate) fn is_dirty(&self, node: &Arc<Node>) {
        self.live.lock().dirty.push(Arc::clone(node));
    }

    /// Closes an open file. What a removed file had is garbage when nobody has it open any more.
    pub(crate) fn release(&self, node: &Node) {
        let mut live = self.live.lock();
        let mut state = node.lock();
        state.handles -= 1;
        if state.handles == 0 && state.path.is_none() {
            let objects = state.own_objects();
            drop(state);
            live.tree.at = self.machine.now().secs();
            live.tree.leave_data(objects);
        }
    }

    pub(crate) fn new_id(&self, writer: &Writer) -> ObjectId {
        let number = writer.next_number.fetch_add(1, Ordering::Relaxed);
        ObjectId { epoch: writer.epoch, number }
    }

    /// Makes objects of what was written to a file, until the rest fits into a record.
    pub(crate) fn upload(&self, node: &Node) -> io::Result<()> {
        let writer = self.writer()?;
        let _one_at_a_time = node.uploads.lock();
        loop {
            let parts = node.lock().unrecorded();
            let bytes: usize = parts.iter().map(Bytes::len).sum();
            if bytes as u64 <= INLINE_BYTES_MAX {
                return Ok(());
            }
            let (objects, uploaded) = self.chunks(writer, parts);
            let mut objects = objects.into_iter().peekable();
            while objects.peek().is_some() {
                self.requests.create_all(objects.by_ref().take(UPLOADS_MAX).collect())?;
            }
            node.lock().uploaded(&uploaded);
        }
    }

    /// Objects of so many bytes each, of all parts, and where each part is in them.
    fn chunks(&self, writer: &Writer, parts: Vec<Bytes>) -> (Vec<(String, Bytes)>, Uploaded) {
        let (mut objects, mut uploaded) = (Vec::new(), Uploaded::new());
        let store = self.cache.store();
        let mut close = |chunk: &mut Vec<Bytes>| {
            let id = self.new_id(writer);
            let mut from = 0;
            for part in chunk.iter() {
                uploaded.insert(part.as_ptr() as usize, (part.clone(), id, from));
                from += part.len() as u64;
            }
            objects.push((data_name(id), blocks::encode(store, id, chunk)));
            chunk.clear();
        };
        let (mut chunk, mut chunk_bytes) = (Vec::new(), 0);
        for mut rest in parts {
            while !rest.is_empty() {
                let count = rest.len().min(CHUNK_BYTES - chunk_bytes);
                chunk.push(rest.split_to(count));
                chunk_bytes += count;
                if chunk_bytes == CHUNK_BYTES {
                    close(&mut chunk);
                    chunk_bytes = 0;
                }
            }
        }
        if !chunk.is_empty() {
            close(&mut chunk);
        }
        (objects, uploaded)
    }

    /// Makes what was written to a file durable, and all changes of names before.
    pub(crate) fn sync(&self, node: &Arc<Node>) -> io::Result<()> {
        self.upload(node)?;
        self.commit(std::slice::from_ref(node))
    }

    /// Makes all that was written durable whose path `is_meant`.
    pub(crate) fn sync_all(&self, is_meant: impl Fn(&str) -> bool) -> io::Result<()> {
        let dirty = self.files()?.dirty.clone();
        let is_meant = |node: &Arc<Node>| node.lock().path.as_deref().is_some_and(&is_meant);
        let nodes: Vec<Arc<Node>> = dirty.into_iter().filter(is_meant).collect();
        nodes.iter().try_for_each(|node| self.upload(node))?;
        self.commit(&nodes)
    }

    /// Records what was written to the files, and all changes of names before. Several callers share a record.
    pub(crate) fn commit(&self, nodes: &[Arc<Node>]) -> io::Result<()> {
        let writer = self.writer()?;
        let mut commits = writer.commits.lock();
        commits.waiting.extend(nodes.iter().cloned());
        let mine = commits.gathering;
        self.counts.lock().syncs += 1;
        loop {
            if commits.done > mine {
                return match &commits.failed {
                    Some((batch, text)) if *batch >= mine => Err(io::Error::other(text.clone())),
                    _ => self.check(),
                };
            }
            if commits.is_running {
                writer.committed.wait(&mut commits);
                continue;
            }
            commits.is_running = true;
            commits.gathering += 1;
            let nodes = mem::take(&mut commits.waiting);
            drop(commits);
            let outcome = self.make_record(writer, &nodes);
            commits = writer.commits.lock();
            commits.is_running = false;
            if let Err(error) = outcome {
                commits.failed = Some((commits.done, error.to_string()));
            }
            commits.done += 1;
            writer.committed.notify_all();
        }
    }

    /// Puts a record of all changes of names and of what was written to `nodes` into its place, if there is any.
    fn make_record(&self, writer: &Writer, nodes: &[Arc<Node>]) -> io::Result<()> {
        let unsent = self.live.lock().unsent.clone();
        if let Some((seq, bytes)) = unsent {
            self.send(writer, seq, &bytes)?;
        }
        let mut live = self.live.lock();
        let at = self.machine.now().secs();
        (live.tree.seq, live.tree.at) = (live.seq + 1, at);
        let mut changes = mem::take(&mut live.pending);
        for node in nodes {
            let mut left = Vec::new();
            let Some(change) = node.lock().record(&mut left) else { continue };
            live.tree.leave_data(left);
            changes.push(change);
            let Some(Change::Content { path, .. }) = changes.last() else { continue };
            if let Err(error) = live.tree.changed(path) {
                live.pending = changes;
                return Err(error);
            }
        }
        if changes.is_empty() {
            return Ok(());
        }
        live.dirty.retain(|node| node.lock().written.is_some());
        let (seq, bytes) = self.record(writer, &mut live, Kind::Changes(changes));
        self.begin_checkpoint(writer, &mut live, false);
        drop(live);
        self.send(writer, seq, &bytes)?;
        if self.machine.is_deterministic() {
            self.upkeep()?;
        }
        Ok(())
    }

    /// The next record, which is to be sent.
    pub(crate) fn record(&self, writer: &Writer, live: &mut Live, kind: Kind) -> (u64, Bytes) {
        let seq = live.seq + 1;
        let record = Record {
            store: live.store,
            seq,
            epoch: writer.epoch,
            writer: writer.id,
            at: self.machine.now().secs(),
            next_number: writer.next_number.load(Ordering::Relaxed),
            kind,
        };
        let name = journal_name(seq);
        let bytes = encode(&name, &record);
        live.seq = seq;
        // What is left behind from now on is needed until the next record is there.
        live.tree.seq = seq + 1;
        live.unsent = Some((seq, bytes.clone()));
        live.records_since_root += 1;
        live.bytes_since_root += bytes.len() as u64;
        (seq, bytes)
    }

    fn send(&self, writer: &Writer, seq: u64, bytes: &Bytes) -> io::Result<()> {
        self.check()?;
        let name = journal_name(seq);
        let asked_at = self.machine.monotonic().as_millis() as u64;
        if self.requests.create(&name, bytes)? == Created::Exists {
            // Perhaps by an attempt of this process that was not answered.
            self.met(writer, seq, &self.requests.read(&name, None)?)?;
        }
        writer.sure_at.fetch_max(asked_at, Ordering::Relaxed);
        let mut live = self.live.lock();
        live.unsent = None;
        // Readers had the state before until now, however long ago the record was made.
        let now = self.machine.now().secs();
        live.tree.left_later(seq, now);
        drop(live);
        self.counts.lock().records += 1;
        Ok(())
    }

    /// Makes everything durable with a root, and gives the store up.
    pub(crate) fn close(&self) -> io::Result<()> {
        let Some(writer) = &self.writer else { return Ok(()) };
        self.sync_all(|_| true)?;
        self.finish_checkpoint()?;
        let mut live = self.live.lock();
        if live.is_closed {
            return Ok(());
        }
        live.is_closed = true;
        (live.tree.seq, live.tree.at) = (live.seq + 1, self.machine.now().secs());
        let (seq, bytes) = self.record(writer, &mut live, Kind::Close);
        self.begin_checkpoint(writer, &mut live, true);
        drop(live);
        self.send(writer, seq, &bytes)?;
        self.finish_checkpoint()
    }

    pub(crate) fn counts(&self) -> StorageCounts {
        let counts = *self.counts.lock();
        StorageCounts { requests: self.requests.counts(), cache: self.cache.counts(), ..counts }
    }

    /// An id of this opening, which no other has.
    pub(crate) fn boot_id(&self) -> u128 {
        let writer = self.writer.as_ref().map_or((0, 0), |writer| (writer.epoch, writer.id));
        u128::from(writer.0) << 64 | u128::from(writer.1)
    }
}
