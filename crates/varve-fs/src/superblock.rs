//! The file `VARVE` at the top of a store: what was fixed when it was formatted, and what a repair must know beside the engine's files.
//!
//! ```text
//! | JSON object, one line | LF | crc32c of that line, 8 hex digits | LF |
//! ```
//!
//! Written to a temporary name that is renamed when it is durable, so that a store either has a whole superblock or is not a
//! store. Text, so that a person can read it. A second one beside it (`copy`) is for the day when it is lost.

mod copy;

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use varve_engine::{Store, StoreDesign, StoreError, StoreResult};
use varve_env::{Env, OpenMode};
use varve_schema::key::STORE_ID;
use varve_schema::{EntrySuffix, NameHasher, STORED_FILE_BYTES_MAX, StoreId};
use varve_types::KeyspaceId;

pub use copy::COPY_NAME;

use crate::epoch::Epoch;
use crate::store_lock::take_lock;
use crate::{EngineKind, FormatOptions};

/// The newest layout this version reads and writes.
pub const FORMAT_VERSION: u32 = 1;
/// Name of the superblock within a store.
pub const SUPERBLOCK_NAME: &str = "VARVE";
/// What the threshold for large files may be, in bytes.
pub const LARGE_FILE_THRESHOLDS: RangeInclusive<u64> = 4096..=STORED_FILE_BYTES_MAX;
/// The most bytes of a superblock that are read.
const SUPERBLOCK_BYTES_MAX: usize = 64 * 1024;

/// What was fixed when the store was formatted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Superblock {
    /// Layout of the store.
    pub format_version: u32,
    /// Identity of the store, 32 hex digits.
    pub uuid: String,
    /// Key of the hash of names, 32 hex digits.
    pub name_hash_key: String,
    /// Bits kept of that hash.
    pub name_hash_bits: u32,
    /// Files larger than this are files of the storage below, in bytes.
    pub large_file_threshold_bytes: u64,
    /// File data kept in the store is compressed.
    pub compression: bool,
    /// The store that keeps its rows.
    pub engine: EngineKind,
    /// What its tables are made of.
    pub design: StoreDesign,
    /// When it was formatted, in seconds since 1970.
    pub formatted_at_secs: i64,
    /// Which key space has the [rows about requests](varve_schema::REQUESTS), since there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_keyspace: Option<u32>,
}

impl Superblock {
    /// Everything but the key of the name hash, which must stay a secret of those who may read the store:
    /// who knows it can make names that share a hash.
    pub fn public(&self) -> serde_json::Value {
        serde_json::json!({
            "format_version": self.format_version,
            "uuid": self.uuid,
            "name_hash_bits": self.name_hash_bits,
            "large_file_threshold_bytes": self.large_file_threshold_bytes,
            "compression": self.compression,
            "engine": self.engine,
            "design": self.design,
            "formatted_at_secs": self.formatted_at_secs,
        })
    }

    /// A new store's superblock.
    pub(crate) fn new(env: &dyn Env, options: &FormatOptions) -> Superblock {
        let wide = || (u128::from(env.random()) << 64) | u128::from(env.random());
        Superblock {
            format_version: FORMAT_VERSION,
            uuid: format!("{:032x}", wide()),
            name_hash_key: options
                .name_hash_key
                .clone()
                .unwrap_or_else(|| format!("{:032x}", wide())),
            name_hash_bits: options.name_hash_bits.clamp(1, EntrySuffix::HASH_BITS_MAX),
            large_file_threshold_bytes: options.large_file_threshold_bytes,
            compression: options.compression,
            engine: options.engine,
            design: options.design,
            formatted_at_secs: env.now().secs(),
            requests_keyspace: None,
        }
    }

    /// Reads the superblock of the store in `dir`, below which no path leads elsewhere from then on. `NotAStore`, `NewerFormat` or `Damaged` say what is
    /// wrong with it.
    pub fn read(env: &dyn Env, dir: &Path) -> StoreResult<Superblock> {
        let path = dir.join(SUPERBLOCK_NAME);
        match env.confine(dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            confined => confined.map_err(|source| StoreError::Io {
                action: "read",
                path: path.clone(),
                source,
            })?,
        }
        match Superblock::read_file(env, &path)? {
            Some(superblock) => Ok(superblock),
            None if env.stat(&dir.join(COPY_NAME)).is_ok() => {
                let detail = format!("it is missing, and there is {COPY_NAME}");
                Err(StoreError::Damaged { path, offset: 0, detail })
            }
            None => Err(StoreError::NotAStore { path: dir.to_path_buf() }),
        }
    }

