//! Objects as files of a directory that many machines reach: NFS, CephFS, Lustre, GlusterFS or another POSIX cluster
//! file system.
//!
//! An object is made in these steps:
//!
//! 1. Write its bytes to a temporary file below [`UNFINISHED`], under a name that nobody else uses.
//! 2. Sync the file.
//! 3. Link it to the name of the object: this fails if there is one, also over NFS. A replacement renames it instead.
//! 4. Sync the directory.
//!
//! Invariants:
//! - A name stands for no object or for a whole one.
//! - An object that [`Objects::create`] reports, as new or as there before, is durable.
//! - What a crash leaves below [`UNFINISHED`] is removed by a later open, once it is [`LEFT_AGE`] old by the clock
//!   of the storage.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use varve_env::{Env, FileKind, OpenMode, told};

use crate::objects::{Created, LIST_MAX, ObjectInfo, Objects, transient};

/// The directory of temporary files. No object can have this name.
const UNFINISHED: &str = "~unfinished";

/// The age in seconds from which on nobody is still writing a temporary file.
const LEFT_AGE: i64 = 24 * 60 * 60;

/// The most threads of one [`Objects::create_all`] or [`Objects::read_all`]. Each waits for the storage most of the time.
const THREADS_MAX: usize = 16;

/// The objects in a directory.
#[derive(Debug)]
pub(crate) struct SharedObjects(Arc<Directory>);

#[derive(Debug)]
struct Directory {
    env: Arc<dyn Env>,
    root: PathBuf,
    address: String,
}

/// Error numbers of a file system whose server is away for a while: EAGAIN, ENOLINK, ECONNABORTED, ECONNRESET, ENOTCONN,
/// ETIMEDOUT, ECONNREFUSED, EHOSTDOWN, EHOSTUNREACH, ESTALE.
const PASSING: [i32; 10] = [11, 67, 103, 104, 107, 110, 111, 112, 113, 116];

impl SharedObjects {
    /// Opens the objects in the directory `root`, whose parent exists.
    pub(crate) fn open(env: Arc<dyn Env>, root: PathBuf, address: String) -> SharedObjects {
        let directory = Directory { env, root, address };
        directory.remove_left();
        SharedObjects(Arc::new(directory))
    }

    /// Carries out several requests, given by their numbers, on a few threads. On a deterministic machine there are none.
    fn each<T: Send + 'static>(
        &self,
        count: usize,
        request: impl Fn(&Directory, usize) -> io::Result<T> + Send + Sync + 'static,
    ) -> Vec<io::Result<T>> {
        let directory = Arc::clone(&self.0);
        let next = Arc::new(AtomicUsize::new(0));
        let outcomes: Vec<_> = (0..count).map(|_| None).collect();
        let outcomes = Arc::new(Mutex::new(outcomes));
        let shared = Arc::clone(&outcomes);
        let request = Arc::new(request);
        let work = move || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return;
                }
                let outcome = request(&directory, number);
                shared.lock()[number] = Some(outcome);
            }
        };
        let env = &self.0.env;
        let threads = if env.is_deterministic() { 1 } else { count.min(THREADS_MAX) };
        // Without a thread the others have more to do.
        let threads: Vec<_> = (1..threads)
            .filter_map(|_| env.spawn("varve-objects", Box::new(work.clone())).ok())
            .collect();
        work();
        let panicked = threads.into_iter().filter_map(|thread| thread.join().err()).count();
        let outcomes = std::mem::take(&mut *outcomes.lock());
        let none = || Err(io::Error::other(format!("{panicked} threads panicked")));
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(none)).collect()
    }
}

impl Directory {
    fn failed(&self, what: &str, name: &str, error: &io::Error) -> io::Error {
        let text = format!("{}: cannot {what} object `{name}`: {error}", self.address);
        match error.raw_os_error() {
            Some(number) if PASSING.contains(&number) => transient(text),
            _ => told(error, text),
        }
    }

    fn path(&self, name: &str) -> io::Result<PathBuf> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
        let is_part = |part: &str| !matches!(part, "" | "." | "..") && part.bytes().all(is_allowed);
        if !name.split('/').all(is_part) {
            let text = format!("{}: `{name}` is no name of an object", self.address);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(self.root.join(name))
    }

