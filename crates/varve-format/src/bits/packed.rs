//! An array of equally wide integers.
//!
//! ```text
//! u64s: integer i takes the bits from i * width on, lowest first, and may cross into the next word
//! ```

use super::{WORD_BITS, low_mask, put_words, read_words};
use crate::FormatResult;
use crate::codec::Reader;

/// See the module's comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    words: Box<[u64]>,
    width: u32,
}

impl Packed {
    /// `len` zeros of `width` bits each, at most 64.
    pub(crate) fn zeros(len: usize, width: u32) -> Packed {
        let words = (len * width as usize).div_ceil(WORD_BITS);
        Packed { words: vec![0; words].into_boxed_slice(), width }
    }

    /// Reads `len` integers of `width` bits each, at most 64.
    pub(crate) fn decode(reader: &mut Reader<'_>, len: u64, width: u32) -> FormatResult<Packed> {
        let words = read_words(reader, len.saturating_mul(width.into()))?;
        Ok(Packed { words, width })
    }

    /// Appends the words.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_words(out, &self.words);
    }

    /// Returns the integer at `at`.
    #[inline]
    pub(crate) fn get(&self, at: usize) -> u64 {
        let bit = at * self.width as usize;
        let (word, off) = (bit / WORD_BITS, (bit % WORD_BITS) as u32);
        if self.width == 0 {
            return 0;
        }
        let mut value = self.words[word] >> off;
        if off + self.width > 64 {
            value |= self.words[word + 1] << (64 - off);
        }
        value & low_mask(self.width)
    }

    /// Puts the low bits of `value` at `at`.
    #[inline]
    pub(crate) fn set(&mut self, at: usize, value: u64) {
        let bit = at * self.width as usize;
        let (word, off) = (bit / WORD_BITS, (bit % WORD_BITS) as u32);
        if self.width == 0 {
            return;
        }
        let (mask, value) = (low_mask(self.width), value & low_mask(self.width));
        self.words[word] = self.words[word] & !(mask << off) | (value << off);
        if off + self.width > 64 {
            let (mask, value) = (mask >> (64 - off), value >> (64 - off));
            self.words[word + 1] = self.words[word + 1] & !mask | value;
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.words.len() * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_every_width_come_back_and_leave_their_neighbours_alone() {
        for width in 0..=64 {
            let value = |i: usize, salt: u64| (i as u64 + salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut packed = Packed::zeros(100, width);
            (0..100).for_each(|i| packed.set(i, value(i, 1)));
            (0..100).step_by(3).for_each(|i| packed.set(i, value(i, 2)));
            let mut out = Vec::new();
            packed.encode(&mut out);
            let again = Packed::decode(&mut Reader::new(&out), 100, width).unwrap();
            assert_eq!(again, packed);
            for i in 0..100 {
                let salt = if i % 3 == 0 { 2 } else { 1 };
                assert_eq!(again.get(i), value(i, salt) & low_mask(width), "{i} of {width} bits");
            }
        }
        assert!(Packed::decode(&mut Reader::new(&[0; 16]), u64::MAX, 9).is_err());
    }
}
