//! The bytes of one simulated file, sparse and cheap to copy.
//!
//! The state in the page cache and the state on disk share pages until one of them changes. An absent page is a hole;
//! a page beyond the length is reserved space.
//!
//! Invariant: bytes of a present page beyond the length are zero, so that the file shows zeros when it grows.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::Seek;

/// Bytes in one page, the unit of allocation.
pub(super) const PAGE_BYTES: u64 = 4096;
/// Bytes that a disk writes as one.
pub(super) const SECTOR_BYTES: u64 = 512;

/// The bytes of one page.
type Page = [u8; PAGE_BYTES as usize];

/// A file's bytes and length.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    len: u64,
    pages: BTreeMap<u64, Arc<Page>>,
}

/// One change of a file's bytes, as the page cache holds it until the next sync.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// Bytes written at an offset.
    Write { offset: u64, bytes: Arc<[u8]> },
    /// The length set.
    SetLen(u64),
    /// Room reserved, the length extended over it if `grow`.
    Reserve { offset: u64, len: u64, grow: bool },
    /// A range zeroed and, where it covers whole pages, given back.
    Zero { offset: u64, len: u64, grow: bool },
}

impl Change {
    /// Pages that `content` grows by, at most.
    pub(super) fn pages_needed(&self, content: &Content) -> u64 {
        match self {
            Change::Write { offset, bytes } => content.pages_missing(*offset, bytes.len() as u64),
            Change::Reserve { offset, len, .. } => content.pages_missing(*offset, *len),
            Change::SetLen(_) | Change::Zero { .. } => 0,
        }
    }
}

/// Returns the pieces of `offset..offset + len` that lie in one `unit` each: (unit number, start within it, length).
fn pieces(offset: u64, len: u64, unit: u64) -> impl Iterator<Item = (u64, u64, u64)> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        let (number, start) = (at / unit, at % unit);
        let piece = (unit - start).min(end - at);
        at += piece;
        (piece > 0).then_some((number, start, piece))
    })
}

impl Content {
    /// Length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Pages in use.
    pub(super) fn page_count(&self) -> u64 {
        self.pages.len() as u64
    }

    /// Returns how many pages of a range are absent.
    pub(super) fn pages_missing(&self, offset: u64, len: u64) -> u64 {
        pieces(offset, len, PAGE_BYTES).filter(|(page, ..)| !self.pages.contains_key(page)).count()
            as u64
    }

    /// Returns whether a page is there.
    pub(super) fn has_page(&self, page: u64) -> bool {
        self.pages.contains_key(&page)
    }

    /// Returns the numbers of the pages of which a range has a part.
    pub(super) fn pages_of(offset: u64, len: u64) -> std::ops::Range<u64> {
        if len == 0 { 0..0 } else { offset / PAGE_BYTES..(offset + len).div_ceil(PAGE_BYTES) }
    }

    /// Those that are there from `first` up to `end`.
    pub(super) fn pages_in(&self, first: u64, end: u64) -> impl Iterator<Item = u64> {
        self.pages.range(first..end).map(|(page, _)| *page)
    }

