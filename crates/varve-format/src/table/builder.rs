//! Builds a table file from versions in internal order.
//!
//! 1. [`TableBuilder::add`] fills a block; a full block is sealed into the output.
//! 2. Between calls the caller writes [`TableBuilder::output`] to the file and clears it. So memory holds only a
//!    block and the unfinished index and filters, not the table.
//! 3. [`TableBuilder::stitch`] points at a whole block of an older file instead.
//! 4. [`TableBuilder::finish`] appends filters, index, properties and footer.
//!
//! Invariant: the versions that are added ascend in internal order.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use bytes::Bytes;
use varve_types::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use varve_types::{FileNo, FileSalt, KeyspaceId, SeqNo};

use super::{Footer, PAGE_BYTES, Properties, Zone, Zones};
use crate::block::{Block, BlockBuilder, BlockCursor, internal_cmp};
use crate::edit::TableMeta;
use crate::filter::{Filter, FilterKind, FilterPolicy, PREFIX_BYTES, filter_hash};
use crate::index::{IndexBuilder, IndexPolicy};
use crate::section::{
    Compression, Handle, PADDED_UNIT_MAX, PADDING_BYTES, Packing, TRAILER_BYTES, compress, pad,
    put_section,
};
use crate::segment::{SegmentShare, ValuePointer};
use crate::{EntryKind, FormatError, FormatResult, Problem};

/// How a table is built.
#[derive(Clone, Copy, Debug)]
pub struct TableOptions {
    /// The key space whose rows it will hold.
    pub keyspace: KeyspaceId,
    /// Every key is 8 bytes of prefix and 8 bytes of suffix.
    pub prefixed: bool,
    /// The size of blocks in bytes, trailer included, before compression; a larger row has a block of
    /// its own.
    pub block_bytes: u32,
    /// How data blocks are compressed where that saves room.
    pub compression: Compression,
    /// How the blocks are indexed, if they can be so: others than [`IndexPolicy::Plain`] need prefixed
    /// keys, no compression, and a block size of whole pages, at most 64 KiB.
    pub index: IndexPolicy,
    /// How absent keys are filtered.
    pub filter: FilterPolicy,
    /// Blocks end where a prefix of so many bytes of rows does, so that what comes between two of them later
    /// leaves their blocks as they are; 0 for no such rule.
    pub cut_after_prefix_bytes: u64,
}

impl TableOptions {
    /// Returns whether a block of an older table that stands at `handle` can be one of this table.
    pub fn may_stitch(&self, handle: Handle) -> bool {
        self.index_policy() == IndexPolicy::Plain
            || (u64::from(handle.len).is_multiple_of(PAGE_BYTES) && handle.len >= self.block_bytes)
    }

    /// How the blocks will be indexed.
    pub fn index_policy(&self) -> IndexPolicy {
        let paged = self.prefixed
            && self.compression == Compression::None
            && (1..=PADDED_UNIT_MAX).contains(&self.block_bytes)
            && u64::from(self.block_bytes).is_multiple_of(PAGE_BYTES);
        if paged { self.index } else { IndexPolicy::Plain }
    }
}

/// Builds a table file.
#[derive(Debug)]
pub struct TableBuilder {
    options: TableOptions,
    file: FileNo,
    salt: FileSalt,
    out: Vec<u8>,
    /// Bytes of the file before `out`.
    drained: u64,
    block: BlockBuilder,
    last_seq: SeqNo,
    /// The newest version of the block in the making.
    block_newest: SeqNo,
    /// The block sealed last, which enters the index when the next key is known.
    sealed: Option<Handle>,
    sealed_key: Vec<u8>,
    index: IndexBuilder,
    zones: Zones,
    /// Bytes of blocks in other files.
    stitched_bytes: u64,
    /// Bytes of rows with the prefix of the last.
    prefix_bytes: u64,
    key_hashes: Vec<u64>,
    prefix_hashes: Vec<u64>,
    properties: Properties,
    /// Bytes of records that rows point at, by segment.
    segments: BTreeMap<FileNo, u64>,
    scratch: Vec<u8>,
}

