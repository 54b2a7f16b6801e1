//! What a table file says of itself, for a reader whom no manifest tells.

use std::path::Path;

use varve_env::Env;
use varve_format::edit::TableMeta;
use varve_format::section::open_section;
use varve_format::table::{Properties, Zones};
use varve_types::{FileNo, KeyspaceId};

use crate::StoreResult;
use crate::files::format_error;
use crate::read::{open_table, read_part};

/// The key space and the description of the table at `path`, which has the number `no`. Its rows are not read.
pub(crate) fn describe(
    env: &dyn Env,
    path: &Path,
    no: FileNo,
) -> StoreResult<(KeyspaceId, TableMeta)> {
    let (file, size_bytes, footer) = open_table(env, path, None)?;
    let (salt, handle) = (footer.salt, footer.properties);
    let section = read_part(&*file, path, handle.offset, handle.len.into())?;
    let properties = open_section(&section, salt, handle.offset)
        .and_then(|content| Properties::decode(&content))
        .map_err(|error| format_error(path, error.shifted(handle.offset)))?;
    let listed = footer.zones.filter(|list| list.check().is_ok()).map(|list| {
        let section = read_part(&*file, path, list.offset, list.len.into())?;
        let zones = open_section(&section, salt, list.offset)
            .and_then(|content| Zones::decode(&content, footer.data_end()));
        // A table whose list is damaged is read like one that lost its index.
        Ok(zones.map_or_else(|_| Vec::new(), |zones| zones.metas()))
    });
    let zones = listed.transpose()?.unwrap_or_default();
    let meta = TableMeta {
        file: no,
        salt,
        size_bytes,
        entries: properties.entries,
        tombstones: properties.tombstones,
        smallest_seq: properties.smallest_seq,
        largest_seq: properties.largest_seq,
        seq_override: None,
        smallest_key: properties.smallest_key,
        largest_key: properties.largest_key,
        zones_at: footer.zones,
        zones,
        segments: properties.segments,
    };
    Ok((properties.keyspace, meta))
}