    /// Copies bytes out; returns how many there were.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let len = (buf.len() as u64).min(self.len.saturating_sub(offset));
        let mut rest = &mut buf[..len as usize];
        for (page, start, piece) in pieces(offset, len, PAGE_BYTES) {
            let (out, tail) = std::mem::take(&mut rest).split_at_mut(piece as usize);
            match self.pages.get(&page) {
                Some(bytes) => {
                    out.copy_from_slice(&bytes[start as usize..(start + piece) as usize])
                }
                None => out.fill(0),
            }
            rest = tail;
        }
        len as usize
    }

    /// Applies a whole change.
    pub(super) fn apply(&mut self, change: &Change) {
        match change {
            Change::Write { offset, bytes } => {
                self.poke(*offset, bytes);
                self.grow(offset + bytes.len() as u64);
            }
            Change::SetLen(len) => self.set_len(*len),
            Change::Reserve { offset, len, grow } => {
                for (page, ..) in pieces(*offset, *len, PAGE_BYTES) {
                    self.page_mut(page);
                }
                if *grow {
                    self.grow(offset + len);
                }
            }
            Change::Zero { offset, len, grow } => {
                self.zero(*offset, *len);
                if *grow {
                    self.grow(offset + len);
                }
            }
        }
    }

    /// Applies those sectors of a write for which `keep` says yes, and its length if `keep_len`.
    pub(super) fn apply_torn(
        &mut self,
        offset: u64,
        bytes: &[u8],
        keep_len: bool,
        mut keep: impl FnMut() -> bool,
    ) {
        let mut done = 0;
        for (_, _, piece) in pieces(offset, bytes.len() as u64, SECTOR_BYTES) {
            if keep() {
                self.poke(offset + done, &bytes[done as usize..(done + piece) as usize]);
            }
            done += piece;
        }
        if keep_len {
            self.grow(offset + done);
        }
    }

    /// Fills the part of a range that lies beyond the length, without changing the length: what
    /// [`Content::apply_torn`] then lets the length grow over shows it. REQUIRES: [`Content::trim`] at the end.
    pub(super) fn fill_beyond(&mut self, offset: u64, len: u64, stale: impl Fn(u64) -> u8) {
        let start = offset.max(self.len);
        let bytes: Vec<u8> = (start..offset + len).map(stale).collect();
        self.poke(start, &bytes);
    }

    /// Returns the byte at `offset`, if there is one.
    pub(super) fn byte(&self, offset: u64) -> Option<u8> {
        let page = self.pages.get(&(offset / PAGE_BYTES)).filter(|_| offset < self.len)?;
        Some(page[(offset % PAGE_BYTES) as usize])
    }

    /// Drops what [`Content::apply_torn`] left beyond the length.
    pub(super) fn trim(&mut self) {
        self.set_len(self.len);
    }

    /// Cuts, or extends with a hole.
    pub(super) fn set_len(&mut self, len: u64) {
        self.pages.split_off(&len.div_ceil(PAGE_BYTES));
        let tail = len % PAGE_BYTES;
        if tail != 0
            && let Some(page) = self.pages.get_mut(&(len / PAGE_BYTES))
        {
            Arc::make_mut(page)[tail as usize..].fill(0);
        }
        self.len = len;
    }

    /// Returns the next data or hole at or after `offset`; `None` past the end.
    pub(super) fn seek(&self, what: Seek, offset: u64) -> Option<u64> {
        if offset >= self.len {
            return None;
        }
        let first = offset / PAGE_BYTES;
        match what {
            Seek::Data => {
                let (page, _) = self.pages.range(first..).next()?;
                Some(offset.max(page * PAGE_BYTES)).filter(|at| *at < self.len)
            }
            Seek::Hole => {
                let run = self.pages.range(first..).zip(first..).take_while(|((a, _), b)| *a == b);
                Some(offset.max((first + run.count() as u64) * PAGE_BYTES).min(self.len))
            }
        }
    }

    /// Every byte.
    pub(super) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len as usize];
        self.read(&mut bytes, 0);
        bytes
    }

    fn page_mut(&mut self, page: u64) -> &mut Page {
        Arc::make_mut(self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE_BYTES as usize])))
    }

    fn grow(&mut self, len: u64) {
        self.len = self.len.max(len);
    }

    /// Writes without changing the length.
    fn poke(&mut self, offset: u64, bytes: &[u8]) {
        let mut rest = bytes;
        for (page, start, piece) in pieces(offset, bytes.len() as u64, PAGE_BYTES) {
            let (part, tail) = rest.split_at(piece as usize);
            self.page_mut(page)[start as usize..(start + piece) as usize].copy_from_slice(part);
            rest = tail;
        }
    }

    fn zero(&mut self, offset: u64, len: u64) {
        for (page, start, piece) in pieces(offset, len, PAGE_BYTES) {
            if piece == PAGE_BYTES {
                self.pages.remove(&page);
            } else if let Some(bytes) = self.pages.get_mut(&page) {
                Arc::make_mut(bytes)[start as usize..(start + piece) as usize].fill(0);
            }
        }
    }
}
