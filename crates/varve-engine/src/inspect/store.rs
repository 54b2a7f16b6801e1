//! Describes a store as a whole: the levels of each key space, their sub-levels, and what each table is made of.
//!
//! Of tables only the footers are read, so it costs the number of tables and not that of rows. It works beside a process that has the
//! store open: a table that goes meanwhile is told as broken.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use varve_env::Env;
use varve_format::edit::TableMeta;

use crate::files::StoreFile;
use crate::manifest::{ManifestState, load};
use crate::place::{LEVELS, Place};
use crate::read::open_table;
use crate::{StoreError, StoreResult};

/// A store.
#[derive(Debug, Serialize)]
pub struct StoreReport {
    /// The manifest in force.
    pub manifest: u64,
    /// The key spaces, and those of branches.
    pub keyspaces: Vec<KeyspaceReport>,
}

/// A key space.
#[derive(Debug, Serialize)]
pub struct KeyspaceReport {
    /// Its name; of a branch the name below, and the branch.
    pub name: String,
    /// Whether its keys are 8 + 8 bytes.
    pub prefixed: bool,
    /// The levels that hold anything.
    pub levels: Vec<LevelReport>,
}

/// A level.
#[derive(Debug, Serialize)]
pub struct LevelReport {
    /// Its number.
    pub level: usize,
    /// Its sorted runs, newest first.
    pub sublevels: Vec<SublevelReport>,
}

/// A sorted run of tables.
#[derive(Debug, Serialize)]
pub struct SublevelReport {
    /// Its number: the newer the larger.
    pub number: u64,
    /// Its tables, by key.
    pub tables: Vec<TableSummary>,
}

/// A table.
#[derive(Debug, Serialize)]
pub struct TableSummary {
    /// Its file number.
    pub number: u64,
    /// Bytes of the file.
    pub length_bytes: u64,
    /// Versions, tombstones included.
    pub versions: u64,
    /// Versions that delete their key.
    pub tombstones: u64,
    /// Other files whose blocks it points at.
    pub zones: usize,
    /// Bytes of blocks there.
    pub zone_bytes: u64,
    /// Segments that its rows point into.
    pub segments: usize,
    /// Bytes of records there.
    pub segment_bytes: u64,
    /// What it is made of, unless that cannot be read.
    #[serde(flatten)]
    pub parts: Option<TableParts>,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
}

/// What a table is made of.
#[derive(Debug, Serialize)]
pub struct TableParts {
    /// How its blocks are found.
    pub index: &'static str,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Its filters.
    pub filter: &'static str,
    /// Bytes of the filter over keys.
    pub filter_bytes: u64,
    /// Bytes of the filter over prefixes.
    pub prefix_filter_bytes: u64,
}

/// Describes the store whose engine is in the directory `dir`.
pub fn inspect_store(env: &dyn Env, dir: &Path) -> StoreResult<StoreReport> {
    let state = load(env, dir)?.ok_or_else(|| StoreError::NotAStore { path: dir.to_path_buf() })?;
    let mut keyspaces = Vec::new();
    for space in &state.keyspaces {
        let (name, levels) = (space.name.clone(), levels(env, dir, &space.tables));
        keyspaces.push(KeyspaceReport { name, prefixed: space.options.prefixed, levels });
    }
    for (branch, of) in &state.branches {
        for own in &of.spaces {
            let base = base_of(&state, own.base.get());
            let (name, prefixed) = (format!("{} of branch {branch}", base.0), base.1);
            let tables = state.branch_tables.get(&own.id).map_or(&[][..], Vec::as_slice);
            let levels = levels(env, dir, tables);
            keyspaces.push(KeyspaceReport { name, prefixed, levels });
        }
    }
    Ok(StoreReport { manifest: state.no.get(), keyspaces })
}

/// The name of a key space and whether it is prefixed.
fn base_of(state: &ManifestState, number: u32) -> (&str, bool) {
    let base = state.keyspaces.get(number as usize);
    base.map_or(("?", false), |base| (&base.name, base.options.prefixed))
}

