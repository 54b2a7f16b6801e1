//! Integers of a few bits: streams, arrays and sorted lists that take little more space than their content has
//! information.
//!
//! 1. [`BitWriter`] and [`BitReader`] are a stream of codes of any length, first bit first (the tries of
//!    [`crate::index`]).
//! 2. [`packed::Packed`] is an array of equally wide integers.
//! 3. [`elias_fano::EliasFano`] is a sorted list that is searched in place.
//!
//! Invariants: all are in words of 64 bits, which are little-endian on disk. Unused bits of the last word are zero,
//! so that equal contents have equal bytes.

pub(crate) mod elias_fano;
pub(crate) mod packed;

use crate::codec::Reader;
use crate::{FormatResult, Problem};

pub(crate) const WORD_BITS: usize = 64;
const WORD_BYTES: usize = WORD_BITS / 8;

/// Appends `words` to `out`.
pub(crate) fn put_words(out: &mut Vec<u8>, words: &[u64]) {
    out.reserve(words.len() * WORD_BYTES);
    words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
}

/// Takes the words that hold `bits` bits. Those of the last word beyond them must be zero.
pub(crate) fn read_words(reader: &mut Reader<'_>, bits: u64) -> FormatResult<Box<[u64]>> {
    let count = bits.div_ceil(WORD_BITS as u64);
    let room = (reader.remaining() / WORD_BYTES) as u64;
    if count > room {
        let (needed, left) = (count.saturating_mul(8), reader.remaining() as u64);
        return Err(reader.error(Problem::Truncated { needed, left }));
    }
    let mut words = vec![0; count as usize].into_boxed_slice();
    for word in &mut words {
        *word = reader.u64()?;
    }
    let used = (bits % WORD_BITS as u64) as u32;
    let last = words.last().copied().unwrap_or(0);
    if used != 0 && last >> used != 0 {
        return Err(reader.error(Problem::Invalid("bits that are not zero after the last field")));
    }
    Ok(words)
}

/// Returns the low `bits` bits set, up to 64.
#[inline]
pub(crate) fn low_mask(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// One in each byte of a word.
const EACH_BYTE: u64 = 0x0101_0101_0101_0101;
/// The highest bit of each byte.
const HIGHEST: u64 = EACH_BYTE << 7;

/// Returns the position of the `nth` one, counted from 0, from the lowest bit up.
///
/// REQUIRES: `word` has more than `nth` ones.
///
/// Source: Vigna, Broadword implementation of rank/select queries, 2008: without a branch that the processor would guess wrong.
#[inline]
pub(crate) fn select_in_word(word: u64, nth: u32) -> u32 {
    let pairs = word - (word >> 1 & 0x5555_5555_5555_5555);
    let fours = (pairs & 0x3333_3333_3333_3333) + (pairs >> 2 & 0x3333_3333_3333_3333);
    let through_byte = sums((fours + (fours >> 4)) & 0x0f0f_0f0f_0f0f_0f0f);
    let byte_at = 8 * up_to(through_byte, nth);
    let before = (through_byte << 8 >> byte_at) as u32 & 0xff;
    // The bits of the byte, each in a byte of its own.
    let spread = ((word >> byte_at & 0xff) * EACH_BYTE) & 0x8040_2010_0804_0201;
    let ones = (spread | ((spread | HIGHEST) - EACH_BYTE)) >> 7 & EACH_BYTE;
    byte_at + up_to(sums(ones), nth - before)
}

/// Of the numbers in the bytes of `word` the sum of each with those in lower bytes.
#[inline]
fn sums(word: u64) -> u64 {
    word.wrapping_mul(EACH_BYTE)
}

/// Returns how many of the numbers in the bytes of `word`, each at most 64, are at most `bound`, which is less than
/// 64.
#[inline]
fn up_to(word: u64, bound: u32) -> u32 {
    let not_above = ((u64::from(bound) * EACH_BYTE) | HIGHEST) - word;
    (sums(not_above >> 7 & EACH_BYTE) >> 56) as u32
}

/// A stream of bits in the making. The first bit of a word is its highest.
#[derive(Debug, Default)]
pub(crate) struct BitWriter {
    words: Vec<u64>,
    bits: u64,
}

impl BitWriter {
    /// Bits so far.
    pub(crate) fn bits(&self) -> u64 {
        self.bits
    }

    /// Appends the low `width` bits of `value`, highest first.
    pub(crate) fn put(&mut self, value: u64, width: u32) {
        let value = value & low_mask(width);
        let used = (self.bits % 64) as u32;
        if used == 0 && width > 0 {
            self.words.push(0);
        }
        let room = 64 - used;
        if let Some(last) = self.words.last_mut()
            && width > 0
        {
            *last |= if width <= room { value << (room - width) } else { value >> (width - room) };
        }
        if width > room {
            self.words.push(value << (64 - (width - room)));
        }
        self.bits += u64::from(width);
    }

    /// Appends `value` as an Elias-gamma code: as many zeros as it has bits after its highest, then
    /// itself.
    ///
    /// REQUIRES: 1 to 2^32 - 1.
    pub(crate) fn put_gamma(&mut self, value: u64) {
        let width = 64 - value.leading_zeros();
        self.put(value, 2 * width - 1);
    }

    /// Returns the words. Highest bit first, so not zero-padded in the sense of [`read_words`]: unused bits are the
    /// lowest of the last word, and zero.
    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }
}

