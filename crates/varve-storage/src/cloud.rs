//! Object stores of clouds, and servers that speak the same protocols, by the crate `object_store`.
//!
//! 1. A caller's thread runs its request itself. Two threads of the adapter's own runtime drive sockets and timers, and
//!    run the requests of [`Objects::create_all`] and [`Objects::read_all`], [`AT_ONCE_MAX`] at the same time.
//! 2. Each request goes through an [`crate::observed`] client, which remembers how the server answered.
//! 3. From that answer [`Remote::failure`] chooses the kind of the error.
//!
//! Invariants:
//! - No request is made again here.
//! - `create` returns [`Created::Exists`] only if the server answered that the object is there.
//! - A drop ends all threads.
//! - No error holds a credential: its text consists of names, and of the code and the message of the server.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use tokio::runtime::Runtime;

use crate::objects::{Created, LIST_MAX, ObjectInfo, Objects, transient};
use crate::observed::{self, Answer, Connector, Seen};

/// The most requests of one [`Objects::create_all`] or [`Objects::read_all`] at the same time.
const AT_ONCE_MAX: usize = 16;

/// The longest wait for the answer to a request, and then for each part of it.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Sending may take a second more for each of these bytes.
const SENT_BYTES_PER_SECOND_MIN: u64 = 256 << 10;

/// The longest wait for a connection.
pub(crate) const CONNECT_MAX: Duration = Duration::from_secs(5);

/// The most memory that is taken for an answer before its bytes arrive.
const RESERVED_MAX: usize = 64 << 20;

/// Threads that drive sockets and timers.
const WORKERS: usize = 2;

/// The protocol of an object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    S3,
    Gcs,
    Azure,
}

impl Protocol {
    /// What the protocol calls the thing that holds objects.
    fn bucket(self) -> &'static str {
        match self {
            Protocol::S3 | Protocol::Gcs => "bucket",
            Protocol::Azure => "container",
        }
    }
}

/// What is needed of a store of `object_store`.
pub(crate) trait Store: ObjectStore + PaginatedListStore {}

impl<T: ObjectStore + PaginatedListStore> Store for T {}

/// Where the objects are, for requests and for errors.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) protocol: Protocol,
    pub(crate) bucket: String,
    /// The prefix of all names: empty, or with a slash at its end.
    pub(crate) prefix: String,
    /// The URI.
    pub(crate) address: String,
    /// Which server it is.
    pub(crate) endpoint: String,
}

/// The objects below a prefix of a bucket.
pub(crate) struct CloudObjects {
    remote: Arc<Remote>,
    // Dropped last: a drop waits for the threads.
    runtime: Runtime,
}

struct Remote {
    store: Box<dyn Store>,
    place: Place,
}

