//! Keeps the maps from a close to the next open, and over a crash if the store had come to rest.
//!
//! 1. [`Maps::save`] writes the maps of the present version, with the tables that they number, to a new file, and then
//!    removes the one before. At close and at rest, if a map changed since.
//! 2. [`restore`] reads the newest file at open. A map is taken up if every table that it numbers is there as it was.
//!
//! Invariants:
//! - A map is a statement about the tables that it numbers, which never change; so it holds whatever tables came since. Had one
//!   of them gone or been clipped, nobody would know where its keys are: the map is not taken up.
//! - The file is never needed: one that is stale, torn, damaged or missing means that a map begins anew. So it is not synced.
//! - It has at most [`FILE_BYTES_MAX`] bytes, and no more than maps may have of the cache; larger maps are not saved.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use varve_env::{Env, OpenMode};
use varve_format::filter::parent::ParentFilter;
use varve_format::saved_map::{
    MAP_HEADER_BYTES, NumberedTable, SavedMap, encode_map, map_at, map_salt, put_map_header,
    put_map_section,
};
use varve_types::{FileNo, FileSalt};

use super::findings::Findings;
use super::map::{NUMBER_MAX, SublevelMap, WIDTHS};
use super::number::{MapId, MapNumber};
use crate::StoreResult;
use crate::base::Base;
use crate::files::FileNumbers;
use crate::files::{StoreFile, format_error, io_error};
use crate::health::Health;
use crate::keyspace::Keyspace;
use crate::metrics::Metrics;
use crate::options::DbOptions;
use crate::read::{open, read_part};
use crate::read_state::{ReadState, ReadStates};
use crate::space::SpaceGuard;
use crate::table::cache::TableCache;
use crate::version::Version;

/// The longest file: what a disk reads in a moment.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// What the file of maps has.
#[derive(Debug, Default)]
pub(crate) struct SavedMaps {
    file: Option<FileNo>,
    /// How often maps had changed when it was written.
    changes: u64,
}

/// The maps of a store: their names, what changes them, and the file that they are saved to.
pub(crate) struct Maps {
    env: Arc<dyn Env>,
    dir: PathBuf,
    health: Arc<Health>,
    pub(crate) metrics: Arc<Metrics>,
    cache: Arc<TableCache>,
    space: Arc<SpaceGuard>,
    read_states: Arc<ReadStates>,
    file_numbers: Arc<FileNumbers>,
    /// What lookups found.
    pub(crate) findings: Arc<Findings>,
    /// At first the number of key spaces, whose maps were taken up by their places.
    next_id: AtomicU64,
    /// How often a map changed.
    changes: AtomicU64,
    saved: Mutex<SavedMaps>,
}

impl Maps {
    /// The maps of the present read state of `base`, of which the file `saved` has some.
    pub(crate) fn new(
        base: &Base,
        space: Arc<SpaceGuard>,
        findings: Arc<Findings>,
        saved: SavedMaps,
    ) -> Maps {
        let Base { env, dir, health, metrics, cache, read_states, file_numbers, .. } = base.clone();
        let next_id = AtomicU64::new(read_states.get().keyspaces.len() as u64);
        let (changes, saved) = (AtomicU64::new(0), Mutex::new(saved));
        Maps {
            env,
            dir,
            health,
            metrics,
            cache,
            space,
            read_states,
            file_numbers,
            findings,
            next_id,
            changes,
            saved,
        }
    }