impl TableBuilder {
    /// A builder of the table `file`, whose checksums hold `salt`.
    pub fn new(options: TableOptions, file: FileNo, salt: FileSalt) -> TableBuilder {
        let properties = Properties {
            keyspace: options.keyspace,
            prefixed: options.prefixed,
            compression: options.compression,
            entries: 0,
            tombstones: 0,
            smallest_seq: SeqNo::MAX,
            largest_seq: SeqNo::ZERO,
            blocks: 0,
            raw_bytes: 0,
            smallest_key: Bytes::new(),
            largest_key: Bytes::new(),
            segments: Vec::new(),
            newest: Vec::new(),
        };
        let block_pages = options.block_bytes / PAGE_BYTES as u32;
        TableBuilder {
            options,
            file,
            salt,
            out: Vec::new(),
            drained: 0,
            block: if options.prefixed {
                BlockBuilder::for_keys_of(2 * PREFIX_BYTES as u8)
            } else {
                BlockBuilder::new()
            },
            last_seq: SeqNo::MAX,
            block_newest: SeqNo::ZERO,
            sealed: None,
            sealed_key: Vec::new(),
            index: IndexBuilder::new(options.index_policy(), block_pages),
            zones: Zones::default(),
            stitched_bytes: 0,
            prefix_bytes: 0,
            key_hashes: Vec::new(),
            prefix_hashes: Vec::new(),
            properties,
            segments: BTreeMap::new(),
            scratch: Vec::new(),
        }
    }

    /// Adds a version of `key`; of a separated value, the encoded [`ValuePointer`]. Fails, and changes
    /// nothing, if it is not after all versions added so far, or if key or value break a limit.
    pub fn add(
        &mut self,
        key: &[u8],
        seq: SeqNo,
        kind: EntryKind,
        value: &[u8],
    ) -> FormatResult<()> {
        self.check_limits(key, seq, value)?;
        let pointer = match kind {
            EntryKind::Separated => Some(ValuePointer::decode(value)?),
            EntryKind::Put | EntryKind::Delete => None,
        };
        let first = self.properties.entries == 0;
        let last_key = self.last_key();
        let new_key = first || last_key != key;
        let last = (last_key, self.last_seq);
        if !first && internal_cmp(last, (key, seq)) != Ordering::Less {
            return Err(self.error(Problem::Invalid("a version that is not after the last one")));
        }
        if new_key {
            self.begin_key(key, first)?;
        }
        let padding = if self.is_paged() { PADDING_BYTES } else { 0 };
        let max = (self.options.block_bytes as usize).saturating_sub(TRAILER_BYTES + padding);
        if !self.block.add(key, seq, kind, value, max) {
            self.seal_block()?;
            self.block.add(key, seq, kind, value, max);
        }
        if let Some(handle) = self.sealed.take() {
            self.index.add(&self.sealed_key, self.last_seq, Some(key), handle);
        }
        if new_key {
            self.index.note_key(key);
        }
        self.last_seq = seq;
        self.count(key, seq, kind, value.len());
        if let Some(pointer) = pointer {
            *self.segments.entry(pointer.segment).or_default() += pointer.record_bytes();
        }
        Ok(())
    }

    /// Adds all versions of `block`, which stands at `handle` of `zone` and stays there. Fails if they are not
    /// after all added so far; then the table cannot be finished.
    ///
    /// REQUIRES: [`TableOptions::may_stitch`]; none of them is separated.
    pub fn stitch(&mut self, zone: Zone, handle: Handle, block: &Block) -> FormatResult<()> {
        let mut cursor = BlockCursor::new(block.clone());
        cursor.seek_first()?;
        if !self.block.is_empty() {
            self.seal_block()?;
        }
        if let Some(sealed) = self.sealed.take() {
            self.index.add(&self.sealed_key, self.last_seq, Some(cursor.key()), sealed);
        }
        while cursor.valid() {
            let (key, seq) = (cursor.key(), cursor.seq());
            if cursor.kind() == EntryKind::Separated {
                let rule = "a block that points into segments and stays where it is";
                return Err(self.error(Problem::Invalid(rule)));
            }
            let first = self.properties.entries == 0;
            if !first && internal_cmp((&self.sealed_key, self.last_seq), (key, seq)).is_ge() {
                let rule = "a block that is not after the last version";
                return Err(self.error(Problem::Invalid(rule)));
            }
            if first || self.sealed_key != key {
                self.begin_key(key, first)?;
                self.index.note_key(key);
            }
            self.sealed_key.clear();
            self.sealed_key.extend_from_slice(key);
            self.last_seq = seq;
            self.count(key, seq, cursor.kind(), cursor.value().len());
            cursor.next()?;
        }
        self.sealed = Some(self.zones.add(zone, handle));
        self.stitched_bytes += u64::from(handle.len);
        self.count_block();
        Ok(())
    }