/// What a request was for, in the words of an error.
enum Task<'a> {
    Create(&'a str),
    Replace(&'a str),
    Read(&'a str),
    List(&'a str),
    Remove(&'a str),
}

impl fmt::Display for Task<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Task::Create(name) => write!(f, "cannot create object `{name}`"),
            Task::Replace(name) => write!(f, "cannot replace object `{name}`"),
            Task::Read(name) => write!(f, "cannot read object `{name}`"),
            Task::List("") => write!(f, "cannot list objects"),
            Task::List(prefix) => write!(f, "cannot list objects `{prefix}...`"),
            Task::Remove(name) => write!(f, "cannot remove object `{name}`"),
        }
    }
}

/// Why a request failed.
enum Cause {
    /// The server, the network or `object_store`.
    Store(object_store::Error),
    /// There was no answer for so long.
    Silence(Duration),
    /// The answer makes no sense.
    Answer(String),
}

impl From<object_store::Error> for Cause {
    fn from(error: object_store::Error) -> Cause {
        Cause::Store(error)
    }
}

/// Waits for the outcome of a request, but not longer than `limit`.
async fn within<T>(
    limit: Duration,
    request: impl Future<Output = object_store::Result<T>>,
) -> Result<T, Cause> {
    match tokio::time::timeout(limit, request).await {
        Ok(outcome) => Ok(outcome?),
        Err(_) => Err(Cause::Silence(limit)),
    }
}

/// The longest wait for the answer to a request with a body.
fn sending_max(bytes: usize) -> Duration {
    ANSWER_MAX + Duration::from_secs(bytes as u64 / SENT_BYTES_PER_SECOND_MIN)
}

impl Remote {
    fn path(&self, name: &str) -> io::Result<Path> {
        Path::parse(format!("{}{name}", self.place.prefix)).map_err(|error| {
            let text = format!("{}: `{name}` is no name of an object: {error}", self.place.address);
            io::Error::new(io::ErrorKind::InvalidInput, text)
        })
    }

    async fn put(&self, path: &Path, bytes: Bytes, mode: PutMode) -> (Result<(), Cause>, Seen) {
        let limit = sending_max(bytes.len());
        let options = PutOptions { mode, ..PutOptions::default() };
        let request = async {
            within(limit, self.store.put_opts(path, bytes.into(), options)).await.map(drop)
        };
        observed::observe(request).await
    }

    async fn create(&self, name: &str, bytes: Bytes) -> io::Result<Created> {
        let path = self.path(name)?;
        match self.put(&path, bytes, PutMode::Create).await {
            (Ok(()), _) => Ok(Created::New),
            (Err(_), seen) if seen.answer.as_ref().is_some_and(is_there) => Ok(Created::Exists),
            (Err(cause), seen) => Err(self.failure(&Task::Create(name), cause, &seen)),
        }
    }

    async fn replace(&self, name: &str, bytes: Bytes) -> io::Result<()> {
        let path = self.path(name)?;
        let (outcome, seen) = self.put(&path, bytes, PutMode::Overwrite).await;
        outcome.map_err(|cause| self.failure(&Task::Replace(name), cause, &seen))
    }

    async fn read(&self, name: &str, range: Option<Range<u64>>) -> io::Result<Bytes> {
        let path = self.path(name)?;
        // An empty range is no HTTP range; one byte is asked for, so that a missing object is noticed all the same.
        let wanted =
            range.clone().map(|range| range.start..range.end.max(range.start.saturating_add(1)));
        let (outcome, seen) = observed::observe(self.fetch(&path, wanted)).await;
        match outcome {
            Ok(mut bytes) => {
                if let Some(range) = range {
                    bytes.truncate(range.end.saturating_sub(range.start) as usize);
                }
                Ok(bytes)
            }
            // The range begins at or behind the end.
            Err(_) if seen.answer.as_ref().is_some_and(|answer| answer.status == 416) => {
                Ok(Bytes::new())
            }
            Err(cause) => Err(self.failure(&Task::Read(name), cause, &seen)),
        }
    }

    async fn fetch(&self, path: &Path, range: Option<Range<u64>>) -> Result<Bytes, Cause> {
        // Servers read the numbers of a range as signed.
        const END_MAX: u64 = i64::MAX as u64;
        let range = range
            .map(|range| GetRange::Bounded(range.start.min(END_MAX - 1)..range.end.min(END_MAX)));
        let options = GetOptions { range, ..GetOptions::default() };
        let answer = within(ANSWER_MAX, self.store.get_opts(path, options)).await?;
        let wanted = answer.range.end - answer.range.start;
        let bytes = collected(answer.into_stream(), wanted).await?;
        if bytes.len() as u64 != wanted {
            return Err(Cause::Answer(format!("the answer has {} of {wanted} bytes", bytes.len())));
        }
        Ok(bytes)
    }

    async fn list(&self, prefix: &str, after: Option<&str>) -> io::Result<Vec<ObjectInfo>> {
        let (outcome, seen) = observed::observe(self.pages(prefix, after)).await;
        outcome.map_err(|cause| self.failure(&Task::List(prefix), cause, &seen))
    }

    async fn pages(&self, prefix: &str, after: Option<&str>) -> Result<Vec<ObjectInfo>, Cause> {
        let full_prefix = format!("{}{prefix}", self.place.prefix);
        let full_prefix = Some(full_prefix.as_str()).filter(|prefix| !prefix.is_empty());
        let offset = after.map(|after| format!("{}{after}", self.place.prefix));
        let mut found: Vec<ObjectInfo> = Vec::new();
        let mut page_token = None;
        loop {
            let options = PaginatedListOptions {
                offset: offset.clone(),
                max_keys: Some(LIST_MAX - found.len()),
                page_token,
                ..PaginatedListOptions::default()
            };
            let page = within(ANSWER_MAX, self.store.list_paginated(full_prefix, options)).await?;
            for object in page.result.objects {
                // What stands for a directory has no name below the prefix.
                let Some(name) = object.location.as_ref().strip_prefix(&self.place.prefix) else {
                    continue;
                };
                if !name.starts_with(prefix) {
                    continue;
                }
                let before = found.last().map(|info| info.name.as_str()).or(after);
                if before.is_some_and(|before| before >= name) {
                    let before = before.unwrap_or_default();
                    return Err(Cause::Answer(format!(
                        "the server lists `{name}` behind `{before}`, and a store needs the order of names as bytes"
                    )));
                }
                found.push(ObjectInfo { name: name.to_owned(), bytes: object.size });
            }
            page_token = page.page_token;
            if page_token.is_none() || found.len() >= LIST_MAX {
                found.truncate(LIST_MAX);
                return Ok(found);
            }
        }
    }

    async fn remove(&self, name: &str) -> io::Result<()> {
        let path = self.path(name)?;
        let (outcome, seen) = observed::observe(within(ANSWER_MAX, self.store.delete(&path))).await;
        match outcome.map_err(|cause| self.failure(&Task::Remove(name), cause, &seen)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            outcome => outcome,
        }
    }

    /// Returns the error of a failed request.
    fn failure(&self, task: &Task<'_>, cause: Cause, seen: &Seen) -> io::Error {
        let begin = format!("{}: {task}", self.place.address);
        let error = match cause {
            Cause::Answer(text) => return io::Error::other(format!("{begin}: {text}")),
            Cause::Silence(limit) => {
                let text = format!(
                    "{begin}: {} gives no answer within {} s",
                    self.place.endpoint,
                    limit.as_secs()
                );
                return transient(text);
            }
            Cause::Store(error) => error,
        };
        if !seen.is_to_store && seen.is_sent {
            let why =
                seen.answer.as_ref().map_or_else(|| observed::told(&error), Answer::to_string);
            let text = format!(
                "{begin}: no credentials are set, and asking this machine's metadata service for some fails: {why}"
            );
            // A mount that has had credentials gets them again when the service is back.
            return match seen.had_credentials {
                true => transient(text),
                false => io::Error::new(io::ErrorKind::PermissionDenied, text),
            };
        }
        let Some(answer) = &seen.answer else {
            return self.failure_without_answer(&begin, &error);
        };
        let Place { protocol, bucket, endpoint, .. } = &self.place;
        match verdict(*protocol, answer, task) {
            Verdict::NoBucket => {
                let what = protocol.bucket();
                io::Error::other(format!("{begin}: there is no {what} `{bucket}` at {endpoint}"))
            }
            Verdict::NoObject => {
                io::Error::new(io::ErrorKind::NotFound, format!("{begin}: it does not exist"))
            }
            Verdict::Denied => {
                let text = format!("{begin}: {endpoint} does not allow it: {answer}");
                io::Error::new(io::ErrorKind::PermissionDenied, text)
            }
            Verdict::Elsewhere => {
                let hint = match &answer.region {
                    Some(region) => format!("it is in region {region}: give that region"),
                    None => "the region or the endpoint is not its own".to_owned(),
                };
                io::Error::other(format!("{begin}: bucket `{bucket}` is not at {endpoint}: {hint}"))
            }
            Verdict::Full => io::Error::new(
                io::ErrorKind::StorageFull,
                format!("{begin}: {endpoint} is full: {answer}"),
            ),
            Verdict::Passing => transient(format!("{begin}: {endpoint} answers {answer}")),
            Verdict::Final => io::Error::other(format!("{begin}: {endpoint} answers {answer}")),
        }
    }

    /// Returns the error of a request that the server has not answered, or of which it has answered a part.
    fn failure_without_answer(&self, begin: &str, error: &object_store::Error) -> io::Error {
        let endpoint = &self.place.endpoint;
        if let Some(certificate) = observed::certificate_error(error) {
            return io::Error::other(format!("{begin}: {endpoint} is not trusted: {certificate}"));
        }
        let told = observed::told(error);
        if observed::is_lost(error) {
            return transient(format!("{begin}: {endpoint} cannot be reached: {told}"));
        }
        io::Error::other(format!("{begin}: {told}"))
    }
}

/// Returns whether the server refused to create an object because it is there. A conflict that S3 reports is something
/// else: another request for the object was under way, and may have removed it.
fn is_there(answer: &Answer) -> bool {
    matches!(answer.status, 304 | 412)
        || (answer.status == 409 && answer.code == "BlobAlreadyExists")
}

/// What an answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    NoBucket,
    NoObject,
    Denied,
    /// The bucket is in another region.
    Elsewhere,
    Full,
    /// The same request may succeed later.
    Passing,
    Final,
}

