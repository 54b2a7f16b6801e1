//! Where the data blocks of a stitched table are: runs of blocks in the table's own file and in older ones.
//!
//! A merge does not copy a long run of blocks if no other key falls between them. It points at them, and the files
//! with such runs are the *zones* of the table (KVFS thesis 3.2, figure 3.3). The index of such a table counts
//! offsets as if its runs followed each other in one file. This list says where each run is.
//!
//! Invariant: the runs are in the order of their keys.
//!
//! ```text
//! varint  number of zones; then of each
//!           varint file number
//!              8   salt of the file, u64
//!           varint bytes of the whole file
//! varint  number of runs; then of each, in the order of keys
//!           varint zone: 0 the table's own file, n the n-th of the list
//!           varint offset in that file
//!           varint bytes
//! ```
//!
//! Departure from the paper: there a zone is a unit of allocation of 8 MB; here it is a table file or the rest of
//! one.

use varve_types::{FileNo, FileSalt};

use super::PAGE_BYTES;
use crate::codec::{Reader, put_varint};
use crate::edit::ZoneMeta;
use crate::section::Handle;
use crate::{FormatResult, Problem};

/// The fewest bytes a zone takes in the list.
const ZONE_BYTES_MIN: usize = 10;
/// The fewest bytes a run takes in the list.
const RUN_BYTES_MIN: usize = 3;

/// A file whose blocks a table points at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Its number.
    pub file: FileNo,
    /// Its salt, as [`crate::edit::TableMeta::salt`] was.
    pub salt: FileSalt,
    /// Its length in bytes.
    pub size_bytes: u64,
}

/// Blocks that follow each other in one file, all of which are the table's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// 0 for the table's own file, n for the n-th zone.
    pub zone: u32,
    /// Where the first block stands in the file.
    pub offset: u64,
    /// Bytes of all.
    pub bytes: u64,
}

/// See the module's comment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zones {
    zones: Vec<Zone>,
    runs: Vec<Run>,
    /// The index's offset of each run.
    starts: Vec<u64>,
}

impl Zones {
    /// Takes the section's content. Blocks of the own file end at `own_end`.
    pub fn decode(content: &[u8], own_end: u64) -> FormatResult<Zones> {
        let mut reader = Reader::new(content);
        let mut zones = Zones::default();
        for _ in 0..list_len(&mut reader, ZONE_BYTES_MIN)? {
            let file = FileNo::new(reader.varint()?);
            let salt = FileSalt::new(reader.u64()?);
            zones.zones.push(Zone { file, salt, size_bytes: reader.varint()? });
        }
        let mut used = vec![false; zones.zones.len()];
        for _ in 0..list_len(&mut reader, RUN_BYTES_MIN)? {
            let run = Run {
                zone: reader.varint_u32()?,
                offset: reader.varint()?,
                bytes: reader.varint()?,
            };
            let limit = match (run.zone as usize).checked_sub(1) {
                None => Some(own_end),
                Some(zone) => zones.zones.get(zone).map(|zone| zone.size_bytes),
            };
            let end = run.offset.checked_add(run.bytes).filter(|end| Some(*end) <= limit);
            let whole = zones.data_bytes().checked_add(run.bytes);
            if limit.is_none() || end.is_none() || whole.is_none() || run.bytes == 0 {
                let rule = "a run of no bytes, of no zone, or beyond its file";
                return Err(reader.error(Problem::Invalid(rule)));
            }
            if let Some(used) = (run.zone as usize).checked_sub(1).and_then(|at| used.get_mut(at)) {
                *used = true;
            }
            zones.starts.push(zones.data_bytes());
            zones.runs.push(run);
        }
        reader.finish()?;
        if zones.zones.is_empty() || used.contains(&false) {
            let rule = "a list of zones that is empty, or has one without runs";
            return Err(reader.error(Problem::Invalid(rule)));
        }
        Ok(zones)
    }

