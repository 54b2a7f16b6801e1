//! What the cache reads when something is not in memory: sections of tables, values of segments.
//!
//! Whatever leaves this module was covered by a checksum over its content, the file's salt and the offset.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use varve_env::{File, OpenMode};
use varve_format::FormatResult;
use varve_format::block::Block;
use varve_format::filter::Filter;
use varve_format::index::Index;
use varve_format::section::{Handle, open_section};
use varve_format::segment::{SEGMENT_HEADER_BYTES, segment_salt};
use varve_format::table::{FOOTER_BYTES, Footer, Zones};

use super::{BlockPlace, FilteredBy, TableCache, TableIndex, damaged};
use crate::files::{OwnedFile, format_error, io_error};
use crate::segment::{Segment, Separated};
use crate::table::file::{Table, TableFile};
use crate::{StoreError, StoreResult};

/// Bytes that the kernel is asked for at a time: of more it may leave away the rest.
const PREFETCH_BYTES_MAX: u64 = 128 << 10;

impl TableCache {
    /// Reads index and filters, whether they are in memory or not.
    pub(crate) fn load_index(&self, table: &Table) -> StoreResult<TableIndex> {
        self.read_index(table, FilteredBy::Table)
    }

    /// Reads the footer of a table, whether it is in memory or not, and says where it stands.
    pub(crate) fn load_footer(&self, table: &Table) -> StoreResult<(Footer, u64)> {
        let size = table.meta().size_bytes;
        let Some(offset) = size.checked_sub(FOOTER_BYTES as u64) else {
            let detail = format!("a table of {size} bytes, shorter than a footer");
            return Err(StoreError::Damaged { path: table.path().to_owned(), offset: 0, detail });
        };
        let footer = self.read(table.file(), offset, FOOTER_BYTES)?;
        let footer = Footer::decode(&footer, table.meta().salt, offset);
        Ok((footer.map_err(|error| damaged(table, offset, error))?, offset))
    }

    pub(super) fn read_index(&self, table: &Table, by: FilteredBy) -> StoreResult<TableIndex> {
        self.metrics.index_loads.add(1);
        let (footer, offset) = self.load_footer(table)?;
        let own_end = footer.data_end();
        let zones = footer.zones.map(|h| self.section(table, h, |c| Zones::decode(c, own_end)));
        let zones = zones.transpose()?;
        let listed = zones.as_ref().map(Zones::metas).unwrap_or_default();
        if listed != table.meta().zones {
            let detail = "other zones than the manifest says".to_owned();
            return Err(StoreError::Damaged { path: table.path().to_owned(), offset, detail });
        }
        let data_end = zones.as_ref().map_or(own_end, Zones::data_bytes);
        let index = self.section(table, footer.index, |content| {
            Index::decode(footer.index_policy, content, data_end)
        })?;
        let read = |handle: Option<Handle>| {
            let handle = handle.filter(|_| by == FilteredBy::Table);
            handle.map(|handle| self.section(table, handle, |c| Filter::decode(c))).transpose()
        };
        let (filter, prefix_filter) = (read(footer.filter)?, read(footer.prefix_filter)?);
        Ok(TableIndex { footer, index, zones, filter, prefix_filter })
    }

    /// Reads a section of the table's own file and decodes its content.
    pub(crate) fn section<T>(
        &self,
        table: &Table,
        handle: Handle,
        decode: impl FnOnce(&Bytes) -> FormatResult<T>,
    ) -> StoreResult<T> {
        self.section_at(BlockPlace { file: table.file(), handle }, decode)
    }

    /// Reads a section and decodes its content.
    fn section_at<T>(
        &self,
        place: BlockPlace<'_>,
        decode: impl FnOnce(&Bytes) -> FormatResult<T>,
    ) -> StoreResult<T> {
        let BlockPlace { file, handle } = place;
        handle.check().map_err(|error| place.damaged(error))?;
        let bytes = Bytes::from(self.read(file, handle.offset, handle.len as usize)?);
        open_section(&bytes, file.salt(), handle.offset)
            .and_then(|content| decode(&content))
            .map_err(|error| place.damaged(error))
    }

    /// A data block, whether it is in memory or not.
    pub(crate) fn load_block(&self, place: BlockPlace<'_>) -> StoreResult<Block> {
        self.section_at(place, |content| Block::parse(content.clone()))
    }

