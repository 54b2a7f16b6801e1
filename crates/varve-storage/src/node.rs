//! One file: what the journal says of it, and what was written since.

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use varve_types::Timestamp;

use crate::extents::{Extent, Extents, ObjectId, Source};
use crate::record::{Change, Put, puts_of};

/// A file that may be open.
#[derive(Debug)]
pub(crate) struct Node {
    state: Mutex<State>,
    /// Held while objects are made of what was written.
    pub(crate) uploads: Mutex<()>,
}

#[derive(Debug)]
pub(crate) struct State {
    /// The path in the store; `None` once it is removed.
    pub(crate) path: Option<String>,
    /// How many open files there are.
    pub(crate) handles: usize,
    /// The file after the newest record that was made.
    pub(crate) base: Meta,
    /// What is in no record yet.
    pub(crate) written: Option<Written>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) len: u64,
    pub(crate) accessed: Timestamp,
    pub(crate) modified: Timestamp,
    pub(crate) extents: Extents,
}

impl Meta {
    pub(crate) fn empty(now: Timestamp) -> Meta {
        Meta { len: 0, accessed: now, modified: now, extents: Extents::default() }
    }
}

/// Changes of a file that lie over its base.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) len: u64,
    pub(crate) accessed: Timestamp,
    pub(crate) modified: Timestamp,
    /// The base is seen up to here.
    pub(crate) base_end: u64,
    pub(crate) extents: Extents,
    /// About how many bytes of them are in memory.
    pub(crate) memory_bytes: u64,
}

/// Bytes that are in memory and have become an object, by the address at which they begin.
pub(crate) type Uploaded = std::collections::BTreeMap<usize, (Bytes, ObjectId, u64)>;