/// Codes of answers that pass, whatever their status is.
const PASSING: &[&str] = &[
    "BadDigest",
    "ConditionalRequestConflict",
    "IncompleteBody",
    "InternalError",
    "OperationAborted",
    "OperationTimedOut",
    "RequestThrottled",
    "RequestTimeout",
    "ServerBusy",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "XAmzContentSHA256Mismatch",
];

/// Codes of answers with which credentials are refused, whatever their status is. The last one is what versitygw says of
/// the id of a key that it does not know, with the status 404.
const DENIED: &[&str] = &[
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "TokenRefreshRequired",
    "XAdminUserNotFound",
];

/// Codes of answers of a server without room, whatever their status is.
const FULL: &[&str] = &["QuotaExceeded", "StorageFull", "XMinioStorageFull"];

/// Codes of answers about an object that is not there. Servers without codes say it by the status alone.
const NO_OBJECT: &[&str] =
    &["", "BlobNotFound", "NoSuchKey", "NoSuchObject", "NotFound", "ResourceNotFound"];

fn verdict(protocol: Protocol, answer: &Answer, task: &Task<'_>) -> Verdict {
    let code = answer.code.as_str();
    let is_object = matches!(task, Task::Read(_) | Task::Remove(_));
    match answer.status {
        _ if PASSING.contains(&code) => Verdict::Passing,
        _ if DENIED.contains(&code) => Verdict::Denied,
        _ if FULL.contains(&code) => Verdict::Full,
        _ if matches!(code, "NoSuchBucket" | "ContainerNotFound") => Verdict::NoBucket,
        404 if is_object && NO_OBJECT.contains(&code) => Verdict::NoObject,
        404 if code.is_empty() => Verdict::NoBucket,
        301 | 302 | 307 | 308 if protocol == Protocol::S3 => Verdict::Elsewhere,
        400 if code == "AuthorizationHeaderMalformed" && answer.region.is_some() => {
            Verdict::Elsewhere
        }
        401 | 403 => Verdict::Denied,
        408 | 429 => Verdict::Passing,
        // The server will never be able to.
        501 | 505 => Verdict::Final,
        507 => Verdict::Full,
        500..=599 => Verdict::Passing,
        _ => Verdict::Final,
    }
}