    /// Reads a value that stands in a segment, whether it is in memory or not.
    pub(crate) fn load_value(&self, separated: &Separated) -> StoreResult<Bytes> {
        let Separated { segment, handle } = separated;
        self.metrics.value_reads.add(1);
        let path = segment.path();
        if handle.end() > segment.meta().size_bytes {
            let detail = "a value beyond the end of its segment".to_owned();
            return Err(StoreError::Damaged {
                path: path.to_owned(),
                offset: handle.offset,
                detail,
            });
        }
        let bytes = self.read_at(segment.owned(), handle.offset, handle.len as usize)?;
        open_section(&Bytes::from(bytes), segment.meta().salt, handle.offset)
            .map_err(|error| format_error(path, error.shifted(handle.offset)))
    }

    /// Fails unless the header of `segment` is what was written.
    pub(crate) fn check_header(&self, segment: &Segment) -> StoreResult<()> {
        let header = self.read_at(segment.owned(), 0, SEGMENT_HEADER_BYTES)?;
        let salt = segment_salt(&header).map_err(|error| format_error(segment.path(), error))?;
        if salt == segment.meta().salt {
            return Ok(());
        }
        let (path, detail) =
            (segment.path().to_owned(), "the header of another segment".to_owned());
        Err(StoreError::Damaged { path, offset: 0, detail })
    }

    fn read(&self, table: &TableFile, offset: u64, len: usize) -> StoreResult<Vec<u8>> {
        self.read_at(table.owned(), offset, len)
    }

    fn read_at(&self, owned: &OwnedFile, offset: u64, len: usize) -> StoreResult<Vec<u8>> {
        let (path, file) = (owned.path(), self.file(owned)?);
        let mut bytes = vec![0; len];
        self.metrics.device_reads.add(1);
        self.metrics.device_read_bytes.add(len as u64);
        file.read_exact_at(&mut bytes, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                StoreError::Damaged { path: path.to_owned(), offset, detail: error.to_string() }
            }
            _ => io_error("read", path, error),
        })?;
        Ok(bytes)
    }

    fn file(&self, owned: &OwnedFile) -> StoreResult<Arc<dyn File>> {
        if let Some(file) = self.files.get(&owned.no()) {
            return Ok(file);
        }
        let path = owned.path();
        let file =
            self.env.open(path, OpenMode::Read).map_err(|error| io_error("open", path, error))?;
        self.files.insert(owned.no(), Arc::clone(&file));
        // Nobody forgets it a second time ([`TableCache::forget`]), and an open file keeps its room.
        if owned.is_obsolete() {
            self.files.remove(&owned.no());
        }
        Ok(file)
    }

    /// Has the bytes of `file` from `start` to `end` fetched, which a walk will come to.
    pub(crate) fn prefetch(&self, file: &TableFile, start: u64, end: u64) -> StoreResult<()> {
        self.prefetch_at(file.owned(), start, end)
    }

    /// Has `blocks` fetched, neighbours among those that follow each other together.
    pub(crate) fn prefetch_blocks(&self, blocks: &[BlockPlace<'_>]) -> StoreResult<()> {
        let mut blocks = blocks.iter().peekable();
        while let Some(BlockPlace { file, handle }) = blocks.next() {
            let mut end = handle.end();
            while let Some(next) = blocks.next_if(|next| {
                next.file.no() == file.no()
                    && next.handle.offset == end
                    && next.handle.end() - handle.offset <= PREFETCH_BYTES_MAX
            }) {
                end = next.handle.end();
            }
            self.prefetch(file, handle.offset, end)?;
        }
        Ok(())
    }

    /// Has a value that stands in a segment fetched; false if it is in memory.
    pub(crate) fn prefetch_value(&self, separated: &Separated) -> StoreResult<bool> {
        let Separated { segment, handle } = separated;
        let is_here = self.holds_at(segment.file_no(), handle.offset);
        if !is_here {
            self.prefetch_at(segment.owned(), handle.offset, handle.end())?;
        }
        Ok(!is_here)
    }

    fn prefetch_at(&self, owned: &OwnedFile, start: u64, end: u64) -> StoreResult<()> {
        self.metrics.prefetched_bytes.add(end - start);
        self.file(owned)?.prefetch(start, end - start);
        Ok(())
    }
}
