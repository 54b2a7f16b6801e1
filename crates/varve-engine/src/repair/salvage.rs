//! Takes out of a damaged table what can be read.
//!
//! 1. If footer and index can be read, they say where the blocks are.
//! 2. If not, the blocks are looked for: they follow each other from the file's beginning on, each ending where a
//!    checksum over its content, salt and offset says so. After damage the search goes on at every byte of
//!    the next [`SEARCH_BYTES`], then at every page.
//! 3. Without its index a stitched table's blocks are looked for in its runs; the manifest says where those are
//!    listed. If the list is lost too, the blocks of other files are: to take all that these hold would bring
//!    back rows that were overwritten since.
//! 4. What is read goes to a new table, values that stood apart as well, beside their keys. A row whose value cannot
//!    be read is lost. The keys around each gap are reported.

use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use varve_format::block::{Block, BlockCursor};
use varve_format::index::Index;
use varve_format::section::{Handle, find_section, open_section};
use varve_format::table::{FOOTER_BYTES, Footer, PAGE_BYTES, Zones};
use varve_types::{FileSalt, SeqNo};

use super::{LostRows, Repair};
use crate::manifest::ManifestKeyspace;
use crate::memtable::Found;
use crate::read::{SALVAGED_BYTES_MAX, open, read_part};
use crate::table::TableWriter;
use crate::version::{Table, TableFile};
use crate::{StoreError, StoreResult};

/// Bytes after damage at each of which a block may begin.
const SEARCH_BYTES: usize = 64 << 10;
/// The longest block that is looked for; one of a single large row may be longer where a block ends before it.
const SEARCHED_BLOCK_BYTES: usize = 64 << 10;

/// Why rows are lost with the list of a table's zones.
const NO_ZONES: &str =
    "the list of the table's runs in other files is missing; they held rows anywhere in its range";

/// A block, or what is wrong where one should be.
type Piece = Result<Block, String>;
/// A version, or what is wrong where some should be.
type Row = Result<(Vec<u8>, SeqNo, Found), String>;

impl Repair<'_> {
    /// A new table with what can be read of `table`; `None` if that is nothing.
    pub(super) fn salvage(
        &mut self,
        space: &ManifestKeyspace,
        table: &Table,
    ) -> StoreResult<Option<Arc<Table>>> {
        let rows = self.rows(table)?;
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
        for row in rows {
            let (key, seq, found) = match row {
                Ok((key, seq, found)) => (key, table.seq_of(seq), found),
                Err(why) => {
                    gap.get_or_insert(why);
                    continue;
                }
            };
            if let Some(why) = gap.take() {
                lost.push(name(&last, Some(key.clone()), why));
            }
            let found = match self.at_hand(found)? {
                Ok(found) => found,
                Err(why) => {
                    gap = Some(why);
                    continue;
                }
            };
            // A key outside of the table's range, or out of order, is none of this table.
            if table.covers(&key) && writer.add(&key, seq, &found).is_ok() {
                saved += 1;
                last = Some(key);
            }
        }
        let no_zones = gap.as_deref() == Some(NO_ZONES);
        if let Some(why) = gap.take_if(|_| !no_zones) {
            lost.push(name(&last, None, why));
        }
        // Where no index says what is a block, what else stands in the file looks like damage.
        if saved < table.meta().entries {
            self.report.lost.extend(lost);
        }
        self.report.versions_saved += saved;
        if no_zones {
            self.all_lost(&space.name, table, NO_ZONES.to_owned());
        } else if saved == 0 {
            self.all_lost(&space.name, table, "nothing of the table can be read".to_owned());
        }
        if saved == 0 {
            return Ok(None);
        }
        Ok(writer.finish()?.map(|meta| self.table(table.keyspace(), meta)))
    }
}

