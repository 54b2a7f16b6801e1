//! Where a merge took its keys from, in the order of the keys.

use varve_format::filter::SubLevel;

use super::number::{MapId, MapNumber};

/// What one key takes besides its bytes: number, whether it was kept, and length.
const ENTRY_BYTES: usize = 6;

/// See the module's comment. Keys whose newest row was in a table without a number are left out.
#[derive(Debug)]
pub(crate) struct Moves {
    map: MapId,
    /// One after the other: number, 1 if rows of it went into the output, length as u32, key.
    bytes: Vec<u8>,
    bytes_max: usize,
    /// Where the entry of the last key begins, if the key is in.
    last: Option<usize>,
    /// Every key was in a table with a number.
    complete: bool,
    /// The first and the last key, listed or not.
    range: Option<(Vec<u8>, Vec<u8>)>,
}

/// One key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move<'a> {
    pub(super) key: &'a [u8],
    pub(super) from: SubLevel,
    pub(super) kept: bool,
}

impl Moves {
    /// None yet. With `bytes_max` bytes of them the merge is to end.
    pub(crate) fn new(map: MapId, bytes_max: usize) -> Moves {
        Moves { map, bytes: Vec::new(), bytes_max, last: None, complete: true, range: None }
    }

    /// Begins with the next key, whose newest row is in a table with this number.
    pub(crate) fn begin(&mut self, key: &[u8], origin: Option<MapNumber>) {
        let (_, end) = self.range.get_or_insert_with(|| (key.to_vec(), Vec::new()));
        end.clear();
        end.extend_from_slice(key);
        let Some(origin) = origin.filter(|origin| origin.map == self.map) else {
            (self.last, self.complete) = (None, false);
            return;
        };
        self.last = Some(self.bytes.len());
        self.bytes.extend_from_slice(&[origin.number.get(), 0]);
        self.bytes.extend_from_slice(&(key.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(key);
    }

    /// A row of the last key went into the output.
    pub(crate) fn kept(&mut self) {
        if let Some(last) = self.last {
            self.bytes[last + 1] = 1;
        }
    }

    /// Whether the merge is to end, so that the list stays short.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() >= self.bytes_max
    }

    pub(super) fn map(&self) -> MapId {
        self.map
    }

    /// Whether every key is listed.
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// The first and the last key of the merge, those included that are left out.
    pub(super) fn range(&self) -> Option<(&[u8], &[u8])> {
        self.range.as_ref().map(|(first, last)| (&first[..], &last[..]))
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = Move<'_>> {
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            let (&[number, kept, ref len @ ..], after) = rest.split_first_chunk::<ENTRY_BYTES>()?;
            let (key, after) = after.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            rest = after;
            Some(Move { key, from: SubLevel::new(number)?, kept: kept == 1 })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_come_back_in_order() {
        let (map, number) = (MapId(3), SubLevel::new(48).unwrap());
        let mut moves = Moves::new(map, 40);
        moves.begin(b"", Some(MapNumber { map, number }));
        moves.kept();
        moves.begin(&[7; 300], Some(MapNumber { map, number }));
        assert!(moves.is_full() && moves.is_complete());
        moves.begin(b"last", Some(MapNumber { map, number }));
        moves.begin(b"other map", Some(MapNumber { map: MapId(2), number }));
        moves.kept();
        assert!(!moves.is_complete());
        assert_eq!(moves.range(), Some((&b""[..], &b"other map"[..])));
        let found: Vec<_> = moves.iter().collect();
        let lens: Vec<_> = found.iter().map(|each| (each.key.len(), each.kept)).collect();
        assert_eq!(lens, [(0, true), (300, false), (4, false)]);
        assert!(found.iter().all(|each| each.from == number));
    }
}