    /// Makes a directory and those above it up to the root, durably.
    fn create_dirs(&self, dir: &Path) -> io::Result<()> {
        match self.env.create_dir(dir) {
            Ok(()) => {}
            // Whoever made it may not have synced it yet.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound && dir != self.root => {
                self.create_dirs(dir.parent().unwrap_or(&self.root))?;
                return self.create_dirs(dir);
            }
            Err(error) => return Err(error),
        }
        match dir.parent() {
            Some(parent) => self.env.sync_dir(parent),
            None => Ok(()),
        }
    }

    /// Writes bytes to a temporary file, durably.
    fn write_temporary(&self, bytes: &[u8]) -> io::Result<PathBuf> {
        let dir = self.root.join(UNFINISHED);
        let name = format!("{:016x}{:016x}", self.env.random(), self.env.random());
        let path = dir.join(name);
        let file = match self.env.open(&path, OpenMode::CreateNew) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.create_dirs(&dir)?;
                self.env.open(&path, OpenMode::CreateNew)?
            }
            opened => opened?,
        };
        let written = file.write_all_at(bytes, 0).and_then(|()| file.sync_all());
        if written.is_err() {
            let _ = self.env.remove_file(&path);
        }
        written.map(|()| path)
    }

    /// Writes bytes to a temporary file and gives that its name with `place`. The name is durable after a sync of its
    /// directory.
    fn put(
        &self,
        path: &Path,
        bytes: &[u8],
        place: impl Fn(&Path, &Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let temporary = self.write_temporary(bytes)?;
        let placed = match place(&temporary, path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let dirs = self.create_dirs(self.dir_of(path));
                dirs.and_then(|()| place(&temporary, path))
            }
            placed => placed,
        };
        // After a rename it is gone.
        let _ = self.env.remove_file(&temporary);
        placed
    }

    /// Makes an object if there is none of this name. It is durable after a sync of its directory.
    fn link(&self, path: &Path, bytes: &[u8]) -> io::Result<Created> {
        match self.put(path, bytes, |from, to| self.env.link(from, to)) {
            Ok(()) => Ok(Created::New),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(Created::Exists),
            Err(error) => Err(error),
        }
    }

    fn dir_of<'a>(&'a self, path: &'a Path) -> &'a Path {
        path.parent().unwrap_or(&self.root)
    }

    fn read(&self, name: &str, range: Option<Range<u64>>) -> io::Result<Bytes> {
        let path = self.path(name)?;
        let read = || {
            let file = self.env.open(&path, OpenMode::Read)?;
            let len = file.stat()?.len;
            let range = range.clone().unwrap_or(0..len);
            let end = range.end.min(len);
            let mut bytes = vec![0; end.saturating_sub(range.start) as usize];
            file.read_exact_at(&mut bytes, range.start.min(len))?;
            Ok(Bytes::from(bytes))
        };
        read().map_err(|error| self.failed("read", name, &error))
    }

    /// Removes temporary files that a crash has left. This may fail without harm.
    fn remove_left(&self) {
        let dir = self.root.join(UNFINISHED);
        let Ok(left) = self.env.list(&dir) else { return };
        if left.is_empty() {
            return;
        }
        // A file that was written just now tells the time of the storage, by which the others are dated.
        let Ok(new) = self.write_temporary(b"") else { return };
        let now = self.env.stat(&new).map(|stat| stat.modified);
        let _ = self.env.remove_file(&new);
        let Ok(now) = now else { return };
        for item in left {
            let path = dir.join(item.name);
            if self.env.stat(&path).is_ok_and(|stat| now.secs() - stat.modified.secs() > LEFT_AGE) {
                let _ = self.env.remove_file(&path);
            }
        }
    }

    /// Appends what a listing finds in the directory `dir`, which is empty or ends with a slash.
    fn list_below(
        &self,
        dir: &str,
        prefix: &str,
        after: Option<&str>,
        found: &mut Vec<ObjectInfo>,
    ) -> io::Result<()> {
        let items = match self.env.list(&self.root.join(dir)) {
            // It was removed meanwhile, or nothing was ever made.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            items => items?,
        };
        let mut names: Vec<String> = Vec::new();
        for item in items {
            let Some(name) = item.name.to_str().filter(|name| !name.starts_with('~')) else {
                continue;
            };
            // With its slash a directory sorts as the names below it do.
            names.push(match item.kind {
                FileKind::Dir => format!("{dir}{name}/"),
                FileKind::File => format!("{dir}{name}"),
                FileKind::Other => continue,
            });
        }
        names.sort_unstable();
        for name in names {
            if found.len() >= LIST_MAX {
                break;
            }
            if name.ends_with('/') {
                let is_in = name.starts_with(prefix) || prefix.starts_with(&name);
                let is_behind =
                    after.is_none_or(|after| name.as_str() > after || after.starts_with(&name));
                if is_in && is_behind {
                    self.list_below(&name, prefix, after, found)?;
                }
            } else if name.starts_with(prefix) && after.is_none_or(|after| name.as_str() > after) {
                match self.env.stat(&self.root.join(&name)) {
                    Ok(stat) => found.push(ObjectInfo { name, bytes: stat.len }),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

impl Objects for SharedObjects {
    fn create(&self, name: &str, bytes: Bytes) -> io::Result<Created> {
        let path = self.0.path(name)?;
        let linked = self.0.link(&path, &bytes);
        let durable =
            linked.and_then(|created| self.0.env.sync_dir(self.0.dir_of(&path)).map(|()| created));
        durable.map_err(|error| self.0.failed("create", name, &error))
    }

    fn create_all(&self, objects: Vec<(String, Bytes)>) -> Vec<io::Result<Created>> {
        let objects = Arc::new(objects);
        let shared = Arc::clone(&objects);
        let linked = self.each(objects.len(), move |directory, number| {
            let (name, bytes) = &shared[number];
            let path = directory.path(name)?;
            let created = directory.link(&path, bytes);
            let created = created.map_err(|error| directory.failed("create", name, &error))?;
            Ok((directory.dir_of(&path).to_owned(), created))
        });
        // One sync of a directory is for all names in it.
        let mut synced: HashMap<PathBuf, io::Result<()>> = HashMap::new();
        for (dir, _) in linked.iter().flatten() {
            if !synced.contains_key(dir) {
                synced.insert(dir.clone(), self.0.env.sync_dir(dir));
            }
        }
        let outcomes = linked.into_iter().zip(objects.iter()).map(|(linked, (name, _))| {
            let (dir, created) = linked?;
            match synced.get(&dir) {
                Some(Err(error)) => Err(self.0.failed("create", name, error)),
                _ => Ok(created),
            }
        });
        outcomes.collect()
    }

    fn read_all(&self, ranges: &[(String, Range<u64>)]) -> Vec<io::Result<Bytes>> {
        let ranges = ranges.to_vec();
        self.each(ranges.len(), move |directory, number| {
            let (name, range) = &ranges[number];
            directory.read(name, Some(range.clone()))
        })
    }

    fn replace(&self, name: &str, bytes: Bytes) -> io::Result<()> {
        let path = self.0.path(name)?;
        let placed = self.0.put(&path, &bytes, |from, to| self.0.env.rename(from, to));
        let durable = placed.and_then(|()| self.0.env.sync_dir(self.0.dir_of(&path)));
        durable.map_err(|error| self.0.failed("replace", name, &error))
    }

    fn read(&self, name: &str, range: Option<Range<u64>>) -> io::Result<Bytes> {
        self.0.read(name, range)
    }

    fn list(&self, prefix: &str, after: Option<&str>) -> io::Result<Vec<ObjectInfo>> {
        let mut found = Vec::new();
        match self.0.list_below("", prefix, after, &mut found) {
            Ok(()) => Ok(found),
            Err(error) => Err(self.0.failed("list", prefix, &error)),
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match self.0.env.remove_file(&self.0.path(name)?) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(self.0.failed("remove", name, &error))
            }
            _ => Ok(()),
        }
    }

    fn address(&self) -> String {
        self.0.address.clone()
    }
}

#[cfg(test)]
mod tests;
