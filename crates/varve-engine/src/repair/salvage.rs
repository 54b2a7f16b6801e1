//! Takes out of a damaged table what can be read.
//!
//! 1. If footer and index can be read, they say where the blocks are.
//! 2. If not, the blocks are looked for: they follow each other from the file's beginning on, each ending where a
//!    checksum over its content, salt and offset says so. After damage the search goes on at every byte of
//!    the next [`SEARCH_BYTES`], then at every page.
//! 3. What is read goes to a new table; the keys around each gap are reported.

use std::sync::Arc;

use bytes::Bytes;
use varve_format::EntryKind;
use varve_format::block::{Block, BlockCursor};
use varve_format::index::Index;
use varve_format::section::{find_section, open_section};
use varve_format::table::{FOOTER_BYTES, Footer, PAGE_BYTES};

use super::{LostRows, Repair};
use crate::StoreResult;
use crate::manifest::ManifestKeyspace;
use crate::memtable::Found;
use crate::read::{SALVAGED_BYTES_MAX, open, read_part};
use crate::table::TableWriter;
use crate::version::Table;

/// Bytes after damage at each of which a block may begin.
const SEARCH_BYTES: usize = 64 << 10;
/// The longest block that is looked for; one of a single large row may be longer where a block ends before it.
const SEARCHED_BLOCK_BYTES: usize = 64 << 10;

/// A block, or what is wrong where one should be.
type Piece = Result<Block, String>;

impl Repair<'_> {
    /// A new table with what can be read of `table`; `None` if that is nothing.
    pub(super) fn salvage(
        &mut self,
        space: &ManifestKeyspace,
        table: &Table,
    ) -> StoreResult<Option<Arc<Table>>> {
        let pieces = self.pieces(table)?;
        let no = self.new_file();
        let options = self.table_options(table.keyspace(), space.options);
        let mut writer = TableWriter::create(self.env, self.dir, no, options)?;
        let (mut last, mut gap, mut saved) = (None::<Vec<u8>>, None::<String>, 0);
        let mut lost = Vec::new();
        let name = |after: &Option<Vec<u8>>, before: Option<Vec<u8>>, why: String| LostRows {
            keyspace: space.name.clone(),
            table: table.path().to_path_buf(),
            after: after.clone(),
            before,
            why,
        };
        for piece in pieces {
            let block = match piece.and_then(|block| match block.check() {
                Ok(_) => Ok(block),
                Err(error) => Err(error.to_string()),
            }) {
                Ok(block) => block,
                Err(why) => {
                    gap.get_or_insert(why);
                    continue;
                }
            };
            let mut cursor = BlockCursor::new(block);
            let mut step = cursor.seek_first();
            while step.is_ok() && cursor.valid() {
                let (key, seq) = (cursor.key(), table.seq_of(cursor.seq()));
                if let Some(why) = gap.take() {
                    lost.push(name(&last, Some(key.to_vec()), why));
                }
                let found = match cursor.kind() {
                    EntryKind::Put => Found::Value(cursor.value()),
                    EntryKind::Delete => Found::Tombstone,
                };
                // A key outside of the table's range, or out of order, is none of this table.
                if table.covers(key) && writer.add(key, seq, &found).is_ok() {
                    saved += 1;
                    last = Some(key.to_vec());
                }
                step = cursor.next();
            }
        }
        if let Some(why) = gap {
            lost.push(name(&last, None, why));
        }
        self.report.lost.extend(lost);
        self.report.versions_saved += saved;
        if saved == 0 {
            return Ok(None);
        }
        let meta = writer.finish()?;
        let table = |meta| Table::new(Arc::clone(self.env), self.dir, table.keyspace(), meta);
        Ok(meta.map(table).map(Arc::new))
    }
}

impl Repair<'_> {
    /// What stands in `table`.
    fn pieces(&self, table: &Table) -> StoreResult<Vec<Piece>> {
        let (file, len) = open(&**self.env, table.path())?;
        // What stands after the bytes that the manifest counts is none of the table.
        let len = len.min(table.meta().size_bytes);
        if len > SALVAGED_BYTES_MAX {
            let why = format!("a damaged table of {len} bytes, above {SALVAGED_BYTES_MAX}");
            return Ok(vec![Err(why)]);
        }
        let bytes = read_part(&*file, table.path(), 0, len)?;
        Ok(indexed(&bytes, table).unwrap_or_else(|| searched(&bytes, table)))
    }
}

/// The blocks where the index says they are; `None` if it cannot be read.
fn indexed(bytes: &Bytes, table: &Table) -> Option<Vec<Piece>> {
    let salt = table.meta().salt;
    let offset = bytes.len().checked_sub(FOOTER_BYTES)?;
    let footer = Footer::decode(&bytes[offset..], salt, offset as u64).ok()?;
    let section = |handle: varve_format::section::Handle| {
        let end = usize::try_from(handle.end()).ok().filter(|end| *end <= bytes.len());
        let start = usize::try_from(handle.offset).ok();
        match (start, end) {
            (Some(start), Some(end)) if start <= end => {
                open_section(&bytes.slice(start..end), salt, handle.offset)
                    .map_err(|error| error.to_string())
            }
            _ => Err("a section beyond the end of the file".to_owned()),
        }
    };
    let content = section(footer.index).ok()?;
    let index = Index::decode(footer.index_policy, &content, footer.data_end()).ok()?;
    let handles = (0..index.block_count()).filter_map(|block_no| index.handle(block_no));
    let pieces = handles.map(|handle| {
        let content = section(handle).map_err(|error| format!("offset {}: {error}", handle.offset));
        content.and_then(|content| Block::parse(content).map_err(|error| error.to_string()))
    });
    Some(pieces.collect())
}

/// The blocks that are found by their checksums.
fn searched(bytes: &Bytes, table: &Table) -> Vec<Piece> {
    let salt = table.meta().salt;
    let block_at = |offset: usize, max: usize| {
        let (handle, content) = find_section(bytes, salt, offset as u64, max)?;
        let block = Block::parse(content).ok().filter(|block| block.check().is_ok())?;
        Some((handle.end() as usize, block))
    };
    let page = PAGE_BYTES as usize;
    let (mut pieces, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let next_page = at.next_multiple_of(page);
        let found =
            block_at(at, usize::MAX).or_else(|| block_at(next_page, usize::MAX)).or_else(|| {
                pieces.push(Err(format!("offset {at}: no block, and the index is lost")));
                let near = at + 1..bytes.len().min(at + SEARCH_BYTES);
                let far = (at + SEARCH_BYTES).next_multiple_of(page);
                let far = (far..bytes.len()).step_by(page);
                near.chain(far).find_map(|offset| block_at(offset, SEARCHED_BLOCK_BYTES))
            });
        let Some((end, block)) = found else { break };
        pieces.push(Ok(block));
        at = end;
    }
    pieces
}
