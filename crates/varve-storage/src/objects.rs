//! What is asked of an object store: [`Objects`].

use std::fmt;
use std::io;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;

/// The outcome of [`Objects::create`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// The object is there with the given bytes.
    New,
    /// An object of this name was there before. It is as it was.
    Exists,
}

/// One object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// The name below the prefix of the store.
    pub name: String,
    /// Bytes of the object.
    pub bytes: u64,
}

/// The most names of one answer of [`Objects::list`].
pub const LIST_MAX: usize = 1000;

/// An object store, as seen below the prefix of one Varve store. Names are relative to that prefix and consist of
/// letters, digits, `-`, `.` and `/`.
///
/// Every call is one request, unless the storage needs several for it, and is not tried again. A failed `create`,
/// `replace` or `remove` may have taken effect, or may still do so later.
///
/// Errors: `NotFound` if there is no such object, `PermissionDenied` if the credentials do not allow the request.
/// [`is_transient`] tells whether the same request may succeed later.
pub trait Objects: Send + Sync + fmt::Debug {
    /// Makes the object `name` if there is none of this name. It is durable when the call returns. Of several callers
    /// at once exactly one gets [`Created::New`].
    fn create(&self, name: &str, bytes: Bytes) -> io::Result<Created>;

    /// Makes the object `name`, or replaces the one that is there. It is durable when the call returns.
    fn replace(&self, name: &str, bytes: Bytes) -> io::Result<()>;

    /// Returns the bytes of a range, or fewer if the object ends within it; `None` as range is the whole object.
    fn read(&self, name: &str, range: Option<Range<u64>>) -> io::Result<Bytes>;

    /// Returns up to [`LIST_MAX`] objects whose names begin with `prefix` and sort behind `after`, in the order of their
    /// names as bytes. Every object that was there when the call began and is there when it ends is in it.
    fn list(&self, prefix: &str, after: Option<&str>) -> io::Result<Vec<ObjectInfo>>;

    /// Removes an object. One that is not there is no error.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes several objects as [`Objects::create`] does, at the same time if the storage can.
    fn create_all(&self, objects: Vec<(String, Bytes)>) -> Vec<io::Result<Created>> {
        objects.into_iter().map(|(name, bytes)| self.create(&name, bytes)).collect()
    }

    /// Reads ranges of several objects, at the same time if the storage can.
    fn read_all(&self, ranges: &[(String, Range<u64>)]) -> Vec<io::Result<Bytes>> {
        ranges.iter().map(|(name, range)| self.read(name, Some(range.clone()))).collect()
    }

    /// The address of the store, for errors: a URI, or the path of a directory. It holds no credentials.
    fn address(&self) -> String;
}

/// The error of a request that may succeed when it is made again.
#[derive(Debug)]
struct Transient(String);

impl fmt::Display for Transient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Transient {}

/// Returns an error for a request that may succeed when it is made again: a lost connection, a timeout, an overloaded
/// server.
pub fn transient(text: impl Into<String>) -> io::Error {
    io::Error::other(Transient(text.into()))
}

/// Returns whether the failed request may succeed when it is made again.
pub fn is_transient(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Transient>())
}

/// How often and how long a request is made again that failed for a reason that may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The pause before the second attempt. Each further pause is twice as long, up to `pause_max`.
    pub pause_min: Duration,
    /// The longest pause.
    pub pause_max: Duration,
    /// No attempt begins later than this after the first one.
    pub patience: Duration,
}

impl Default for Retry {
    fn default() -> Retry {
        Retry {
            pause_min: Duration::from_millis(50),
            pause_max: Duration::from_secs(5),
            patience: Duration::from_secs(300),
        }
    }
}
