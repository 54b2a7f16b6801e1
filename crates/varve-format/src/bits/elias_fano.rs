//! A sorted list of integers in about 2 + log2(largest / length) bits each, searched in place.
//!
//! 1. Each integer is cut in two. The low parts are in an array.
//! 2. The high parts are counted in unary: integer i with high part h is the one at bit h + i, so the zeros between
//!    two ones count how much the high part grows.
//! 3. A search for how many integers are below a number finds the h-th zero, and then looks among the few integers
//!    with that high part. A read of integer i finds the i-th one.
//!
//! Invariant: the integers ascend; equal ones are allowed.
//!
//! ```text
//! varint  number of integers; if 0, nothing follows
//! varint  the largest
//! byte    bits of the low parts, 0 to 63
//!    8*n  low parts, an array of that width
//!    8*n  high parts: (largest >> low bits) + number of integers bits, lowest first
//! ```
//!
//! Source: Elias 1974; Vigna, Quasi-succinct indices, 2013. The positions of every 64th zero and one, which speed up
//! the search, are computed when the list is loaded.

use std::ops::Range;

use super::packed::Packed;
use super::{low_mask, put_words, read_words, select_in_word};
use crate::codec::{Reader, put_varint};
use crate::{FormatResult, Problem};

/// Every such many zeros or ones have their position noted.
const SAMPLE: usize = 64;

/// What a list is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Which are some number.
    Rank,
    /// Which one is the i-th.
    Get,
}

/// See the module's comment.
#[derive(Clone, Debug)]
pub(crate) struct EliasFano {
    len: usize,
    largest: u64,
    low_bits: u32,
    low: Packed,
    high: Box<[u64]>,
    access: Access,
    /// The position of every 64th zero, for [`Access::Rank`], or one, for [`Access::Get`].
    samples: Box<[u32]>,
}

/// Appends the list of `sorted`.
///
/// REQUIRES: ascending; equal ones are allowed. Fewer than 2^31.
pub(crate) fn encode(sorted: &[u64], out: &mut Vec<u8>) {
    put_varint(out, sorted.len() as u64);
    let Some(&largest) = sorted.last() else { return };
    let low_bits = (largest / sorted.len() as u64).checked_ilog2().unwrap_or(0);
    put_varint(out, largest);
    out.push(low_bits as u8);
    let mut low = Packed::zeros(sorted.len(), low_bits);
    let high_bits = (largest >> low_bits) as usize + sorted.len();
    let mut high = vec![0u64; high_bits.div_ceil(64)];
    for (i, &value) in sorted.iter().enumerate() {
        low.set(i, value);
        let bit = (value >> low_bits) as usize + i;
        high[bit / 64] |= 1 << (bit % 64);
    }
    low.encode(out);
    put_words(out, &high);
}

impl EliasFano {
    /// Reads a list.
    pub(crate) fn decode(reader: &mut Reader<'_>, access: Access) -> FormatResult<EliasFano> {
        let start = reader.clone();
        let bad = |rule| Err(start.error(Problem::Invalid(rule)));
        let len = reader.varint()?;
        let room = reader.remaining() as u64 * 8;
        if len > room.min(1 << 31) {
            let problem = Problem::TooLong { what: "sorted list", len, max: room };
            return Err(start.error(problem));
        }
        let (largest, low_bits) =
            if len == 0 { (0, 0) } else { (reader.varint()?, u32::from(reader.u8()?)) };
        if low_bits > 63 {
            return bad("a sorted list whose low parts are too wide");
        }
        let low = Packed::decode(reader, len, low_bits)?;
        let high_bits = if len == 0 { 0 } else { (largest >> low_bits).saturating_add(len) };
        if high_bits > room {
            return bad("a sorted list whose high parts are longer than what is left");
        }
        let high = read_words(reader, high_bits)?;
        let (len, samples) = (len as usize, Box::default());
        let mut list = EliasFano { len, largest, low_bits, low, high, access, samples };
        if !list.is_sorted() {
            return bad("a sorted list that is out of order or of another length");
        }
        list.samples = list.sampled();
        Ok(list)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the integers from the `from`th on.
    pub(crate) fn iter_from(&self, from: usize) -> impl Iterator<Item = u64> + '_ {
        let start = if from < self.len { self.select(from, true) } else { 0 };
        let mut word_at = start / 64;
        let mut word = self.high.get(word_at).copied().unwrap_or(0) & !low_mask(start as u32 % 64);
        (from..self.len).map(move |i| {
            while word == 0 {
                word_at += 1;
                let Some(&next) = self.high.get(word_at) else { break };
                word = next;
            }
            let bit = word_at * 64 + (word.trailing_zeros() as usize % 64);
            word &= word.wrapping_sub(1);
            self.value(bit.saturating_sub(i), i)
        })
    }