fn levels(env: &dyn Env, dir: &Path, tables: &[(Place, TableMeta)]) -> Vec<LevelReport> {
    let level = |level: usize| {
        let own = || tables.iter().filter(move |(place, _)| place.level == level);
        let mut numbers: Vec<_> = own().map(|(place, _)| place.sublevel).collect();
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        numbers.dedup();
        let sublevels = numbers.into_iter().map(|number| {
            let mut run: Vec<_> = own().filter(|(place, _)| place.sublevel == number).collect();
            run.sort_by(|a, b| a.1.smallest_key.cmp(&b.1.smallest_key));
            let tables = run.into_iter().map(|(_, meta)| summary(env, dir, meta)).collect();
            SublevelReport { number: number.get(), tables }
        });
        LevelReport { level, sublevels: sublevels.collect() }
    };
    (0..LEVELS).map(level).filter(|level| !level.sublevels.is_empty()).collect()
}

fn summary(env: &dyn Env, dir: &Path, meta: &TableMeta) -> TableSummary {
    let path = StoreFile::Table(meta.file).path(dir);
    let (parts, broken) = match open_table(env, &path, Some(meta.salt)) {
        Ok((_, _, footer)) => {
            let bytes = |name| {
                let own = footer.sections().find(|(known, _)| *known == name);
                own.map_or(0, |(_, handle)| u64::from(handle.len))
            };
            let parts = TableParts {
                index: footer.index_policy.name(),
                index_bytes: bytes("index"),
                filter: footer.filter_kind.name(),
                filter_bytes: bytes("filter"),
                prefix_filter_bytes: bytes("prefix filter"),
            };
            (Some(parts), None)
        }
        Err(error) => (None, Some(error.to_string())),
    };
    TableSummary {
        number: meta.file.get(),
        length_bytes: meta.size_bytes,
        versions: meta.entries,
        tombstones: meta.tombstones,
        zones: meta.zones.len(),
        zone_bytes: meta.zones.iter().map(|zone| zone.live_bytes).sum(),
        segments: meta.segments.len(),
        segment_bytes: meta.segments.iter().map(|share| share.bytes).sum(),
        parts,
        broken,
    }
}

impl StoreReport {
    /// All tables.
    pub fn tables(&self) -> impl Iterator<Item = &TableSummary> {
        let levels = self.keyspaces.iter().flat_map(|space| &space.levels);
        levels.flat_map(|level| &level.sublevels).flat_map(|sublevel| &sublevel.tables)
    }
}

impl fmt::Display for StoreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "store as manifest {} has it", self.manifest)?;
        for space in &self.keyspaces {
            let prefixed = if space.prefixed { ", prefixed" } else { "" };
            writeln!(f, "key space {}{prefixed}", space.name)?;
            for level in &space.levels {
                for sublevel in &level.sublevels {
                    let bytes: u64 = sublevel.tables.iter().map(|table| table.length_bytes).sum();
                    let count = sublevel.tables.len();
                    writeln!(
                        f,
                        "  level {}, sub-level {}: {count} tables, {bytes} bytes",
                        level.level, sublevel.number
                    )?;
                    sublevel.tables.iter().try_for_each(|table| writeln!(f, "    {table}"))?;
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for TableSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "table {}: {} bytes, {} versions, {} tombstones",
            self.number, self.length_bytes, self.versions, self.tombstones
        )?;
        if let Some(parts) = &self.parts {
            write!(f, "; index {} {} bytes", parts.index, parts.index_bytes)?;
            let filters = (parts.filter_bytes, parts.prefix_filter_bytes);
            write!(f, "; filters {} {} and {} bytes", parts.filter, filters.0, filters.1)?;
        }
        if self.zones > 0 {
            write!(f, "; {} bytes in {} zones", self.zone_bytes, self.zones)?;
        }
        if self.segments > 0 {
            write!(f, "; points at {} bytes of {} segments", self.segment_bytes, self.segments)?;
        }
        match &self.broken {
            Some(broken) => write!(f, "; {broken}"),
            None => Ok(()),
        }
    }
}