/// A place in a stream of bits. Beyond its end there are zeros, so that a reader of checked content
/// need not check again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BitReader<'a> {
    words: &'a [u64],
    at: u64,
}

impl<'a> BitReader<'a> {
    /// Returns the place `at` bits into `words`.
    #[inline]
    pub(crate) fn new(words: &'a [u64], at: u64) -> BitReader<'a> {
        BitReader { words, at }
    }

    /// Bits read so far, counted from the start of the words.
    #[inline]
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Returns the next 64 bits, the first of them highest.
    #[inline]
    pub(crate) fn peek(&self) -> u64 {
        let (word, off) = ((self.at / 64) as usize, self.at % 64);
        let first = self.words.get(word).copied().unwrap_or(0);
        if off == 0 {
            return first;
        }
        let second = self.words.get(word + 1).copied().unwrap_or(0);
        (first << off) | (second >> (64 - off))
    }

    /// Moves on.
    #[inline]
    pub(crate) fn skip(&mut self, bits: u32) {
        self.at += u64::from(bits);
    }

    /// Returns the next `width` bits as a number, at most 64.
    #[inline]
    pub(crate) fn take(&mut self, width: u32) -> u64 {
        let value = if width == 0 { 0 } else { self.peek() >> (64 - width) };
        self.skip(width);
        value
    }

    /// Returns the next Elias-gamma code; 0 if there is none.
    #[inline]
    pub(crate) fn gamma(&mut self) -> u64 {
        let zeros = self.peek().leading_zeros();
        if zeros >= 32 {
            self.skip(64);
            return 0;
        }
        self.take(2 * zeros + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_come_back_at_every_width() {
        let mut writer = BitWriter::default();
        let mut expected = Vec::new();
        for round in 0..200u64 {
            let width = (round * 7 % 65) as u32;
            let value = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) & low_mask(width);
            writer.put(value, width);
            writer.put_gamma(1 + round * round * round);
            expected.push((width, value));
        }
        assert_eq!(writer.words().len() as u64, writer.bits().div_ceil(64));
        let mut reader = BitReader::new(writer.words(), 0);
        for (round, (width, value)) in expected.into_iter().enumerate() {
            assert_eq!(reader.take(width), value);
            assert_eq!(reader.gamma(), 1 + (round as u64).pow(3));
        }
        assert_eq!(reader.at(), writer.bits());
        assert_eq!(reader.gamma(), 0, "nothing is left");
    }

    #[test]
    fn ones_are_found_by_number() {
        for word in [1, u64::MAX, 1 << 63, 0x8000_0000_8000_0001, 0x0123_4567_89ab_cdef] {
            let ones: Vec<u32> = (0..64).filter(|bit| word >> bit & 1 == 1).collect();
            for (nth, at) in ones.into_iter().enumerate() {
                assert_eq!(select_in_word(word, nth as u32), at);
            }
        }
    }
}