/// Gathers the parts of an answer.
async fn collected(
    mut parts: impl Stream<Item = object_store::Result<Bytes>> + Unpin,
    bytes: u64,
) -> Result<Bytes, Cause> {
    let mut all =
        BytesMut::with_capacity(usize::try_from(bytes).unwrap_or(RESERVED_MAX).min(RESERVED_MAX));
    loop {
        let part = tokio::time::timeout(ANSWER_MAX, parts.next()).await;
        match part.map_err(|_| Cause::Silence(ANSWER_MAX))? {
            Some(part) => all.extend_from_slice(&part?),
            None => return Ok(all.freeze()),
        }
    }
}

impl CloudObjects {
    /// Opens the objects of a store that `build` makes with the HTTP client that it is given.
    pub(crate) fn open<S: Store>(
        place: Place,
        build: impl FnOnce(Connector) -> object_store::Result<S>,
    ) -> io::Result<CloudObjects> {
        // The first provider stays: a program that embeds Varve may have chosen another.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let connector = Connector::new(&place.endpoint);
        let store = build(connector).map_err(|error| {
            let text = format!("{}: {}", place.address, observed::told(&error));
            io::Error::new(io::ErrorKind::InvalidInput, text)
        })?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .thread_name("varve-objects")
            .enable_all()
            .build()?;
        Ok(CloudObjects { remote: Arc::new(Remote { store: Box::new(store), place }), runtime })
    }