    /// Appends the section's content.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.zones.len() as u64);
        for zone in &self.zones {
            put_varint(out, zone.file.get());
            out.extend_from_slice(&zone.salt.get().to_le_bytes());
            put_varint(out, zone.size_bytes);
        }
        put_varint(out, self.runs.len() as u64);
        for run in &self.runs {
            put_varint(out, run.zone.into());
            put_varint(out, run.offset);
            put_varint(out, run.bytes);
        }
    }

    /// Adds the block at `handle` of the own file. Returns where the index has it.
    pub(super) fn add_own(&mut self, handle: Handle) -> Handle {
        self.add_to(0, handle)
    }

    /// Adds the block at `handle` of `zone`. Returns where the index has it.
    pub(super) fn add(&mut self, zone: Zone, handle: Handle) -> Handle {
        let known = self.zones.iter().rposition(|known| known.file == zone.file);
        let number = known.unwrap_or_else(|| {
            self.zones.push(zone);
            self.zones.len() - 1
        });
        self.add_to(number as u32 + 1, handle)
    }

    fn add_to(&mut self, zone: u32, handle: Handle) -> Handle {
        let end = self.data_bytes();
        if let (Some(run), Some(start)) = (self.runs.last_mut(), self.starts.last())
            && run.zone == zone
            && follows(zone, handle.offset, run.offset + run.bytes)
        {
            run.bytes = handle.end() - run.offset;
            return Handle { offset: start + (handle.offset - run.offset), len: handle.len };
        }
        self.runs.push(Run { zone, offset: handle.offset, bytes: handle.len.into() });
        self.starts.push(end);
        Handle { offset: end, len: handle.len }
    }

    /// Returns the zones besides the own file.
    pub fn zones(&self) -> &[Zone] {
        &self.zones
    }

    /// Returns the runs, in the order of keys.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Bytes of all runs.
    pub fn data_bytes(&self) -> u64 {
        match (self.runs.last(), self.starts.last()) {
            (Some(run), Some(start)) => start + run.bytes,
            _ => 0,
        }
    }

    /// Bytes of the runs in the own file.
    pub fn own_bytes(&self) -> u64 {
        self.runs.iter().filter(|run| run.zone == 0).map(|run| run.bytes).sum()
    }

    /// Returns the zone, and the place in its file, of the block that the index has at `handle`; `None` if it does
    /// not lie within one run.
    pub fn place(&self, handle: Handle) -> Option<(usize, Handle)> {
        let at = self.starts.partition_point(|start| *start <= handle.offset).checked_sub(1)?;
        let (run, within) = (self.runs[at], handle.offset - self.starts[at]);
        let fits = within.checked_add(handle.len.into()).is_some_and(|end| end <= run.bytes);
        let place = Handle { offset: run.offset + within, len: handle.len };
        fits.then_some((run.zone as usize, place))
    }

    /// Returns what the manifest has of each zone.
    pub fn metas(&self) -> Vec<ZoneMeta> {
        let meta = |(number, zone): (usize, &Zone)| {
            let own = || self.runs.iter().filter(|run| run.zone as usize == number + 1);
            ZoneMeta {
                zone: *zone,
                live_bytes: own().map(|run| run.bytes).sum(),
                runs: own().count() as u64,
            }
        };
        self.zones.iter().enumerate().map(meta).collect()
    }

    /// Bytes of memory beside the value itself.
    pub fn memory_bytes(&self) -> usize {
        self.zones.capacity() * size_of::<Zone>()
            + self.runs.capacity() * size_of::<Run>()
            + self.starts.capacity() * size_of::<u64>()
    }
}

/// Returns whether a block at `offset` of `zone` follows one that ends at `end`. In the own file there may be padding
/// between them; elsewhere it may as well be a block that the table does not point at.
fn follows(zone: u32, offset: u64, end: u64) -> bool {
    let gap = offset.checked_sub(end);
    gap.is_some_and(|gap| gap == 0 || (zone == 0 && gap < PAGE_BYTES))
}

/// Returns the length of a list whose members take `least` bytes or more.
fn list_len(reader: &mut Reader<'_>, least: usize) -> FormatResult<u64> {
    let len = reader.varint()?;
    let max = (reader.remaining() / least) as u64;
    if len > max {
        return Err(reader.error(Problem::TooLong { what: "list of zones", len, max }));
    }
    Ok(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(file: u64) -> Zone {
        Zone { file: FileNo::new(file), salt: FileSalt::new(u64::MAX - file), size_bytes: 1 << 20 }
    }

    fn at(offset: u64, len: u32) -> Handle {
        Handle { offset, len }
    }

    fn sample() -> Zones {
        let mut zones = Zones::default();
        assert_eq!(zones.add_own(at(0, 4096)), at(0, 4096));
        assert_eq!(zones.add(zone(7), at(8192, 4096)), at(4096, 4096));
        assert_eq!(zones.add(zone(7), at(12288, 8192)), at(8192, 8192));
        assert_eq!(zones.add(zone(5), at(0, 100)), at(16384, 100));
        assert_eq!(zones.add(zone(7), at(0, 4096)), at(16484, 4096));
        assert_eq!(zones.add_own(at(4096, 300)), at(20580, 300));
        assert_eq!(zones.add_own(at(4500, 100)), at(20984, 100), "padding belongs to the run");
        zones
    }

    #[test]
    fn runs_come_back_and_say_where_blocks_are() {
        let zones = sample();
        let mut out = Vec::new();
        zones.encode(&mut out);
        let decoded = Zones::decode(&out, 4600).unwrap();
        assert_eq!(decoded, zones);
        assert_eq!(decoded.runs().len(), 5);
        for (sought, place) in [
            (at(0, 4096), Some((0, at(0, 4096)))),
            (at(8192, 8192), Some((1, at(12288, 8192)))),
            (at(16384, 100), Some((2, at(0, 100)))),
            (at(16484, 4096), Some((1, at(0, 4096)))),
            (at(20984, 100), Some((0, at(4500, 100)))),
            (at(20984, 101), None),
            (at(0, 4097), None),
            (at(u64::MAX, 1), None),
        ] {
            assert_eq!(decoded.place(sought), place, "{sought:?}");
        }
        let live: Vec<_> = zones.metas().iter().map(|meta| (meta.live_bytes, meta.runs)).collect();
        assert_eq!(live, [(16384, 2), (100, 1)]);
        assert_eq!(zones.own_bytes(), 4600);
    }

    #[test]
    fn lists_that_make_no_sense_are_refused() {
        let mut out = Vec::new();
        sample().encode(&mut out);
        assert!(Zones::decode(&out, 4599).is_err(), "beyond the own file");
        for cut in 0..out.len() {
            assert!(Zones::decode(&out[..cut], 4600).is_err(), "cut at {cut}");
        }
        let mut unused = sample();
        unused.zones.push(zone(9));
        let mut out = Vec::new();
        unused.encode(&mut out);
        assert!(Zones::decode(&out, 4600).is_err(), "a zone without runs");
        assert!(Zones::decode(&[0, 0], 0).is_err(), "no zones");
    }
}
