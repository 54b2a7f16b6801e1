//! An object store in memory, whose requests can fail: for tests and simulations.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::objects::{Created, LIST_MAX, ObjectInfo, Objects};

/// A request that is about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// [`Objects::create`].
    Create(&'a str),
    /// [`Objects::replace`].
    Replace(&'a str),
    /// [`Objects::read`].
    Read(&'a str),
    /// [`Objects::list`].
    List(&'a str),
    /// [`Objects::remove`].
    Remove(&'a str),
}

/// What becomes of a request.
#[derive(Debug)]
pub enum Fate {
    /// It is answered.
    Answered,
    /// It has no effect and fails.
    Lost(io::Error),
    /// It has its effect, and the caller gets an error.
    Unanswered(io::Error),
}

/// Decides the fate of each request.
type Decide = Box<dyn FnMut(Request<'_>) -> Fate + Send>;

/// An object store in memory.
#[derive(Default)]
pub struct MemoryObjects {
    objects: Mutex<BTreeMap<String, Bytes>>,
    decide: Mutex<Option<Decide>>,
}

impl fmt::Debug for MemoryObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryObjects").field("count", &self.objects.lock().len()).finish()
    }
}

impl MemoryObjects {
    /// All objects, by name.
    pub fn objects(&self) -> BTreeMap<String, Bytes> {
        self.objects.lock().clone()
    }

    /// An object store with these objects.
    pub fn with(objects: BTreeMap<String, Bytes>) -> MemoryObjects {
        MemoryObjects { objects: Mutex::new(objects), decide: Mutex::default() }
    }

    /// From now on `decide` says what becomes of each request.
    pub fn decide(&self, decide: impl FnMut(Request<'_>) -> Fate + Send + 'static) {
        *self.decide.lock() = Some(Box::new(decide));
    }

    fn answer<T>(
        &self,
        request: Request<'_>,
        effect: impl FnOnce(&mut BTreeMap<String, Bytes>) -> io::Result<T>,
    ) -> io::Result<T> {
        let fate = self.decide.lock().as_mut().map_or(Fate::Answered, |decide| decide(request));
        match fate {
            Fate::Answered => effect(&mut self.objects.lock()),
            Fate::Lost(error) => Err(error),
            Fate::Unanswered(error) => effect(&mut self.objects.lock()).and(Err(error)),
        }
    }
}

impl Objects for MemoryObjects {
    fn create(&self, name: &str, bytes: Bytes) -> io::Result<Created> {
        self.answer(Request::Create(name), |objects| {
            if objects.contains_key(name) {
                return Ok(Created::Exists);
            }
            objects.insert(name.to_owned(), bytes);
            Ok(Created::New)
        })
    }

    fn replace(&self, name: &str, bytes: Bytes) -> io::Result<()> {
        self.answer(Request::Replace(name), |objects| {
            objects.insert(name.to_owned(), bytes);
            Ok(())
        })
    }

    fn read(&self, name: &str, range: Option<Range<u64>>) -> io::Result<Bytes> {
        self.answer(Request::Read(name), |objects| {
            let Some(bytes) = objects.get(name) else {
                let text = format!("there is no object {name}");
                return Err(io::Error::new(io::ErrorKind::NotFound, text));
            };
            let Some(range) = range else { return Ok(bytes.clone()) };
            let len = bytes.len() as u64;
            Ok(bytes.slice(range.start.min(len) as usize..range.end.min(len) as usize))
        })
    }

    fn list(&self, prefix: &str, after: Option<&str>) -> io::Result<Vec<ObjectInfo>> {
        self.answer(Request::List(prefix), |objects| {
            let wanted = objects.iter().filter(|(name, _)| {
                name.starts_with(prefix) && after.is_none_or(|after| name.as_str() > after)
            });
            let info = |(name, bytes): (&String, &Bytes)| ObjectInfo {
                name: name.clone(),
                bytes: bytes.len() as u64,
            };
            Ok(wanted.take(LIST_MAX).map(info).collect())
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.answer(Request::Remove(name), |objects| {
            objects.remove(name);
            Ok(())
        })
    }

    fn address(&self) -> String {
        "memory:".to_owned()
    }
}
