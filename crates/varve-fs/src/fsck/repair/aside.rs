//! Where things go that make no sense, instead of being dropped: `STORE/aside/`.
//!
//! ```text
//! aside/rows-N.jsonl   rows, one line of JSON each: key space, key and value in hexadecimal
//! aside/N-NAME         files that were among the large files and are none
//! ```
//!
//! Rows are written before the batch that removes them, and that batch depends on outside data, so that the
//! store syncs this file first.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use varve_env::{Env, File, OpenMode};
use varve_vfs::{FsError, FsResult};

use crate::fsck::volume::AlsoSync;

/// The directory within a store.
pub(crate) const ASIDE_DIR: &str = "aside";

/// See the module's comment.
pub(super) struct Aside {
    env: Arc<dyn Env>,
    dir: PathBuf,
    also: AlsoSync,
    rows: Option<(Arc<dyn File>, u64)>,
    used: bool,
}

impl Aside {
    /// Nothing set aside yet. A sync of the store syncs the file in `also`.
    pub(super) fn new(env: Arc<dyn Env>, store: &Path, also: AlsoSync) -> Aside {
        Aside { env, dir: store.join(ASIDE_DIR), also, rows: None, used: false }
    }

    /// The directory, if anything went there.
    pub(super) fn path(&self) -> Option<String> {
        self.used.then(|| self.dir.display().to_string())
    }

    fn fail(&self, error: &io::Error) -> FsError {
        let dir = self.dir.display();
        FsError::Storage(format!(
            "cannot set something aside in {dir}: {error}; make room there and repair again"
        ))
    }

    fn make_dir(&mut self) -> io::Result<()> {
        self.used = true;
        match self.env.create_dir(&self.dir) {
            Ok(()) => self.env.sync_dir(self.dir.parent().unwrap_or(&self.dir)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The first path of the form `aside/BEFORE` N `AFTER` that is free.
    fn free_path(&self, before: &str, after: &str) -> PathBuf {
        let path = |n: u64| self.dir.join(format!("{before}{n}{after}"));
        (1..).map(path).find(|path| self.env.stat(path).is_err()).unwrap_or_else(|| path(0))
    }

    /// Notes a row.
    pub(super) fn row(&mut self, keyspace: &str, key: &[u8], value: &[u8]) -> FsResult<()> {
        let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
        let line =
            serde_json::json!({ "keyspace": keyspace, "key": hex(key), "value": hex(value) });
        self.write(format!("{line}\n").as_bytes()).map_err(|error| self.fail(&error))
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.rows.is_none() {
            self.make_dir()?;
            let file = self.env.open(&self.free_path("rows-", ".jsonl"), OpenMode::CreateNew)?;
            self.env.sync_dir(&self.dir)?;
            *self.also.lock() = Some(Arc::clone(&file));
            self.rows = Some((file, 0));
        }
        if let Some((file, len)) = &mut self.rows {
            file.write_all_at(line, *len)?;
            *len += line.len() as u64;
        }
        Ok(())
    }

    /// Moves a file or directory here.
    pub(super) fn file(&mut self, path: &Path) -> FsResult<()> {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let moved = self.make_dir().and_then(|()| {
            let to = self.free_path("", &format!("-{}", name.unwrap_or_default()));
            self.env.rename(path, &to)?;
            self.env.sync_dir(&self.dir)?;
            self.env.sync_dir(path.parent().unwrap_or(path))
        });
        moved.map_err(|error| self.fail(&error))
    }
}
