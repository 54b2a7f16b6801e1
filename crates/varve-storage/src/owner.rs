//! The owner of a store: how a process becomes it, shows that it is there, and learns that it no longer is.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use varve_env::Env;

use crate::objects::Created;
use crate::options::Remote;
use crate::record::{Kind, Notice, OWNER, Owner, Record, decode, encode, journal_name};
use crate::replay::{Loaded, damaged};
use crate::requests::Requests;
use crate::store::{Store, Writer};

/// The longest lease that is waited out, in milliseconds: no owner asks for an hour.
const LEASE_MAX_MS: u64 = 3_600_000;

/// Puts a fence into the next place of the journal; `None` if that is taken.
fn place_fence(
    requests: &Requests,
    loaded: &Loaded,
    writer: u64,
    owner: &Owner,
) -> io::Result<Option<(String, Bytes)>> {
    let record = Record {
        store: loaded.live.store,
        seq: loaded.live.seq + 1,
        epoch: loaded.epoch + 1,
        writer,
        at: owner.since,
        next_number: 0,
        kind: Kind::Fence(owner.clone()),
    };
    let name = journal_name(record.seq);
    let bytes = encode(&name, &record);
    let is_placed = match requests.create(&name, &bytes)? {
        Created::New => true,
        // Perhaps by an attempt that was not answered.
        Created::Exists => requests.read(&name, None)? == bytes,
    };
    Ok(is_placed.then_some((name, bytes)))
}

impl Writer {
    /// Fails if another process has become the owner.
    fn check(&self) -> io::Result<()> {
        if !self.is_deposed.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(io::Error::other(self.deposed_by.lock().clone().unwrap_or_default()))
    }
}

impl Store {
    /// Becomes the owner of the store.
    pub(crate) fn own(
        machine: Arc<dyn Env>,
        remote: Remote,
        mut owner: Owner,
        is_dead: impl Fn(&Owner) -> bool,
    ) -> io::Result<Arc<Store>> {
        let requests = Arc::new(Requests::new(&machine, &remote));
        let options = remote.options.clone();
        let mut loaded = Loaded::read(&requests)?.ok_or_else(|| Store::none(&requests))?;
        let id = machine.random();
        let mut wait = None;
        loop {
            let ended = loaded.is_closed || is_dead(&loaded.owner);
            if !ended {
                let notice = Store::notice(&requests)?;
                let notice = notice.filter(|notice| notice.epoch == loaded.epoch);
                // One that has only just come may not have said so yet.
                let Owner { host, process, purpose, since, lease_ms, .. } = &loaded.owner;
                let until = since.saturating_add((lease_ms / 1000) as i64);
                let until = notice.map_or(until, |notice| notice.until);
                let now = machine.now().secs();
                if until > now && !options.take_over {
                    let text = format!(
                        "{} is in use by process {process} on {host} ({purpose}), at least {} seconds longer",
                        requests.address(),
                        until - now
                    );
                    return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
                }
                wait = Some(Duration::from_millis((*lease_ms).min(LEASE_MAX_MS)));
            }
            let sure_at = machine.monotonic().as_millis() as u64;
            owner.since = machine.now().secs();
            owner.lease_ms = options.lease.as_millis() as u64;
            if let Some((name, bytes)) = place_fence(&requests, &loaded, id, &owner)? {
                loaded.apply(&requests, &name, &bytes)?;
                // An owner that is cut off or paused reads until its lease is over.
                if let Some(wait) = wait {
                    log::info!("waits {wait:?} for the lease of the owner before");
                    machine.sleep(wait);
                }
                let writer = Writer {
                    epoch: loaded.epoch,
                    id,
                    owner,
                    next_number: AtomicU64::new(0),
                    commits: Mutex::default(),
                    committed: Condvar::new(),
                    is_deposed: AtomicBool::new(false),
                    deposed_by: Mutex::default(),
                    sure_at: AtomicU64::new(sure_at),
                };
                let store = Store::with(machine, requests, remote, loaded.live, Some(writer))?;
                store.renew()?;
                return Ok(store);
            }
            while loaded.replay(&requests)? > 0 {}
        }
    }

    fn notice(requests: &Requests) -> io::Result<Option<Notice>> {
        match requests.read(OWNER, None) {
            // What cannot be read says nothing; fences decide.
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Says once more that this process owns the store, after it has looked whether that is so.
    pub(crate) fn renew(&self) -> io::Result<()> {
        let Some(writer) = &self.writer else { return Ok(()) };
        self.check_place(writer)?;
        let lease = self.options.lease;
        let until = self.machine.now().secs() + lease.as_secs() as i64;
        let notice = Notice { epoch: writer.epoch, owner: writer.owner.clone(), until };
        let bytes = serde_json::to_vec(&notice).map_err(io::Error::other)?;
        self.requests.replace(OWNER, &bytes.into())
    }

    /// Looks whether another owner has taken the next place of the journal.
    fn check_place(&self, writer: &Writer) -> io::Result<()> {
        let now = self.machine.monotonic().as_millis() as u64;
        let mut seq = {
            let live = self.live.lock();
            // A record that is on its way may be there or not.
            live.seq + u64::from(live.unsent.is_none())
        };
        loop {
            match self.requests.read(&journal_name(seq), None) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    writer.sure_at.fetch_max(now, Ordering::Relaxed);
                    return writer.check();
                }
                Err(error) => return Err(error),
                Ok(bytes) => self.met(writer, seq, &bytes)?,
            }
            seq += 1;
        }
    }

    /// What is in a place of the journal that this process wanted: its own record, or another owner's.
    pub(crate) fn met(&self, writer: &Writer, seq: u64, found: &Bytes) -> io::Result<()> {
        let name = journal_name(seq);
        let record: Record =
            decode(&name, found).map_err(|what| damaged(&self.requests, &name, &what))?;
        if record.writer == writer.id {
            return Ok(());
        }
        let by = match record.kind {
            Kind::Fence(Owner { host, process, purpose, .. }) => {
                format!("process {process} on {host} ({purpose})")
            }
            _ => "another process".to_owned(),
        };
        let text = format!(
            "{} was taken over by {by} in epoch {}, and this mount no longer serves it; unmount it",
            self.requests.address(),
            record.epoch
        );
        let mut deposed_by = writer.deposed_by.lock();
        if deposed_by.is_none() {
            log::error!("{text}");
            *deposed_by = Some(text);
        }
        writer.is_deposed.store(true, Ordering::Release);
        drop(deposed_by);
        writer.check()
    }

    /// Whether this process became the owner.
    pub(crate) fn is_owner(&self) -> bool {
        self.writer.is_some()
    }

    /// Whether another process has become the owner.
    pub(crate) fn is_deposed(&self) -> bool {
        self.writer.as_ref().is_some_and(|writer| writer.is_deposed.load(Ordering::Acquire))
    }

    /// Fails if this process no longer owns the store, or cannot know it.
    pub(crate) fn check(&self) -> io::Result<()> {
        let Some(writer) = &self.writer else { return Ok(()) };
        writer.check()?;
        let now = self.machine.monotonic().as_millis() as u64;
        let sure_at = writer.sure_at.load(Ordering::Relaxed);
        if now.saturating_sub(sure_at) < self.options.lease.as_millis() as u64 {
            return Ok(());
        }
        // Too long ago: another owner may be there since.
        self.check_place(writer)
    }
}