    /// Returns the `i`th integer.
    ///
    /// REQUIRES: made for [`Access::Get`], and `i` below the length.
    #[inline]
    pub(crate) fn get(&self, i: usize) -> u64 {
        self.value(self.select(i, true) - i, i)
    }

    /// Returns the `i`th integer and the one before it, or 0 before the first.
    ///
    /// REQUIRES: made for [`Access::Get`], and `i` below the length.
    #[inline]
    pub(crate) fn get_with_before(&self, i: usize) -> (u64, u64) {
        let mut from = self.iter_from(i.saturating_sub(1));
        let mut next = || from.next().unwrap_or(self.largest);
        let before = if i == 0 { 0 } else { next() };
        (before, next())
    }

    /// Returns the numbers of the integers that are `value`: from how many are below it to how many are not above.
    ///
    /// REQUIRES: made for [`Access::Rank`].
    #[inline]
    pub(crate) fn ranks(&self, value: u64) -> Range<usize> {
        let (part, low) = (self.part_of(value), value & low_mask(self.low_bits));
        let first = self.search(part.clone(), |found| found < low);
        // Nearly always there is one, or none.
        let is_it = |at| at < part.end && self.low.get(at) == low;
        if !is_it(first) {
            return first..first;
        }
        let next = first + 1;
        first..if is_it(next) { self.search(next..part.end, |found| found <= low) } else { next }
    }

    /// Returns where the integers are that have the high part of `value`: between the zero before it and the zero
    /// after it.
    #[inline]
    fn part_of(&self, value: u64) -> Range<usize> {
        if self.len == 0 || value > self.largest {
            return self.len..self.len;
        }
        let part = (value >> self.low_bits) as usize;
        let zero_before = part.checked_sub(1).map(|zero| self.select(zero, false));
        let start = zero_before.map_or(0, |bit| bit + 1 - part);
        start..start + self.ones_at(start + part)
    }

    /// Returns the first number in `range` whose low part is not as `before` says, where all those are that come
    /// first.
    #[inline]
    fn search(&self, range: Range<usize>, before: impl Fn(u64) -> bool) -> usize {
        let Range { start: mut first, mut end } = range;
        while first < end {
            let middle = first + (end - first) / 2;
            if before(self.low.get(middle)) {
                first = middle + 1;
            } else {
                end = middle;
            }
        }
        first
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<EliasFano>()
            + self.low.memory_bytes()
            + self.high.len() * 8
            + self.samples.len() * size_of::<u32>()
    }

    #[inline]
    fn value(&self, part: usize, i: usize) -> u64 {
        ((part as u64) << self.low_bits) | self.low.get(i)
    }

    /// Returns how many ones follow each other from bit `bit` on.
    fn ones_at(&self, bit: usize) -> usize {
        let mut word_at = bit / 64;
        let mut skipped = bit % 64;
        let mut ones = 0;
        while let Some(word) = self.high.get(word_at) {
            let run = (word >> skipped).trailing_ones() as usize;
            ones += run;
            if run < 64 - skipped {
                break;
            }
            (word_at, skipped) = (word_at + 1, 0);
        }
        ones
    }

    /// Returns the position of the `nth` one, or zero, of the high parts.
    #[inline]
    fn select(&self, nth: usize, ones: bool) -> usize {
        let sampled = (self.access == Access::Get) == ones;
        let sample = if sampled { self.samples.get(nth / SAMPLE) } else { None };
        let start = sample.map_or(0, |&bit| bit as usize);
        let mut left = if sample.is_some() { nth % SAMPLE } else { nth };
        let flip = if ones { 0 } else { u64::MAX };
        let mut word_at = start / 64;
        let mut skip = low_mask((start % 64) as u32);
        while let Some(&word) = self.high.get(word_at) {
            let word = (word ^ flip) & !skip;
            let count = word.count_ones() as usize;
            if left < count {
                return word_at * 64 + select_in_word(word, left as u32) as usize;
            }
            left -= count;
            skip = 0;
            word_at += 1;
        }
        self.high.len() * 64
    }

