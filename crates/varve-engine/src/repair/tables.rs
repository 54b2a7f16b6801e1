//! Reads the tables that the manifest lists, and replaces those that are damaged by what can be read of them.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use varve_format::edit::TableMeta;
use varve_format::section::Compression;
use varve_format::table::TableOptions;
use varve_types::KeyspaceId;

use super::{LostRows, Repair, Tables};
use crate::manifest::{ManifestKeyspace, ManifestState};
use crate::table::file::Table;
use crate::verify::{VerifyReport, verify_table};
use crate::version::Version;
use crate::{KeyspaceOptions, StoreError, StoreResult};

/// The key space `id` of `state`, for one of a branch that which it stands over; `None` if there is none.
pub(super) fn space_of(state: &ManifestState, id: KeyspaceId) -> Option<&ManifestKeyspace> {
    let base = match id.is_of_branch() {
        true => {
            let mut own = state.branches.values().flat_map(|branch| &branch.spaces);
            own.find(|own| own.id == id)?.base
        }
        false => id,
    };
    state.keyspaces.get(base.get() as usize)
}

/// The tables of each key space of `state`, those of branches too.
pub(super) fn listed(
    state: &ManifestState,
) -> impl Iterator<Item = (KeyspaceId, &[(crate::place::Place, TableMeta)])> {
    let of_store = (0..).map(KeyspaceId::new).zip(&state.keyspaces);
    let of_store = of_store.map(|(id, space)| (id, &space.tables[..]));
    of_store.chain(state.branch_tables.iter().map(|(id, tables)| (*id, &tables[..])))
}

impl Repair<'_> {
    /// Why the tables of `state` make no store.
    pub(super) fn contradiction(&self, state: &ManifestState) -> Option<String> {
        listed(state).find_map(|(id, tables)| {
            let table = |meta: &TableMeta| {
                Arc::new(Table::new(Arc::clone(self.env), self.dir, id, meta.clone()))
            };
            let placed: super::Placed =
                tables.iter().map(|(place, meta)| (*place, table(meta))).collect();
            Version::default().changed(&[], &placed).check().err()
        })
    }

    /// The tables of each key space, those that are damaged replaced by what can be read of them.
    pub(super) fn check_tables(&mut self, state: &ManifestState) -> StoreResult<Tables> {
        let mut all = Tables::new();
        for (id, tables) in listed(state) {
            let Some(space) = space_of(state, id) else { continue };
            let placed = all.entry(id).or_default();
            for (place, meta) in tables {
                let table = self.table(id, meta.clone());
                if let Some(table) = self.sound_or_salvaged(space, table)? {
                    placed.push((*place, table));
                }
            }
        }
        Ok(all)
    }

    /// `table`, or a new one with what can be read of it; `None` if that is nothing.
    pub(super) fn sound_or_salvaged(
        &mut self,
        space: &ManifestKeyspace,
        table: Arc<Table>,
    ) -> StoreResult<Option<Arc<Table>>> {
        let mut seen = VerifyReport::default();
        let prefixed = space.options.prefixed;
        match verify_table(&self.cache, &table, prefixed, None, &mut seen) {
            Ok(()) => return Ok(Some(table)),
            // The manifest is of this version, so a table that says it is newer does not tell the truth.
            Err(StoreError::Damaged { path, .. } | StoreError::NewerFormat { path, .. }) => {
                self.put_aside(path);
            }
            // A file that it points at is missing: what does not is left.
            Err(StoreError::Io { source, path, .. })
                if source.kind() == ErrorKind::NotFound && path != table.path() => {}
            Err(StoreError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                let why = "the table is missing; it held the rows from the first key to the last";
                self.all_lost(&space.name, &table, why.to_owned());
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        self.put_aside(table.path().to_path_buf());
        self.salvage(space, &table)
    }

    /// Notes that nothing can be read of `table`.
    pub(super) fn all_lost(&mut self, keyspace: &str, table: &Table, why: String) {
        let meta = table.meta();
        self.report.lost.push(LostRows {
            keyspace: keyspace.to_owned(),
            table: table.path().to_path_buf(),
            after: Some(meta.smallest_key.to_vec()),
            before: Some(meta.largest_key.to_vec()),
            why,
        });
    }

    /// Notes that a file is damaged.
    pub(super) fn put_aside(&mut self, path: PathBuf) {
        self.damaged.insert(path);
    }

    /// The table that `meta` describes, with the segments that it points into as far as they are known.
    pub(super) fn table(&self, id: KeyspaceId, meta: TableMeta) -> Arc<Table> {
        let segments = self.segments.of(&meta.segments);
        let table = Table::new(Arc::clone(self.env), self.dir, id, meta);
        Arc::new(table.with_segments(segments))
    }

    /// How new tables of a key space are built.
    pub(super) fn table_options(&self, id: KeyspaceId, options: KeyspaceOptions) -> TableOptions {
        let db = &self.options.db;
        TableOptions {
            keyspace: id,
            prefixed: options.prefixed,
            block_bytes: db.block_bytes,
            compression: if options.compressed { Compression::Lz4 } else { Compression::None },
            index: db.index,
            filter: db.filter,
            cut_after_prefix_bytes: 0,
        }
    }
}