    /// The name of a new map.
    pub(crate) fn new_id(&self) -> MapId {
        MapId(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Notes that a map has changed.
    pub(crate) fn has_changed(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes the maps to a file, unless it has them. What fails here costs reads after the next open, no more.
    pub(crate) fn save(&self) {
        let mut saved = self.saved.lock();
        let changes = self.changes.load(Ordering::Relaxed);
        if changes == saved.changes || self.health.poison.cause().is_some() {
            return;
        }
        let read_state = self.read_states.get();
        let file = self.write_maps(&read_state).unwrap_or_else(|error| {
            log::warn!("the maps of the sub-levels are not saved: {error}");
            None
        });
        if let Some(old) = saved.file {
            remove(&*self.env, &StoreFile::Map(old).path(&self.dir));
        }
        *saved = SavedMaps { file, changes };
    }

    /// Writes the maps of `read_state` to a new file; `None` if there are none, or too large ones.
    fn write_maps(&self, read_state: &ReadState) -> StoreResult<Option<FileNo>> {
        let spaces = read_state.keyspaces.iter();
        let maps: Vec<_> = spaces.filter_map(|s| Some((s, &**s.version.map()?))).collect();
        let bytes = || maps.iter().map(|(_, map)| map.memory_bytes());
        let (sum, most) = (bytes().sum::<usize>() as u64, bytes().max().unwrap_or(0));
        if maps.is_empty() || sum > FILE_BYTES_MAX {
            return Ok(None);
        }
        // Each is encoded in memory, which counts like a copy that a reader holds.
        let Some(_room) = self.cache.reserve(most) else { return Ok(None) };
        self.space.check_room(sum)?;
        let no = self.file_numbers.take();
        let path = StoreFile::Map(no).path(&self.dir);
        self.write_map_file(&path, &maps).inspect_err(|_| remove(&*self.env, &path))?;
        self.metrics.map_saves.add(1);
        Ok(Some(no))
    }

    fn write_map_file(&self, path: &Path, maps: &[(&Keyspace, &SublevelMap)]) -> StoreResult<()> {
        let file = self.env.open(path, OpenMode::CreateNew);
        let file = file.map_err(|error| io_error("create", path, error))?;
        let salt = FileSalt::new(self.env.random());
        let (mut out, mut offset) = (Vec::new(), MAP_HEADER_BYTES as u64);
        put_map_header(&mut out, salt);
        let write = |out: &[u8], at| {
            file.write_all_at(out, at).map_err(|error| io_error("write", path, error))
        };
        write(&out, 0)?;
        for (space, map) in maps {
            let tables = numbered(&space.version);
            out.clear();
            put_map_section(&mut out, salt, offset, |out| {
                encode_map(out, space.id, &tables, &map.keys, map.prefixes.as_ref());
            })
            .map_err(|error| format_error(path, error))?;
            write(&out, offset)?;
            offset += out.len() as u64;
        }
        Ok(())
    }
}

/// The tables of a version that have numbers in its map, ascending by file.
fn numbered(version: &Version) -> Vec<NumberedTable> {
    let tables = version.tables().filter_map(|(_, table)| {
        let (meta, number) = (table.meta(), version.number(table)?);
        let smallest_key = meta.smallest_key.clone();
        Some(NumberedTable { file: meta.file, salt: meta.salt, smallest_key, number })
    });
    let mut tables: Vec<_> = tables.collect();
    tables.sort_by_key(|table| table.file);
    tables
}

fn remove(env: &dyn Env, path: &Path) {
    // What stays behind is removed at the next open.
    if let Err(error) = env.remove_file(path) {
        log::warn!("cannot remove {}: {error}", path.display());
    }
}

/// Takes up the maps that were saved, as far as they are right for `read_state`, and removes files of maps that are not needed.
pub(crate) fn restore(
    env: &Arc<dyn Env>,
    dir: &Path,
    files: &[StoreFile],
    options: &DbOptions,
    cache: &Arc<TableCache>,
    read_state: &mut ReadState,
) -> SavedMaps {
    let maps = || files.iter().filter(|file| matches!(file, StoreFile::Map(_)));
    let newest = maps().max_by_key(|file| file.number()).filter(|_| options.sublevel_map);
    let taken = newest.filter(|file| {
        let mut any = false;
        if let Err(error) = read_maps(&**env, &file.path(dir), cache, read_state, &mut any) {
            log::warn!("maps of the sub-levels that are not taken up begin anew: {error}");
        }
        any
    });
    for file in maps().filter(|file| Some(*file) != taken) {
        remove(&**env, &file.path(dir));
    }
    SavedMaps { file: taken.and_then(|file| file.number()), changes: 0 }
}

/// Reads a file of maps into `read_state`, up to the first that cannot be read. `any` becomes true if one of them was taken up.
fn read_maps(
    env: &dyn Env,
    path: &Path,
    cache: &Arc<TableCache>,
    read_state: &mut ReadState,
    any: &mut bool,
) -> StoreResult<()> {
    let (file, len) = open(env, path)?;
    if len > FILE_BYTES_MAX.min(2 * cache.reserve_max() as u64) {
        return Ok(());
    }
    let at = |error| format_error(path, error);
    let bytes = read_part(&*file, path, 0, len)?;
    let header = bytes.get(..MAP_HEADER_BYTES).unwrap_or_default();
    let salt = map_salt(header).map_err(at)?;
    let mut offset = MAP_HEADER_BYTES;
    while offset < bytes.len() {
        let (map, end) = map_at(&bytes, salt, offset).map_err(at)?;
        let place = read_state.keyspaces.iter().position(|space| space.id == map.keyspace);
        if let Some(place) = place {
            *any |= take_up(&mut read_state.keyspaces[place], map, MapId(place as u64), cache);
        }
        offset = end;
    }
    Ok(())
}

/// Gives `space` the map `saved`, if it is right for it and has room. A map that is not begins anew with the next flush.
fn take_up(space: &mut Keyspace, saved: SavedMap, id: MapId, cache: &Arc<TableCache>) -> bool {
    let fits = saved.keys.widths() == WIDTHS
        && saved.prefixes.is_some() == space.options.prefixed
        && saved.prefixes.as_ref().is_none_or(|prefixes| prefixes.level_max() == NUMBER_MAX);
    let there: HashMap<FileNo, _> =
        space.version.tables().map(|(place, table)| (table.file_no(), (place, table))).collect();
    let is_there = |known: &NumberedTable| {
        there.get(&known.file).is_some_and(|(_, table)| {
            let meta = table.meta();
            meta.salt == known.salt
                && meta.smallest_key == known.smallest_key
                && known.number.get() <= NUMBER_MAX
        })
    };
    if !fits || saved.tables.is_empty() || !saved.tables.iter().all(is_there) {
        return false;
    }
    let SavedMap { tables, keys, prefixes, .. } = saved;
    let bytes = keys.memory_bytes() + prefixes.as_ref().map_or(0, ParentFilter::memory_bytes);
    let Some(room) = cache.reserve(bytes) else { return false };
    let mut version = (*space.version).clone();
    for known in &tables {
        let (place, _) = there[&known.file];
        version.set_number(place, known.file, Some(MapNumber { map: id, number: known.number }));
    }
    version.set_map(Some(Arc::new(SublevelMap { id, keys, prefixes, _room: room })));
    space.version = Arc::new(version);
    true
}