impl Repair<'_> {
    /// `found` with its value at hand wherever it stands; or why that cannot be read.
    fn at_hand(&mut self, found: Found) -> StoreResult<Result<Found, String>> {
        let Found::Separated(separated) = found else { return Ok(Ok(found)) };
        let path = separated.segment.path();
        match self.cache.load_value(&separated) {
            Ok(value) => Ok(Ok(Found::Value(value))),
            Err(error @ StoreError::Damaged { .. }) => {
                self.put_aside(path.to_path_buf());
                Ok(Err(error.to_string()))
            }
            Err(StoreError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                Ok(Err(format!("the value was in {}, which is missing", path.display())))
            }
            Err(error) => Err(error),
        }
    }

    /// What stands in `table`, in order unless its index is lost.
    fn rows(&self, table: &Table) -> StoreResult<Vec<Row>> {
        let bytes = match self.content(table.file(), table.meta().size_bytes)? {
            Ok(bytes) => bytes,
            Err(why) => return Ok(vec![Err(why)]),
        };
        if let Some(pieces) = self.indexed(&bytes, table) {
            return Ok(pieces.into_iter().flat_map(|piece| rows_of(table, piece)).collect());
        }
        let salt = table.meta().salt;
        let own = |range| {
            searched(&bytes, salt, range).into_iter().flat_map(|piece| rows_of(table, piece))
        };
        let Some(list) = table.meta().zones_at else { return Ok(own(0..bytes.len()).collect()) };
        let section = section_in(&bytes, salt, list);
        let Some(zones) = section.and_then(|list| Zones::decode(&list, bytes.len() as u64).ok())
        else {
            let mut rows: Vec<Row> = own(0..bytes.len()).collect();
            rows.push(Err(NO_ZONES.to_owned()));
            return Ok(rows);
        };
        let mut rows: Vec<Row> = Vec::new();
        for run in zones.runs() {
            let file = table.files().nth(run.zone as usize).filter(|_| run.zone > 0);
            let Some(file) = file else {
                rows.extend(own(run.offset as usize..(run.offset + run.bytes) as usize));
                continue;
            };
            match self.content(file, run.offset + run.bytes)? {
                Ok(bytes) => {
                    let range = (run.offset as usize).min(bytes.len())..bytes.len();
                    rows.extend(
                        searched(&bytes, file.salt(), range)
                            .into_iter()
                            .flat_map(|piece| rows_of(table, piece)),
                    );
                }
                Err(why) => rows.push(Err(why)),
            }
        }
        Ok(rows)
    }

    /// The bytes of a file of a table, or why they are not to be had.
    fn content(&self, file: &TableFile, size_bytes: u64) -> StoreResult<Result<Bytes, String>> {
        let (opened, len) = match open(&**self.env, file.path()) {
            Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Err(format!("{} is missing", file.path().display())));
            }
            opened => opened?,
        };
        // What stands after the bytes that the manifest counts is none of the table.
        let len = len.min(size_bytes);
        if len > SALVAGED_BYTES_MAX {
            return Ok(Err(format!("a damaged table of {len} bytes, above {SALVAGED_BYTES_MAX}")));
        }
        read_part(&*opened, file.path(), 0, len).map(Ok)
    }

    /// The block at `handle` of `file`.
    fn block_at(&self, file: &TableFile, handle: Handle) -> Piece {
        let at =
            |why: String| format!("{}, offset {}: {why}", file.path().display(), handle.offset);
        handle.check().map_err(|error| at(error.to_string()))?;
        let (opened, _) = open(&**self.env, file.path()).map_err(|error| at(error.to_string()))?;
        let bytes = read_part(&*opened, file.path(), handle.offset, handle.len.into())
            .map_err(|error| at(error.to_string()))?;
        open_section(&bytes, file.salt(), handle.offset)
            .and_then(Block::parse)
            .map_err(|error| at(error.to_string()))
    }

    /// The blocks where the index says they are; `None` if it cannot be read.
    fn indexed(&self, bytes: &Bytes, table: &Table) -> Option<Vec<Piece>> {
        let salt = table.meta().salt;
        let offset = bytes.len().checked_sub(FOOTER_BYTES)?;
        let footer = Footer::decode(&bytes[offset..], salt, offset as u64).ok()?;
        let section = |handle| section_in(bytes, salt, handle);
        let zones = match footer.zones {
            Some(handle) => Some(Zones::decode(&section(handle)?, footer.data_end()).ok()?),
            None => None,
        };
        let listed = zones.as_ref().map(Zones::metas).unwrap_or_default();
        let data_end = zones.as_ref().map_or(footer.data_end(), Zones::data_bytes);
        let index = Index::decode(footer.index_policy, &section(footer.index)?, data_end).ok()?;
        if listed != table.meta().zones {
            return None;
        }
        let handles = (0..index.block_count()).filter_map(|block_no| index.handle(block_no));
        let pieces = handles.map(|handle| match table.place(zones.as_ref(), handle) {
            Some((file, handle)) => self.block_at(file, handle),
            None => Err("a block in none of the table's runs".to_owned()),
        });
        Some(pieces.collect())
    }
}

/// The content of the section at `handle` of a file whose bytes are `bytes`; `None` if it cannot be read.
fn section_in(bytes: &Bytes, salt: FileSalt, handle: Handle) -> Option<Bytes> {
    let end = usize::try_from(handle.end()).ok().filter(|end| *end <= bytes.len())?;
    let start = usize::try_from(handle.offset).ok().filter(|start| *start <= end)?;
    open_section(&bytes.slice(start..end), salt, handle.offset).ok()
}

/// The versions of a block, or what is wrong with it.
fn rows_of(table: &Table, piece: Piece) -> Vec<Row> {
    let whole = piece.and_then(|block| match block.check() {
        Ok(_) => Ok(block),
        Err(error) => Err(error.to_string()),
    });
    let block = match whole {
        Ok(block) => block,
        Err(why) => return vec![Err(why)],
    };
    let mut cursor = BlockCursor::new(block);
    let mut rows = Vec::new();
    let mut step = cursor.seek_first();
    while step.is_ok() && cursor.valid() {
        let found = table.found(cursor.kind(), cursor.value());
        let row = found.map(|found| (cursor.key().to_vec(), cursor.seq(), found));
        rows.push(row.map_err(|error| error.to_string()));
        step = cursor.next();
    }
    rows
}

/// The blocks in `range` that are found by their checksums.
fn searched(bytes: &Bytes, salt: FileSalt, range: Range<usize>) -> Vec<Piece> {
    let bytes = bytes.slice(..range.end);
    let block_at = |offset: usize, max: usize| {
        let (handle, content) = find_section(&bytes, salt, offset as u64, max)?;
        let block = Block::parse(content).ok().filter(|block| block.check().is_ok())?;
        Some((handle.end() as usize, block))
    };
    let page = PAGE_BYTES as usize;
    let (mut pieces, mut at) = (Vec::new(), range.start);
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
