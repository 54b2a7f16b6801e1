//! Requests to the storage, made again while that may help, and counted.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use varve_env::{Env, told};

use crate::objects::{Created, ObjectInfo, Objects, Retry, is_transient};
use crate::options::Remote;

/// The object store of one open store.
#[derive(Debug)]
pub(crate) struct Requests {
    objects: Arc<dyn Objects>,
    machine: Arc<dyn Env>,
    retry: Retry,
    counters: Counters,
}

/// What was asked of the storage so far.
#[derive(Debug, Default)]
struct Counters {
    creates: AtomicU64,
    replaces: AtomicU64,
    reads: AtomicU64,
    lists: AtomicU64,
    removes: AtomicU64,
    bytes_written: AtomicU64,
    bytes_read: AtomicU64,
    retries: AtomicU64,
    waited_us: AtomicU64,
}

/// Requests that were made of the storage since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RequestCounts {
    /// PUT requests for new objects.
    pub creates: u64,
    /// PUT requests for an object that may be there already.
    pub replaces: u64,
    /// GET requests.
    pub reads: u64,
    /// LIST requests.
    pub lists: u64,
    /// DELETE requests.
    pub removes: u64,
    /// Bytes sent in PUT requests.
    pub bytes_written: u64,
    /// Bytes received by GET requests.
    pub bytes_read: u64,
    /// How many of the requests were further attempts.
    pub retries: u64,
    /// Microseconds that callers waited for answers.
    pub waited_us: u64,
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl Requests {
    pub(crate) fn new(machine: &Arc<dyn Env>, remote: &Remote) -> Requests {
        let (objects, machine) = (Arc::clone(&remote.objects), Arc::clone(machine));
        Requests { objects, machine, retry: remote.retry, counters: Counters::default() }
    }

    pub(crate) fn address(&self) -> String {
        self.objects.address()
    }

    pub(crate) fn counts(&self) -> RequestCounts {
        let Counters {
            creates,
            replaces,
            reads,
            lists,
            removes,
            bytes_written,
            bytes_read,
            retries,
            waited_us,
        } = &self.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RequestCounts {
            creates: get(creates),
            replaces: get(replaces),
            reads: get(reads),
            lists: get(lists),
            removes: get(removes),
            bytes_written: get(bytes_written),
            bytes_read: get(bytes_read),
            retries: get(retries),
            waited_us: get(waited_us),
        }
    }

    /// Makes the object `name`. An earlier attempt of this very call that took effect without an answer counts as
    /// [`Created::Exists`].
    pub(crate) fn create(&self, name: &str, bytes: &Bytes) -> io::Result<Created> {
        self.again("write", name, || {
            add(&self.counters.creates, 1);
            add(&self.counters.bytes_written, bytes.len() as u64);
            self.objects.create(name, bytes.clone())
        })
    }

    pub(crate) fn replace(&self, name: &str, bytes: &Bytes) -> io::Result<()> {
        self.again("write", name, || {
            add(&self.counters.replaces, 1);
            add(&self.counters.bytes_written, bytes.len() as u64);
            self.objects.replace(name, bytes.clone())
        })
    }

    pub(crate) fn read(&self, name: &str, range: Option<Range<u64>>) -> io::Result<Bytes> {
        let bytes = self.again("read", name, || {
            add(&self.counters.reads, 1);
            self.objects.read(name, range.clone())
        })?;
        add(&self.counters.bytes_read, bytes.len() as u64);
        Ok(bytes)
    }

    /// Whether there is an object `name`, by one request, which is not made again if it fails.
    pub(crate) fn exists(&self, name: &str) -> io::Result<bool> {
        add(&self.counters.reads, 1);
        match self.timed(|| self.objects.read(name, Some(0..1))) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn list(&self, prefix: &str, after: Option<&str>) -> io::Result<Vec<ObjectInfo>> {
        self.again("list", prefix, || {
            add(&self.counters.lists, 1);
            self.objects.list(prefix, after)
        })
    }

    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        self.again("remove", name, || {
            add(&self.counters.removes, 1);
            self.objects.remove(name)
        })
    }

    /// Makes objects whose names nobody else uses: one that is there already is one of an earlier attempt.
    pub(crate) fn create_all(&self, objects: Vec<(String, Bytes)>) -> io::Result<()> {
        if let [(name, bytes)] = &objects[..] {
            return self.create(name, bytes).map(drop);
        }
        add(&self.counters.creates, objects.len() as u64);
        let bytes = objects.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        add(&self.counters.bytes_written, bytes);
        let outcomes = self.timed(|| self.objects.create_all(objects.clone()));
        for ((name, bytes), outcome) in objects.iter().zip(outcomes) {
            match outcome {
                Ok(_) => {}
                Err(error) if is_transient(&error) => drop(self.create(name, bytes)?),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(crate) fn read_all(&self, ranges: &[(String, Range<u64>)]) -> io::Result<Vec<Bytes>> {
        if let [(name, range)] = ranges {
            return Ok(vec![self.read(name, Some(range.clone()))?]);
        }
        add(&self.counters.reads, ranges.len() as u64);
        let outcomes = self.timed(|| self.objects.read_all(ranges));
        let each = ranges.iter().zip(outcomes).map(|((name, range), outcome)| match outcome {
            Ok(bytes) => {
                add(&self.counters.bytes_read, bytes.len() as u64);
                Ok(bytes)
            }
            Err(error) if is_transient(&error) => self.read(name, Some(range.clone())),
            Err(error) => Err(error),
        });
        each.collect()
    }

    fn timed<T>(&self, request: impl FnOnce() -> T) -> T {
        let start = self.machine.monotonic();
        let answer = request();
        let waited = self.machine.monotonic().saturating_sub(start);
        add(&self.counters.waited_us, waited.as_micros() as u64);
        answer
    }

    /// Makes a request until it succeeds, fails for good, or the time is up.
    fn again<T>(
        &self,
        action: &str,
        name: &str,
        mut request: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        let start = self.machine.monotonic();
        let mut pause = self.retry.pause_min;
        let mut attempts = 1;
        loop {
            let error = match self.timed(&mut request) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let spent = self.machine.monotonic().saturating_sub(start);
            if !is_transient(&error) || spent + pause > self.retry.patience {
                let text = format!("{error} (tried {attempts} times)");
                return Err(if attempts > 1 { told(&error, text) } else { error });
            }
            if attempts == 1 {
                log::warn!("{}: cannot {action} {name}, and tries again: {error}", self.address());
            }
            // Between half of the pause and all of it, so that not all clients come back at once.
            let half = pause / 2;
            let jitter = self.machine.random() % (half.as_micros() as u64).max(1);
            self.machine.sleep(half + Duration::from_micros(jitter));
            pause = (pause * 2).min(self.retry.pause_max);
            attempts += 1;
            add(&self.counters.retries, 1);
        }
    }
}
