//! Stores on shared storage, in the place of a local directory.
//!
//! A store on an object store or a cluster file system has a local directory of its own on each machine that uses it, its anchor:
//! `s3-bucket-prefix-1f3a` below [`anchors_dir`]. Everything that takes the directory of a store takes an anchor too. In it are:
//!
//! | file | what it holds |
//! | --- | --- |
//! | `storage.json` | [`StorageSettings`]: what the anchor stands for |
//! | `LOCK`, `control`, `kv`, `varve.log` | as in the directory of a local store: which process of this machine uses it, how to ask it, its messages |
//! | `cache/` | bytes of objects, each part of which may be removed at any time |

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;
use varve_storage::{Location, LocationOptions};

use crate::{Error, Result};

/// The file that makes a directory an anchor.
const SETTINGS_NAME: &str = "storage.json";
/// The cache of an anchor.
const CACHE_NAME: &str = "cache";
/// The size of the cache, in bytes, if nothing else is asked for.
pub const CACHE_BYTES: u64 = 1 << 30;

/// What an anchor stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageSettings {
    /// The address of the store.
    pub uri: String,
    /// How its storage is reached, beyond what the environment says.
    #[serde(flatten)]
    pub options: LocationOptions,
    /// The most bytes of the local cache.
    pub cache_bytes: u64,
    /// How long an owner may go on without hearing from the storage, in seconds; `None` takes the default.
    pub lease_seconds: Option<u64>,
}

/// The directory of the anchors: `VARVE_ANCHORS`, else /var/lib/varve for root, and `XDG_STATE_HOME/varve` or `~/.local/state/varve` for
/// others.
pub fn anchors_dir() -> Result<PathBuf> {
    let of =
        |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = of("VARVE_ANCHORS") {
        return Ok(dir);
    }
    if geteuid().is_root() {
        return Ok("/var/lib/varve".into());
    }
    let home = || of("HOME").map(|home| home.join(".local/state"));
    let state = of("XDG_STATE_HOME").or_else(home).ok_or_else(|| {
        Error::failed(
            "there is no directory for what this machine keeps of a store on shared storage",
        )
        .hint("set HOME, XDG_STATE_HOME or VARVE_ANCHORS")
    })?;
    Ok(state.join("varve"))
}

/// The directory of the store that a command line names: a path as it is, and [`path_of`] an address.
pub fn store_path(text: &OsStr) -> Result<PathBuf> {
    match text.to_str().filter(|text| text.contains("://")) {
        Some(uri) => path_of(uri),
        None => Ok(text.into()),
    }
}

/// The directory of the store at an address: of a store on shared storage its anchor, which is made if it is missing.
pub fn path_of(uri: &str) -> Result<PathBuf> {
    let location = Location::parse(uri).map_err(|error| Error::split_hint(&error.to_string()))?;
    match location.local() {
        Some(path) => Ok(path.to_path_buf()),
        None => anchor_of(&location),
    }
}

/// The anchor of a store on shared storage, which is made if it is missing.
fn anchor_of(location: &Location) -> Result<PathBuf> {
    let uri = location.to_string();
    let dir = dir_for(&uri)?;
    if !dir.join(SETTINGS_NAME).exists() {
        let options = LocationOptions::default();
        write(
            &dir,
            &StorageSettings { uri, options, cache_bytes: CACHE_BYTES, lease_seconds: None },
        )?;
    }
    Ok(dir)
}

/// The directory in which this machine keeps what belongs to `address`, made if it is missing.
pub fn dir_for(address: &str) -> Result<PathBuf> {
    let dir = anchors_dir()?.join(anchor_name(address));
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    made.map_err(|error| Error::io("create", &dir, &error))?;
    Ok(dir)
}

/// Letters and digits of the address, for people, and a hash, so that no two addresses have one name.
fn anchor_name(uri: &str) -> String {
    /// So many of them; names end at 255 bytes.
    const SHOWN_MAX: usize = 100;
    let mut shown = String::new();
    for c in uri.chars().take(SHOWN_MAX) {
        let is_plain = c.is_ascii_alphanumeric() || matches!(c, '.' | '_');
        match (is_plain, shown.ends_with('-')) {
            (true, _) => shown.push(c),
            (false, false) => shown.push('-'),
            (false, true) => {}
        }
    }
    // FNV-1a: a change would give every anchor another name.
    let hash = uri.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{}-{hash:016x}", shown.trim_matches('-'))
}

/// What the anchor `dir` stands for; `None` if it is no anchor.
pub fn settings(dir: &Path) -> Result<Option<StorageSettings>> {
    let path = dir.join(SETTINGS_NAME);
    match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            Error::failed(format!("{} is damaged: {error}", path.display()))
                .hint("remove it, and name the store by its address again")
        }),
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            Ok(None)
        }
        Err(error) => Err(Error::io("read", &path, &error)),
    }
}

/// Changes how the storage behind an anchor is reached. Fails for a directory that is no anchor.
pub fn change(dir: &Path, change: impl FnOnce(&mut StorageSettings)) -> Result<()> {
    let Some(was) = settings(dir)? else {
        return Err(Error::usage(format!("{} is on this machine", dir.display()))
            .hint("these options are for stores with an address, such as s3://bucket/prefix"));
    };
    let mut now = was.clone();
    change(&mut now);
    if now == was { Ok(()) } else { write(dir, &now) }
}

fn write(dir: &Path, settings: &StorageSettings) -> Result<()> {
    let path = dir.join(SETTINGS_NAME);
    let failed = |error: io::Error| Error::io("write", &path, &error);
    let text = serde_json::to_string_pretty(settings).map_err(|error| failed(error.into()))?;
    let mut file = NamedTempFile::new_in(dir).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(&path).map(drop).map_err(|refused| failed(refused.error))
}

/// Whether `dir` is an anchor.
pub fn is_anchor(dir: &Path) -> bool {
    dir.join(SETTINGS_NAME).exists()
}

/// The cache in the anchor `dir`.
pub(crate) fn cache_dir(dir: &Path) -> PathBuf {
    dir.join(CACHE_NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_anchors_stay_as_they_are_and_differ() {
        assert_eq!(anchor_name("s3://bucket/a/b"), "s3-bucket-a-b-483e28575f358a96");
        assert_ne!(anchor_name("s3://bucket/a-b"), anchor_name("s3://bucket/a/b"));
        assert!(anchor_name(&format!("s3://bucket/{}", "x".repeat(900))).len() < 200);
    }
}