    /// Bytes of the file, of its index, which long keys make larger than their blocks when these are compressed, and of what
    /// is pointed at, the block in the making not included.
    pub fn table_bytes(&self) -> u64 {
        self.file_bytes() + self.index.bytes() as u64 + self.stitched_bytes
    }

    /// Bytes of the file so far, the block in the making not included.
    pub fn file_bytes(&self) -> u64 {
        self.drained + self.out.len() as u64
    }

    /// True if nothing was added.
    pub fn is_empty(&self) -> bool {
        self.properties.entries == 0
    }

    /// Returns the key added last; empty if none.
    pub fn last_key(&self) -> &[u8] {
        if self.block.is_empty() { &self.sealed_key } else { self.block.last_key() }
    }

    /// Finished bytes of the file that the caller has not yet cleared. They follow those cleared.
    pub fn output(&self) -> &[u8] {
        &self.out
    }

    /// Forgets the output, which the caller has written.
    pub fn clear_output(&mut self) {
        self.drained += self.out.len() as u64;
        self.out.clear();
    }

    /// Completes the table: returns the output that is left and what the manifest needs to know.
    /// Fails if nothing was added.
    pub fn finish(mut self) -> FormatResult<(Vec<u8>, TableMeta)> {
        if self.is_empty() {
            return Err(self.error(Problem::Invalid("a table without entries")));
        }
        self.properties.largest_key = Bytes::copy_from_slice(self.last_key());
        let segments = std::mem::take(&mut self.segments).into_iter();
        self.properties.segments =
            segments.map(|(segment, bytes)| SegmentShare { segment, bytes }).collect();
        if !self.block.is_empty() {
            self.seal_block()?;
        }
        if let Some(handle) = self.sealed.take() {
            self.index.add(&self.sealed_key, self.last_seq, None, handle);
        }
        let mut filter_kind = FilterKind::None;
        let (mut filter, mut prefix_filter) = (None, None);
        let hashes = std::mem::take(&mut self.key_hashes);
        if let Some(keys) = Filter::build(self.options.filter, hashes) {
            filter_kind = keys.kind();
            filter = Some(self.put_filter(&keys)?);
        }
        let hashes = std::mem::take(&mut self.prefix_hashes);
        if let Some(prefixes) = Filter::build(self.options.filter, hashes)
            && self.options.prefixed
        {
            prefix_filter = Some(self.put_filter(&prefixes)?);
        }
        let mut content = Vec::new();
        let mut zones = None;
        if !self.zones.zones().is_empty() {
            self.zones.encode(&mut content);
            zones = Some(self.put_content(&content)?);
            content.clear();
        }
        self.index.finish(&mut content);
        let index = self.put_content(&content)?;
        content.clear();
        self.properties.encode(&mut content);
        let properties = self.put_content(&content)?;
        let (salt, index_policy) = (self.salt, self.index.policy());
        let footer = Footer {
            salt,
            properties,
            index,
            index_policy,
            filter_kind,
            filter,
            prefix_filter,
            zones,
        };
        let offset = self.file_bytes();
        footer.encode(&mut self.out, offset);
        let meta = TableMeta { zones_at: zones, ..self.meta() };
        Ok((self.out, meta))
    }

    fn check_limits(&self, key: &[u8], seq: SeqNo, value: &[u8]) -> FormatResult<()> {
        for (what, len, max) in
            [("key", key.len(), KEY_BYTES_MAX), ("value", value.len(), VALUE_BYTES_MAX)]
        {
            if len > max {
                let (len, max) = (len as u64, max as u64);
                return Err(self.error(Problem::TooLong { what, len, max }));
            }
        }
        if self.options.prefixed && key.len() != 2 * PREFIX_BYTES {
            return Err(self.error(Problem::Invalid("a prefixed key that is not 8 and 8 bytes")));
        }
        if seq == SeqNo::ZERO || seq > SeqNo::MAX {
            return Err(self.error(Problem::Invalid("a sequence number outside of its range")));
        }
        Ok(())
    }