    /// Reads the file `path` as a superblock, if there is one.
    pub fn read_file(env: &dyn Env, path: &Path) -> StoreResult<Option<Superblock>> {
        let io = |source| StoreError::Io { action: "read", path: path.to_path_buf(), source };
        let file = match env.open(path, OpenMode::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io(error)),
        };
        let mut bytes = vec![0; SUPERBLOCK_BYTES_MAX];
        let len = file.read_at(&mut bytes, 0).map_err(io)?;
        bytes.truncate(len);
        Superblock::decode(&bytes, path).map(Some)
    }

    /// Writes the superblock and its copy, durably, as the last step of formatting `dir`.
    pub(crate) fn write(&self, env: &dyn Env, dir: &Path) -> StoreResult<()> {
        self.write_file(env, dir, SUPERBLOCK_NAME)?;
        self.write_file(env, dir, COPY_NAME)
    }

    /// Has the file `name` in `dir` be this superblock, durably: before, or after a crash.
    fn write_file(&self, env: &dyn Env, dir: &Path, name: &str) -> StoreResult<()> {
        let (path, temporary) = (dir.join(name), dir.join(format!("{name}.new")));
        let io = |action| {
            let path = path.clone();
            move |source| StoreError::Io { action, path, source }
        };
        let file = env.open(&temporary, OpenMode::CreateOrOpen).map_err(io("create"))?;
        file.set_len(0).map_err(io("write"))?;
        file.write_all_at(&self.encode(), 0).map_err(io("write"))?;
        file.sync_all().map_err(io("sync"))?;
        env.rename(&temporary, &path).map_err(io("create"))?;
        env.sync_dir(dir).map_err(io("sync"))
    }

    /// Changes what tables of the store in `dir` are made of, from its next open on: compactions migrate the tables
    /// that are there. `Locked` while it is open, `Invalid` on another engine than Varve's.
    pub fn change_design(
        env: &dyn Env,
        dir: &Path,
        change: impl FnOnce(&mut StoreDesign),
    ) -> StoreResult<Superblock> {
        // What is no store gets no lock.
        Superblock::read(env, dir)?;
        let _lock = take_lock(env, dir, None)?;
        // Another may have changed it since.
        let mut superblock = Superblock::read(env, dir)?;
        if superblock.engine != EngineKind::Varve {
            let text = "the store is not on Varve's engine, and only that has a design to change; make a new store and copy the files";
            return Err(StoreError::Invalid(text.to_owned()));
        }
        change(&mut superblock.design);
        superblock.write(env, dir)?;
        Ok(superblock)
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = serde_json::json!(self).to_string().into_bytes();
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(format!("\n{crc:08x}\n").as_bytes());
        out
    }

    fn decode(bytes: &[u8], path: &Path) -> StoreResult<Superblock> {
        let damaged = |offset: usize, detail: String| StoreError::Damaged {
            path: path.to_path_buf(),
            offset: offset as u64,
            detail,
        };
        let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
        let (json, rest) = bytes.split_at(end);
        let expected = format!("\n{:08x}\n", crc32c::crc32c(json));
        if rest != expected.as_bytes() {
            return Err(damaged(end, "the checksum does not fit the superblock".into()));
        }
        let version: Version = serde_json::from_slice(json)
            .map_err(|error| damaged(error.column(), error.to_string()))?;
        if version.format_version > FORMAT_VERSION {
            return Err(StoreError::NewerFormat {
                path: path.to_path_buf(),
                found: version.format_version,
                supported: FORMAT_VERSION,
            });
        }
        let superblock: Superblock = serde_json::from_slice(json)
            .map_err(|error| damaged(error.column(), error.to_string()))?;
        if superblock.hash_key().is_none() {
            return Err(damaged(0, "the key of the name hash is not a number".into()));
        }
        if !LARGE_FILE_THRESHOLDS.contains(&superblock.large_file_threshold_bytes) {
            return Err(damaged(0, "a threshold for large files that no store has".into()));
        }
        Ok(superblock)
    }

    fn hash_key(&self) -> Option<u128> {
        u128::from_str_radix(&self.name_hash_key, 16).ok()
    }

    /// The row that binds the rows to this superblock.
    pub(crate) fn store_id(&self) -> Option<StoreId> {
        u128::from_str_radix(&self.uuid, 16).ok().map(StoreId)
    }

    /// Fails if the rows of `store` belong to another superblock.
    pub(crate) fn check_rows(
        &self,
        store: &dyn Store,
        meta: KeyspaceId,
        dir: &Path,
    ) -> StoreResult<()> {
        let row = store.get(meta, &STORE_ID.to_bytes())?;
        let found = row.as_ref().and_then(|row| StoreId::decode(row).ok());
        if found.is_some() && found == self.store_id() {
            return Ok(());
        }
        let found = found.map_or("none".to_owned(), |StoreId(uuid)| format!("{uuid:032x}"));
        let detail = format!(
            "it and {} belong to different stores: its uuid is {}, the rows say {found}",
            engine_dir(dir).display(),
            self.uuid
        );
        Err(StoreError::Damaged { path: dir.join(SUPERBLOCK_NAME), offset: 0, detail })
    }

    /// The hash of names in this store.
    pub(crate) fn name_hasher(&self) -> NameHasher {
        NameHasher::new(self.hash_key().unwrap_or_default(), self.name_hash_bits)
    }
}

