//! Takes out of a damaged table what can be read.
//!
//! 1. If footer and index can be read, they say where the blocks are.
//! 2. If not, the blocks are looked for: they follow each other from the file's beginning on, each ending where a
//!    checksum over its content, salt and offset says so. After damage each byte may begin the next. The time that it
//!    takes is in proportion to the bytes ([`varve_format::section_search`]).
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
use varve_format::section::{Handle, open_section};
use varve_format::section_search::SectionSearch;
use varve_format::table::{FOOTER_BYTES, Footer, PAGE_BYTES, Zones};
use varve_types::{FileSalt, SeqNo};

use super::{LostRows, Repair};
use crate::manifest::ManifestKeyspace;
use crate::memtable::Found;
use crate::read::{SALVAGED_BYTES_MAX, open, read_part};
use crate::table::file::{Table, TableFile};
use crate::table::writer::TableWriter;
use crate::{StoreError, StoreResult};

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
                // It lost more than what is beside it.
                Err(why) if why == NO_ZONES => {
                    gap = Some(why);
                    continue;
                }
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
        let bytes = match self.content(table.file(), 0..table.meta().size_bytes)? {
            Ok(bytes) => bytes,
            Err(why) => return Ok(vec![Err(why)]),
        };
        if let Some(pieces) = self.indexed(&bytes, table) {
            return Ok(pieces.into_iter().flat_map(|piece| rows_of(table, piece)).collect());
        }
        let salt = table.meta().salt;
        let own = |range: Range<u64>| {
            let len = bytes.len() as u64;
            let (start, end) = (range.start.min(len), range.end.min(len));
            let mut pieces = searched(bytes.slice(start as usize..end as usize), salt, start).0;
            if end < range.end {
                pieces.push(Err(format!("the file ends at {len}")));
            }
            pieces.into_iter().flat_map(|piece| rows_of(table, piece))
        };
        let whole = 0..table.meta().size_bytes;
        let Some(list) = table.meta().zones_at else { return Ok(own(whole).collect()) };
        let section = section_in(&bytes, salt, list);
        let Some(zones) = section.and_then(|list| Zones::decode(&list, bytes.len() as u64).ok())
        else {
            let mut rows: Vec<Row> = own(whole).collect();
            rows.push(Err(NO_ZONES.to_owned()));
            return Ok(rows);
        };
        let mut rows: Vec<Row> = Vec::new();
        for run in zones.runs() {
            let range = run.offset..run.offset + run.bytes;
            let file = table.files().nth(run.zone as usize).filter(|_| run.zone > 0);
            let Some(file) = file else {
                rows.extend(own(range));
                continue;
            };
            match self.content(file, range.clone())? {
                Ok(bytes) => {
                    let mut pieces = searched(bytes.clone(), file.salt(), range.start).0;
                    if (bytes.len() as u64) < run.bytes {
                        pieces.push(Err(format!("{} is cut", file.path().display())));
                    }
                    rows.extend(pieces.into_iter().flat_map(|piece| rows_of(table, piece)));
                }
                Err(why) => rows.push(Err(why)),
            }
        }
        Ok(rows)
    }

    /// The bytes of a file of a table in `range`, as far as it has them, or why they are not to be had.
    fn content(&self, file: &TableFile, range: Range<u64>) -> StoreResult<Result<Bytes, String>> {
        let (opened, len) = match open(&**self.env, file.path()) {
            Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Err(format!("{} is missing", file.path().display())));
            }
            opened => opened?,
        };
        // What stands after the bytes that the manifest counts is none of the table.
        let start = range.start.min(len);
        let len = range.end.min(len) - start;
        if len > SALVAGED_BYTES_MAX {
            return Ok(Err(format!("a damaged table of {len} bytes, above {SALVAGED_BYTES_MAX}")));
        }
        read_part(&*opened, file.path(), start, len).map(Ok)
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

/// The blocks in `bytes`, which stand at `base` of the file with `salt`, that are found by their checksums; and the steps of
/// work that it took.
fn searched(bytes: Bytes, salt: FileSalt, base: u64) -> (Vec<Piece>, u64) {
    let search = SectionSearch::new(bytes.clone(), salt, base);
    let block_at = |offset: u64| {
        search.find(offset, |handle, content| {
            let block = Block::parse(content).ok().filter(|block| block.check().is_ok())?;
            Some((handle.end(), block))
        })
    };
    let end = base + bytes.len() as u64;
    // Zeros fill the page before a block that would reach beyond it.
    let behind_zeros = |at: u64| {
        let page = at.next_multiple_of(PAGE_BYTES);
        let gap = bytes.get((at - base) as usize..(page - base) as usize)?;
        gap.iter().all(|byte| *byte == 0).then_some(page)
    };
    let (mut pieces, mut at) = (Vec::new(), base);
    while at < end {
        let next = block_at(at).or_else(|| block_at(behind_zeros(at)?));
        let found = next.or_else(|| {
            pieces.push(Err(format!("offset {at}: no block, and the index is lost")));
            (at + 1..end).find_map(&block_at)
        });
        let Some((block_end, block)) = found else { break };
        pieces.push(Ok(block));
        at = block_end;
    }
    (pieces, search.work())
}

#[cfg(test)]
mod tests {
    use varve_format::EntryKind;
    use varve_format::filter::FilterPolicy;
    use varve_format::index::IndexPolicy;
    use varve_format::section::Compression;
    use varve_format::table::{TableBuilder, TableOptions};
    use varve_types::{FileNo, KeyspaceId};

    use super::*;

    const SALT: FileSalt = FileSalt::new(77);

    /// A table of so many rows of 1,000 bytes, without its index and footer.
    fn blocks(rows: u64, compression: Compression) -> Bytes {
        let options = TableOptions {
            keyspace: KeyspaceId::new(0),
            prefixed: false,
            block_bytes: 4096,
            compression,
            index: IndexPolicy::Plain,
            filter: FilterPolicy::None,
            cut_after_prefix_bytes: 0,
        };
        let mut table = TableBuilder::new(options, FileNo::new(1), SALT);
        for row in 0..rows {
            let value: Vec<u8> = (0..1000).map(|at| (row * 31 + at * at % 251) as u8).collect();
            table.add(&row.to_be_bytes(), SeqNo::new(1), EntryKind::Put, &value).unwrap();
        }
        Bytes::copy_from_slice(table.output())
    }

    /// Each block that does not end a page had the search for it sum up the rest of the file: 24 MB took more than minutes.
    #[test]
    fn blocks_without_an_index_are_found_in_time_in_proportion_to_the_bytes() {
        for compression in [Compression::None, Compression::Lz4] {
            for damaged in [false, true] {
                let work = |rows: u64| {
                    let bytes = blocks(rows, compression);
                    let mut bytes = bytes.to_vec();
                    if damaged {
                        let eighth = bytes.len() / 8;
                        bytes[3 * eighth..4 * eighth].fill(0x5a);
                        bytes[5 * eighth] ^= 1;
                    }
                    let len = bytes.len() as u64;
                    let (pieces, work) = searched(Bytes::from(bytes), SALT, 0);
                    let gaps = pieces.iter().filter(|piece| piece.is_err()).count();
                    assert_eq!(gaps, if damaged { 2 } else { 0 });
                    assert!(pieces.len() as u64 > rows / 8, "{} blocks", pieces.len());
                    work as f64 / len as f64
                };
                let (small, large) = (work(400), work(3200));
                assert!(large < 1.5 * small && large < 3.0, "{small} steps per byte, {large}");
            }
        }
    }
}
