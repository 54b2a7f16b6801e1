//! Work through the kernel: on a plain directory or on a mount.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{Listed, Place};
use varve::{Error, Result};

/// Bytes per read and write call.
const CALL_BYTES: usize = 1 << 20;

/// A directory of the operating system.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    root: PathBuf,
}

impl Directory {
    /// Work below `root`, which must exist.
    pub(crate) fn new(root: impl Into<PathBuf>) -> Directory {
        Directory { root: root.into() }
    }

    fn on<T>(
        &self,
        action: &str,
        relative: &[&str],
        call: impl FnOnce(&Path) -> std::io::Result<T>,
    ) -> Result<T> {
        let mut path = self.root.clone();
        path.extend(relative);
        call(&path).map_err(|error| Error::io(action, &path, &error))
    }
}

impl Place for Directory {
    fn make_dir(&self, dir: &str) -> Result<()> {
        self.on("create", &[dir], |path| fs::create_dir(path))
    }

    fn create(&self, dir: &str, name: &str) -> Result<()> {
        self.on("create", &[dir, name], |path| File::create_new(path).map(drop))
    }

    fn write(&self, dir: &str, name: &str, data: &[u8], durable: bool) -> Result<()> {
        self.on("write", &[dir, name], |path| {
            let mut file = File::create(path)?;
            data.chunks(CALL_BYTES).try_for_each(|chunk| file.write_all(chunk))?;
            if durable { file.sync_all() } else { Ok(()) }
        })
    }

    fn read(&self, dir: &str, name: &str) -> Result<Vec<u8>> {
        self.on("read", &[dir, name], |path| {
            let mut file = File::open(path)?;
            let mut data = Vec::new();
            let mut buffer = vec![0_u8; CALL_BYTES];
            loop {
                match file.read(&mut buffer)? {
                    0 => return Ok(data),
                    n => data.extend_from_slice(&buffer[..n]),
                }
            }
        })
    }

    fn stat(&self, dir: &str, name: &str) -> Result<u64> {
        self.on("stat", &[dir, name], |path| Ok(fs::symlink_metadata(path)?.len()))
    }

    fn list(&self, dir: &str) -> Result<Vec<Listed>> {
        self.on("list", &[dir], |path| {
            let mut listed = Vec::new();
            for entry in fs::read_dir(path)? {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                listed.push(Listed { name, bytes: entry.metadata()?.len() });
            }
            listed.sort_unstable();
            Ok(listed)
        })
    }

    fn chmod(&self, dir: &str, name: &str, mode: u32) -> Result<()> {
        self.on("chmod", &[dir, name], |path| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode))
        })
    }

    fn rename(&self, dir: &str, from: &str, to: &str) -> Result<()> {
        self.on("rename", &[dir, from], |path| fs::rename(path, path.with_file_name(to)))
    }

    fn unlink(&self, dir: &str, name: &str) -> Result<()> {
        self.on("remove", &[dir, name], |path| fs::remove_file(path))
    }
}