/// The part of a superblock that every version can read.
#[derive(Deserialize)]
struct Version {
    format_version: u32,
}

/// The directory of the engine's files within a store.
pub fn engine_dir(dir: &Path) -> PathBuf {
    dir.join("engine")
}

/// The directory of object files within a store.
pub fn objects_dir(dir: &Path) -> PathBuf {
    dir.join("objects")
}

/// The directory of versions of object files that are kept for views, within a store.
pub(crate) fn preimages_dir(dir: &Path) -> PathBuf {
    dir.join("kept")
}

/// The directory of the object files of views' own, within a store.
pub(crate) fn views_dir(dir: &Path) -> PathBuf {
    dir.join("views")
}

/// That of the view of this epoch.
pub(crate) fn view_dir(dir: &Path, epoch: Epoch) -> PathBuf {
    views_dir(dir).join(epoch.get().to_string())
}

/// The file that is locked while a store is open.
pub fn lock_path(dir: &Path) -> PathBuf {
    dir.join("LOCK")
}

#[cfg(test)]
mod tests {
    use varve_env::sim::SimEnv;
    use varve_testkit::hooked::{HookedEnv, Hooks};
    use varve_testkit::rng::Rng;

    use super::*;

    pub(super) fn example() -> Superblock {
        Superblock {
            format_version: FORMAT_VERSION,
            uuid: "0".repeat(32),
            name_hash_key: format!("{:032x}", 77),
            name_hash_bits: 55,
            large_file_threshold_bytes: 65_536,
            compression: true,
            engine: EngineKind::Varve,
            design: StoreDesign::default(),
            formatted_at_secs: 1_700_000_000,
            requests_keyspace: None,
        }
    }