    /// Notes a key that is not that of the version before.
    fn begin_key(&mut self, key: &[u8], first: bool) -> FormatResult<()> {
        if first {
            self.properties.smallest_key = Bytes::copy_from_slice(key);
        }
        let filtered = self.options.filter != FilterPolicy::None;
        if filtered {
            self.key_hashes.push(filter_hash(key));
        }
        if let Some(prefix) = key.get(..PREFIX_BYTES)
            && self.options.prefixed
            && (first || self.last_key().get(..PREFIX_BYTES) != Some(prefix))
        {
            if filtered {
                self.prefix_hashes.push(filter_hash(prefix));
            }
            let cut = self.options.cut_after_prefix_bytes;
            if cut > 0 && self.prefix_bytes >= cut && !self.block.is_empty() {
                self.seal_block()?;
            }
            self.prefix_bytes = 0;
        }
        Ok(())
    }

    fn count(&mut self, key: &[u8], seq: SeqNo, kind: EntryKind, value_len: usize) {
        self.prefix_bytes += (key.len() + value_len) as u64;
        let properties = &mut self.properties;
        properties.entries += 1;
        properties.tombstones += u64::from(kind == EntryKind::Delete);
        properties.smallest_seq = properties.smallest_seq.min(seq);
        properties.largest_seq = properties.largest_seq.max(seq);
        properties.raw_bytes += (key.len() + value_len) as u64;
        self.block_newest = self.block_newest.max(seq);
    }

    /// Notes that the versions counted since the last block are all of one.
    fn count_block(&mut self) {
        self.properties.blocks += 1;
        self.properties.newest.push(std::mem::replace(&mut self.block_newest, SeqNo::ZERO));
    }

    /// Moves the block in the making to the output.
    fn seal_block(&mut self) -> FormatResult<()> {
        self.sealed_key.clear();
        self.sealed_key.extend_from_slice(self.block.last_key());
        let is_paged = self.is_paged();
        let content = self.block.finish();
        let (content, packing) = if is_paged {
            pad(content, self.options.block_bytes as usize, &mut self.scratch);
            (&self.scratch[..], Packing::Padded)
        } else if self.options.compression == Compression::Lz4
            && compress(content, &mut self.scratch)
        {
            (&self.scratch[..], Packing::Lz4)
        } else {
            (content, Packing::Plain)
        };
        if self.options.compression == Compression::None {
            let offset = self.drained + self.out.len() as u64;
            let gap = page_gap(offset, (content.len() + TRAILER_BYTES) as u64);
            self.out.resize(self.out.len() + gap, 0);
        }
        let offset = self.drained + self.out.len() as u64;
        let handle = put_section(&mut self.out, self.salt, offset, content, packing)?;
        self.sealed = Some(self.zones.add_own(handle));
        self.count_block();
        self.block.clear();
        Ok(())
    }

    /// Returns whether every block fills whole pages.
    fn is_paged(&self) -> bool {
        self.index.policy() != IndexPolicy::Plain
    }

    fn put_filter(&mut self, filter: &Filter) -> FormatResult<Handle> {
        let mut content = Vec::new();
        filter.encode(&mut content);
        self.put_content(&content)
    }

    fn put_content(&mut self, content: &[u8]) -> FormatResult<Handle> {
        let offset = self.file_bytes();
        put_section(&mut self.out, self.salt, offset, content, Packing::Plain)
    }

    fn meta(&self) -> TableMeta {
        let properties = &self.properties;
        TableMeta {
            file: self.file,
            salt: self.salt,
            size_bytes: self.file_bytes(),
            entries: properties.entries,
            tombstones: properties.tombstones,
            smallest_seq: properties.smallest_seq,
            largest_seq: properties.largest_seq,
            seq_override: None,
            smallest_key: properties.smallest_key.clone(),
            largest_key: properties.largest_key.clone(),
            segments: properties.segments.clone(),
            zones: self.zones.metas(),
            zones_at: None,
        }
    }

    fn error(&self, problem: Problem) -> FormatError {
        FormatError::new(self.file_bytes(), problem)
    }
}

/// Zeros to put before a block of `len` bytes at `offset`, so that it does not cross a page.
fn page_gap(offset: u64, len: u64) -> usize {
    let room = PAGE_BYTES - offset % PAGE_BYTES;
    if len <= PAGE_BYTES && len > room { room as usize } else { 0 }
}