    /// Runs several requests at the same time; returns their outcomes in order.
    fn all<I, T, F>(
        &self,
        items: impl Iterator<Item = I>,
        request: impl Fn(Arc<Remote>, I) -> F,
    ) -> Vec<io::Result<T>>
    where
        F: Future<Output = io::Result<T>> + Send + 'static,
        T: Send + 'static,
    {
        let requests = items.map(|item| {
            let request = request(Arc::clone(&self.remote), item);
            async {
                self.runtime
                    .spawn(request)
                    .await
                    .unwrap_or_else(|error| Err(io::Error::other(error)))
            }
        });
        self.runtime.block_on(futures_util::stream::iter(requests).buffered(AT_ONCE_MAX).collect())
    }
}

impl fmt::Debug for CloudObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CloudObjects").field(&self.remote.place).finish()
    }
}

impl Objects for CloudObjects {
    fn create(&self, name: &str, bytes: Bytes) -> io::Result<Created> {
        self.runtime.block_on(self.remote.create(name, bytes))
    }

    fn replace(&self, name: &str, bytes: Bytes) -> io::Result<()> {
        self.runtime.block_on(self.remote.replace(name, bytes))
    }

    fn read(&self, name: &str, range: Option<Range<u64>>) -> io::Result<Bytes> {
        self.runtime.block_on(self.remote.read(name, range))
    }

    fn list(&self, prefix: &str, after: Option<&str>) -> io::Result<Vec<ObjectInfo>> {
        self.runtime.block_on(self.remote.list(prefix, after))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.runtime.block_on(self.remote.remove(name))
    }

    fn create_all(&self, objects: Vec<(String, Bytes)>) -> Vec<io::Result<Created>> {
        self.all(objects.into_iter(), |remote, (name, bytes)| async move {
            remote.create(&name, bytes).await
        })
    }

    fn read_all(&self, ranges: &[(String, Range<u64>)]) -> Vec<io::Result<Bytes>> {
        self.all(ranges.iter().cloned(), |remote, (name, range)| async move {
            remote.read(&name, Some(range)).await
        })
    }

    fn address(&self) -> String {
        self.remote.place.address.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, code: &str) -> Answer {
        Answer { status, code: code.to_owned(), message: String::new(), region: None }
    }

    #[test]
    fn a_conflict_of_s3_does_not_say_that_the_object_is_there() {
        assert!(is_there(&answer(412, "PreconditionFailed")));
        assert!(is_there(&answer(409, "BlobAlreadyExists")));
        let conflict = answer(409, "ConditionalRequestConflict");
        assert!(!is_there(&conflict));
        assert_eq!(verdict(Protocol::S3, &conflict, &Task::Create("a")), Verdict::Passing);
    }

    #[test]
    fn answers_mean_what_to_do() {
        let read = Task::Read("a");
        for (status, code, task, expected) in [
            (404, "NoSuchKey", &read, Verdict::NoObject),
            (404, "", &read, Verdict::NoObject),
            (404, "NoSuchUser", &read, Verdict::Final),
            (404, "NoSuchBucket", &read, Verdict::NoBucket),
            (404, "", &Task::List(""), Verdict::NoBucket),
            (404, "", &Task::Create("a"), Verdict::NoBucket),
            (403, "AccessDenied", &read, Verdict::Denied),
            (401, "", &read, Verdict::Denied),
            (400, "ExpiredToken", &read, Verdict::Denied),
            (400, "InvalidRequest", &read, Verdict::Final),
            (400, "RequestTimeout", &read, Verdict::Passing),
            (429, "", &read, Verdict::Passing),
            (503, "SlowDown", &read, Verdict::Passing),
            (500, "", &read, Verdict::Passing),
            (501, "NotImplemented", &read, Verdict::Final),
            (507, "XMinioStorageFull", &read, Verdict::Full),
            (301, "PermanentRedirect", &read, Verdict::Elsewhere),
        ] {
            assert_eq!(
                verdict(Protocol::S3, &answer(status, code), task),
                expected,
                "{status} {code}"
            );
        }
    }
}