    #[test]
    fn the_superblock_is_written_as_version_1_wrote_it() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/v1/VARVE");
        let written = Superblock { design: StoreDesign::SLIMFS, ..example() };
        varve_testkit::golden(path, &written.encode());
        assert_eq!(Superblock::decode(&written.encode(), Path::new(path)).unwrap(), written);
    }

    #[test]
    fn comes_back_and_every_damaged_byte_is_noticed() {
        let bytes = example().encode();
        let path = Path::new("/s/VARVE");
        assert_eq!(Superblock::decode(&bytes, path).unwrap(), example());
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x11;
            assert!(Superblock::decode(&bad, path).is_err(), "byte {at}");
            assert!(Superblock::decode(&bytes[..at], path).is_err(), "cut at {at}");
        }
    }

    /// Superblocks that are whole by their checksum but say anything: what is accepted is written as what reads the same.
    #[test]
    fn arbitrary_superblocks_are_refused_or_read() {
        let mut rng = Rng::new(20_261_120);
        let path = Path::new("/s/VARVE");
        let sound = serde_json::json!(example()).to_string().into_bytes();
        let values: &[&[u8]] =
            &[b"-1", b"null", b"[]", b"{}", b"\"\"", b"18446744073709551616", b"1e999", b"\xff"];
        let (mut accepted, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let mut json = match rng.below(8) {
                0 => {
                    let len = rng.below(64) as usize;
                    rng.bytes(len)
                }
                _ => sound.clone(),
            };
            for _ in 0..rng.below(4) {
                let at = rng.below(json.len() as u64 + 1) as usize;
                let end = (at + rng.below(6) as usize).min(json.len());
                let put = match rng.below(3) {
                    0 => rng.pick(values).to_vec(),
                    1 => vec![b'0' + rng.below(10) as u8; end - at],
                    _ => rng.bytes(1),
                };
                json.splice(at..end, put);
            }
            let mut bytes = json.clone();
            bytes.extend_from_slice(format!("\n{:08x}\n", crc32c::crc32c(&json)).as_bytes());
            match Superblock::decode(&bytes, path) {
                Ok(found) => {
                    accepted += 1;
                    assert_eq!(Superblock::decode(&found.encode(), path).unwrap(), found);
                    found.name_hasher().entry(b"name");
                }
                Err(error) => {
                    refused += 1;
                    assert!(error.to_string().contains("/s/VARVE"), "{error}");
                }
            }
        }
        assert!(accepted > 1000 && refused > 1000, "{accepted} accepted, {refused} refused");
    }

    /// A change of the design is whole or absent after a power cut, and waits for nobody who has the store open.
    #[test]
    fn a_change_of_design_is_whole_or_absent() {
        let dir = Path::new("/s");
        let change = |env: &SimEnv| {
            Superblock::change_design(env, dir, |design| *design = StoreDesign::SLIMFS)
        };
        let made = || {
            let env = SimEnv::new(7);
            env.create_dir(dir).unwrap();
            example().write(&*env, dir).unwrap();
            env.sync_dir(Path::new("/")).unwrap();
            env
        };
        let env = made();
        let before = env.op_count();
        change(&env).unwrap();
        for at in before..=env.op_count() {
            let env = made();
            env.crash_after(at);
            let done = change(&env).is_ok();
            let cut = env.power_cut(at);
            let found = Superblock::read(&*cut, dir).unwrap().design;
            let allowed = [StoreDesign::default(), StoreDesign::SLIMFS];
            assert!(allowed[usize::from(done)..].contains(&found), "crash at {at}: {found:?}");
        }
        let lock = take_lock(&*env, dir, None).unwrap();
        assert!(matches!(change(&env), Err(StoreError::Locked { .. })));
        drop(lock);
    }

    type Once = parking_lot::Mutex<Option<Box<dyn FnOnce() + Send>>>;

    /// Does something once, when the superblock has been opened.
    struct OnSuperblock(Once);

    impl Hooks for OnSuperblock {
        fn after_open(&self, path: &Path, _mode: OpenMode) {
            let then = self.0.lock().take_if(|_| path.ends_with(SUPERBLOCK_NAME));
            then.into_iter().for_each(|then| then());
        }
    }

    /// One that had read the superblock before another changed it wrote what it had read.
    #[test]
    fn of_two_changes_at_once_none_is_lost() {
        let (env, dir) = (SimEnv::new(7), Path::new("/s"));
        env.create_dir(dir).unwrap();
        example().write(&*env, dir).unwrap();
        let (filter, index) = (StoreDesign::SLIMFS.filter, StoreDesign::SLIMFS.index);
        let (other, change) = (env.clone(), move |design: &mut StoreDesign| design.filter = filter);
        let then = move || drop(Superblock::change_design(&*other, dir, change).unwrap());
        let hooked = HookedEnv::new(&env, OnSuperblock(Once::new(Some(Box::new(then)))));
        Superblock::change_design(&hooked, dir, |design| design.index = index).unwrap();
        let expected = StoreDesign { filter, index, ..StoreDesign::default() };
        assert_ne!(expected, StoreDesign { index, ..StoreDesign::default() });
        assert_eq!(Superblock::read(&*env, dir).unwrap().design, expected);
    }

    #[test]
    fn a_store_on_another_engine_keeps_its_design() {
        let dir = Path::new("/s");
        let env = SimEnv::new(7);
        env.create_dir(dir).unwrap();
        Superblock { engine: EngineKind::Fjall, ..example() }.write(&*env, dir).unwrap();
        let change = |design: &mut StoreDesign| *design = StoreDesign::SLIMFS;
        let error = Superblock::change_design(&*env, dir, change).unwrap_err();
        assert!(error.to_string().contains("not on Varve's engine"), "{error}");
        assert_eq!(Superblock::read(&*env, dir).unwrap().design, StoreDesign::default());
    }

    #[test]
    fn a_newer_version_is_refused_by_name_even_if_its_fields_differ() {
        let json = br#"{"format_version":9,"novel":true}"#;
        let mut bytes = json.to_vec();
        bytes.extend_from_slice(format!("\n{:08x}\n", crc32c::crc32c(json)).as_bytes());
        let error = Superblock::decode(&bytes, Path::new("/s/VARVE")).unwrap_err();
        assert!(matches!(error, StoreError::NewerFormat { found: 9, supported: 1, .. }));
    }
}