    fn sampled(&self) -> Box<[u32]> {
        let flip = if self.access == Access::Get { 0 } else { u64::MAX };
        let (mut samples, mut seen) = (Vec::new(), 0);
        for (at, word) in self.high.iter().enumerate() {
            let word = word ^ flip;
            let count = word.count_ones() as usize;
            while samples.len() * SAMPLE < seen + count {
                let within = select_in_word(word, (samples.len() * SAMPLE - seen) as u32);
                samples.push((at * 64) as u32 + within);
            }
            seen += count;
        }
        samples.into_boxed_slice()
    }

    /// Returns whether the ones are as many as they should be and the integers ascend to the largest.
    fn is_sorted(&self) -> bool {
        let ones: usize = self.high.iter().map(|word| word.count_ones() as usize).sum();
        let mut last = 0;
        ones == self.len
            && self.iter_from(0).all(|value| value >= std::mem::replace(&mut last, value))
            && last == self.largest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists() -> Vec<Vec<u64>> {
        let spread = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut lists = vec![
            vec![],
            vec![0],
            vec![u64::MAX],
            vec![0, u64::MAX],
            vec![7; 1000],
            (0..3000).collect(),
            (0..3000).map(|i| i * i * i).collect(),
            (0..2000).map(|i| i / 300).collect(),
        ];
        for count in [2, 100, 5000] {
            for shift in [0, 20, 50] {
                let mut list: Vec<u64> = (0..count).map(|i| spread(i) >> shift).collect();
                list.sort_unstable();
                lists.push(list);
            }
        }
        lists
    }

    #[test]
    fn lists_come_back_and_are_searched_like_slices() {
        for list in lists() {
            let mut out = Vec::new();
            encode(&list, &mut out);
            let mut reader = Reader::new(&out);
            let ranks = EliasFano::decode(&mut reader, Access::Rank).unwrap();
            reader.finish().unwrap();
            let gets = EliasFano::decode(&mut Reader::new(&out), Access::Get).unwrap();
            assert!(gets.iter_from(0).eq(list.iter().copied()));
            assert!(gets.iter_from(list.len() / 2).eq(list[list.len() / 2..].iter().copied()));
            assert_eq!(gets.len(), list.len());
            for (i, &value) in list.iter().enumerate() {
                assert_eq!(gets.get(i), value);
                let before = if i == 0 { 0 } else { list[i - 1] };
                assert_eq!(gets.get_with_before(i), (before, value));
                for probe in [value.saturating_sub(1), value, value.saturating_add(1)] {
                    let below = list.partition_point(|v| *v < probe);
                    let through = list.partition_point(|v| *v <= probe);
                    assert_eq!(ranks.ranks(probe), below..through);
                }
            }
        }
    }

    #[test]
    fn room_is_what_theory_says() {
        let list: Vec<u64> = (0..10_000).map(|i| i * 1000 + i * i % 997).collect();
        let mut out = Vec::new();
        encode(&list, &mut out);
        let bits = out.len() as f64 * 8.0 / 10_000.0;
        assert!(bits < 2.0 + 1000f64.log2() + 0.1, "{bits} bits each");
    }

    #[test]
    fn bad_lists_are_refused() {
        let list: Vec<u64> = (0..300).map(|i| i * 37).collect();
        let mut good = Vec::new();
        encode(&list, &mut good);
        for cut in 0..good.len() {
            assert!(EliasFano::decode(&mut Reader::new(&good[..cut]), Access::Rank).is_err());
        }
        let mut refused = 0;
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let Ok(list) = EliasFano::decode(&mut Reader::new(&bad), Access::Rank) else {
                refused += 1;
                continue;
            };
            assert!(list.is_sorted());
        }
        assert!(refused > 300 * 2, "{refused}");
    }
}