impl Node {
    pub(crate) fn new(path: String, base: Meta) -> Node {
        let state = State { path: Some(path), handles: 0, base, written: None };
        Node { state: Mutex::new(state), uploads: Mutex::default() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    pub(crate) fn len(&self) -> u64 {
        self.written.as_ref().map_or(self.base.len, |written| written.len)
    }

    pub(crate) fn times(&self) -> (Timestamp, Timestamp) {
        match &self.written {
            Some(written) => (written.accessed, written.modified),
            None => (self.base.accessed, self.base.modified),
        }
    }

    /// What was written and is in no record yet, to add to it. True if that is the first since the last record.
    pub(crate) fn write(&mut self) -> (&mut Written, bool) {
        let (is_new, base) = (self.written.is_none(), &self.base);
        let written = self.written.get_or_insert_with(|| Written {
            len: base.len,
            accessed: base.accessed,
            modified: base.modified,
            base_end: base.len,
            extents: Extents::default(),
            memory_bytes: 0,
        });
        (written, is_new)
    }

    /// The pieces that make up a range of the file, which lies within its length.
    pub(crate) fn pieces(&self, range: std::ops::Range<u64>) -> Vec<(u64, Option<Source>)> {
        let Some(written) = &self.written else { return self.base.extents.pieces(range) };
        let mut pieces = Vec::new();
        let mut at = range.start;
        for (len, source) in written.extents.pieces(range) {
            match source {
                Some(Source::Zeros) => pieces.push((len, None)),
                Some(source) => pieces.push((len, Some(source))),
                None => {
                    let seen = written.base_end.clamp(at, at + len);
                    if seen > at {
                        pieces.extend(self.base.extents.pieces(at..seen));
                    }
                    if seen < at + len {
                        pieces.push((at + len - seen, None));
                    }
                }
            }
            at += len;
        }
        pieces
    }

    /// What was written since the last record, as a change, which then is in the base. Adds to `left` the objects that
    /// no part of the file needs any more.
    pub(crate) fn record(&mut self, left: &mut Vec<ObjectId>) -> Option<Change> {
        let path = self.path.clone()?;
        let written = self.written.take()?;
        let cut = (written.base_end < self.base.len).then_some(written.base_end);
        let puts = puts_of(&joined(&written.extents));
        let (len, accessed, modified) = (written.len, written.accessed, written.modified);
        self.base.apply(cut, &puts, left);
        (self.base.len, self.base.accessed, self.base.modified) = (len, accessed, modified);
        let (accessed, modified) = (accessed.into(), modified.into());
        Some(Change::Content { path, cut, len, accessed, modified, puts })
    }

    /// The bytes in memory that are in no record yet, in order.
    pub(crate) fn unrecorded(&self) -> Vec<Bytes> {
        let extents = self.written.iter().flat_map(|written| written.extents.iter());
        let bytes = extents.filter_map(|(_, extent)| match &extent.source {
            Source::Memory(bytes) => Some(bytes.clone()),
            _ => None,
        });
        bytes.collect()
    }

    /// Takes the objects for the bytes in memory that became objects. One write may have become parts of several.
    pub(crate) fn uploaded(&mut self, uploaded: &Uploaded) {
        let Some(written) = &mut self.written else { return };
        let mut extents = Extents::default();
        written.memory_bytes = 0;
        for (mut offset, extent) in written.extents.iter() {
            let Source::Memory(bytes) = &extent.source else {
                extents.put(offset, extent.clone());
                continue;
            };
            let mut rest = bytes.clone();
            while !rest.is_empty() {
                let (begins, all) = (rest.as_ptr() as usize, rest.len());
                let part = uploaded.range(..=begins).next_back();
                let within = part.filter(|(start, (part, ..))| begins < *start + part.len());
                let (count, source) = match within {
                    Some((start, (part, id, from))) => {
                        let count = (start + part.len() - begins).min(all);
                        let from = from + (begins - start) as u64;
                        (count, Source::Object { id: *id, from, shared: false })
                    }
                    None => {
                        let next =
                            uploaded.range(begins..).next().map_or(all, |(at, _)| at - begins);
                        let count = next.min(all);
                        written.memory_bytes += count as u64;
                        (count, Source::Memory(rest.slice(..count)))
                    }
                };
                extents.put(offset, Extent { len: count as u64, source });
                offset += count as u64;
                rest = rest.split_off(count);
            }
        }
        written.extents = joined(&extents);
    }

    /// The objects that only this file has.
    pub(crate) fn own_objects(&self) -> Vec<ObjectId> {
        let written = self.written.iter().flat_map(|written| written.extents.iter());
        let extents = self.base.extents.iter().chain(written).map(|(_, extent)| extent);
        let mut ids: Vec<ObjectId> = own_objects(extents).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// All objects of the file.
    pub(crate) fn objects(&self) -> Vec<ObjectId> {
        let written = self.written.iter().flat_map(|written| written.extents.iter());
        let sources = self.base.extents.iter().chain(written).map(|(_, extent)| &extent.source);
        let ids = sources.filter_map(|source| match source {
            Source::Object { id, .. } => Some(*id),
            _ => None,
        });
        ids.collect()
    }

    /// Marks all objects of the file as shared with others.
    pub(crate) fn share(&mut self) {
        let written = self.written.as_mut().map(|written| &mut written.extents);
        for extents in [Some(&mut self.base.extents), written].into_iter().flatten() {
            for (_, extent) in extents.iter_mut() {
                if let Source::Object { shared, .. } = &mut extent.source {
                    *shared = true;
                }
            }
        }
    }
}

impl Meta {
    /// Cuts the file, and puts bytes in the place of others. Adds to `left` the objects that no part of the file needs
    /// any more.
    pub(crate) fn apply(&mut self, cut: Option<u64>, puts: &[Put], left: &mut Vec<ObjectId>) {
        let mut was = Vec::new();
        if let Some(cut) = cut {
            was.extend(self.extents.take(cut..u64::MAX));
        }
        for put in puts {
            // What is written here was checked, and what is read is checked when it is read.
            let Ok((offset, extent)) = put.clone().into_extent() else { continue };
            match extent.source {
                Source::Zeros => was.extend(self.extents.take(offset..offset + extent.len)),
                _ => was.extend(self.extents.put(offset, extent)),
            }
        }
        let mut gone: Vec<ObjectId> = own_objects(was.iter().map(|(_, extent)| extent)).collect();
        gone.sort_unstable();
        gone.dedup();
        if !gone.is_empty() {
            let stays: std::collections::BTreeSet<ObjectId> = self
                .extents
                .iter()
                .filter_map(|(_, extent)| match extent.source {
                    Source::Object { id, .. } => Some(id),
                    _ => None,
                })
                .collect();
            left.extend(gone.into_iter().filter(|id| !stays.contains(id)));
        }
    }
}

fn own_objects<'a>(extents: impl Iterator<Item = &'a Extent>) -> impl Iterator<Item = ObjectId> {
    extents.filter_map(|extent| match extent.source {
        Source::Object { id, shared: false, .. } => Some(id),
        _ => None,
    })
}

/// The same extents, where neighbours that continue each other are one.
fn joined(extents: &Extents) -> Extents {
    /// One extent that is being put together; bytes of memory as parts.
    struct Joining {
        offset: u64,
        extent: Extent,
        parts: Vec<Bytes>,
    }
    let close = |joining: Joining, to: &mut Extents| {
        let Joining { offset, mut extent, parts } = joining;
        if parts.len() > 1 {
            extent.source = Source::Memory(parts.concat().into());
        }
        to.put(offset, extent);
    };
    let mut result = Extents::default();
    let mut current: Option<Joining> = None;
    for (offset, extent) in extents.iter() {
        if let Some(joining) = &mut current
            && joining.offset + joining.extent.len == offset
        {
            let joins = match (&joining.extent.source, &extent.source) {
                (Source::Memory(_), Source::Memory(_)) | (Source::Zeros, Source::Zeros) => true,
                (
                    Source::Object { id, from, shared },
                    Source::Object { id: next, from: next_from, shared: next_shared },
                ) => id == next && shared == next_shared && from + joining.extent.len == *next_from,
                _ => false,
            };
            if joins {
                joining.extent.len += extent.len;
                if let Source::Memory(bytes) = &extent.source {
                    joining.parts.push(bytes.clone());
                }
                continue;
            }
        }
        if let Some(joining) = current.take() {
            close(joining, &mut result);
        }
        let parts = match &extent.source {
            Source::Memory(bytes) => vec![bytes.clone()],
            _ => Vec::new(),
        };
        current = Some(Joining { offset, extent: extent.clone(), parts });
    }
    if let Some(joining) = current {
        close(joining, &mut result);
    }
    result
}
