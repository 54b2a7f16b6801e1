//! How a node of a trie says how many of its keys go left.
//!
//! Of n uniformly spread keys, l go left as often as l of n coins show heads. Up to 16 keys the code is
//! Huffman's for those binomial chances; above, the distance from half of n as an Elias-gamma code, which
//! the binomial distribution's sharp peak makes short (SILT, section 4.2; SlimDB 5.3.1).
//!
//! ```text
//! n of 2 to 16   the canonical Huffman code of l among 0..=n, whose weights are the binomial
//!                coefficients; of equal weights the one with the smaller l merges first, of equal
//!                lengths the smaller l has the smaller code
//! n above 16     gamma(2 * (l - n/2) + 1) if l >= n/2, else gamma(2 * (n/2 - l))
//! ```

use crate::bits::{BitReader, BitWriter};

/// The most keys whose splits have a Huffman code.
const HUFFMAN_KEYS_MAX: usize = 16;
const SYMBOLS_MAX: usize = HUFFMAN_KEYS_MAX + 1;
/// Codes of up to this length are looked up, longer ones searched.
const LOOKUP_BITS: u32 = 8;

/// The code for one number of keys.
struct Code {
    lens: [u8; SYMBOLS_MAX],
    codes: [u16; SYMBOLS_MAX],
    /// By the next 8 bits: what goes left, and the length of its code; length 0 if that is longer.
    lookup: [(u8, u8); 1 << LOOKUP_BITS],
}

/// By number of keys.
static CODES: [Code; SYMBOLS_MAX] = codes();

/// Appends that `left` of `keys` keys go left.
///
/// REQUIRES: `left` at most `keys`, `keys` at least 2 and below 2^30.
pub(super) fn put_split(out: &mut BitWriter, keys: usize, left: usize) {
    if let Some(code) = CODES.get(keys) {
        out.put(code.codes[left].into(), code.lens[left].into());
        return;
    }
    let half = keys / 2;
    let gamma = if left >= half { 2 * (left - half) + 1 } else { 2 * (half - left) };
    out.put_gamma(gamma as u64);
}

/// Returns how many of `keys` keys go left; `None` if the bits say nothing possible.
///
/// REQUIRES: `keys` at least 2.
#[inline]
pub(super) fn take_split(bits: &mut BitReader<'_>, keys: usize) -> Option<usize> {
    let Some(code) = CODES.get(keys) else {
        let gamma = bits.gamma() as usize;
        let half = keys / 2;
        let left = if gamma % 2 == 1 { half + gamma / 2 } else { half.checked_sub(gamma / 2)? };
        return (gamma > 0 && left <= keys).then_some(left);
    };
    let next = bits.peek();
    let (left, len) = code.lookup[(next >> (64 - LOOKUP_BITS)) as usize];
    if len > 0 {
        bits.skip(len.into());
        return Some(left.into());
    }
    let found = (0..=keys)
        .find(|&left| next >> (64 - u32::from(code.lens[left])) == u64::from(code.codes[left]))?;
    bits.skip(code.lens[found].into());
    Some(found)
}

const fn codes() -> [Code; SYMBOLS_MAX] {
    const EMPTY: Code = Code {
        lens: [0; SYMBOLS_MAX],
        codes: [0; SYMBOLS_MAX],
        lookup: [(0, 0); 1 << LOOKUP_BITS],
    };
    let mut all = [EMPTY; SYMBOLS_MAX];
    let mut keys = 2;
    while keys <= HUFFMAN_KEYS_MAX {
        all[keys] = code(huffman_lens(keys), keys + 1);
        keys += 1;
    }
    // With fewer than two keys nothing splits: one bit, so that whoever asks all the same goes on.
    all[0].lens = [1; SYMBOLS_MAX];
    all[1].lens = [1; SYMBOLS_MAX];
    all
}

/// Returns the lengths of the code of the splits of `keys` keys.
const fn huffman_lens(keys: usize) -> [u8; SYMBOLS_MAX] {
    let mut weights = [0u32; SYMBOLS_MAX];
    let mut members = [0u32; SYMBOLS_MAX];
    let mut lens = [0; SYMBOLS_MAX];
    let mut left = 0;
    while left <= keys {
        weights[left] =
            if left == 0 { 1 } else { weights[left - 1] * (keys - left + 1) as u32 / left as u32 };
        members[left] = 1 << left;
        left += 1;
    }
    let mut merges = 0;
    while merges < keys {
        let first = lightest(&weights, SYMBOLS_MAX);
        let second = lightest(&weights, first);
        weights[first] += weights[second];
        weights[second] = 0;
        members[first] |= members[second];
        let mut symbol = 0;
        while symbol <= keys {
            lens[symbol] += (members[first] >> symbol & 1) as u8;
            symbol += 1;
        }
        merges += 1;
    }
    lens
}

/// Returns the smallest weight's place that is not 0, and not `except`; the first of equal ones.
const fn lightest(weights: &[u32; SYMBOLS_MAX], except: usize) -> usize {
    let (mut best, mut at) = (SYMBOLS_MAX, 0);
    while at < SYMBOLS_MAX {
        let is_lighter = best == SYMBOLS_MAX || weights[at] < weights[best];
        if at != except && weights[at] > 0 && is_lighter {
            best = at;
        }
        at += 1;
    }
    best
}

/// Returns the canonical code of these lengths.
const fn code(lens: [u8; SYMBOLS_MAX], symbols: usize) -> Code {
    let mut made = Code { lens, codes: [0; SYMBOLS_MAX], lookup: [(0, 0); 1 << LOOKUP_BITS] };
    let (mut next, mut len) = (0u32, 1u32);
    while len <= HUFFMAN_KEYS_MAX as u32 {
        let mut symbol = 0;
        while symbol < symbols {
            if lens[symbol] as u32 == len {
                made.codes[symbol] = next as u16;
                if len <= LOOKUP_BITS {
                    let mut at = next << (LOOKUP_BITS - len);
                    while at < (next + 1) << (LOOKUP_BITS - len) {
                        made.lookup[at as usize] = (symbol as u8, len as u8);
                        at += 1;
                    }
                }
                next += 1;
            }
            symbol += 1;
        }
        next <<= 1;
        len += 1;
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_split_comes_back() {
        let sizes = [2, 3, 5, 8, 15, 16, 17, 18, 31, 100, 129, 100_000];
        let splits = sizes.iter().flat_map(|&keys| {
            (0..=keys).step_by(1 + keys / 300).chain([keys]).map(move |left| (keys, left))
        });
        let splits: Vec<(usize, usize)> = splits.collect();
        let mut out = BitWriter::default();
        splits.iter().for_each(|&(keys, left)| put_split(&mut out, keys, left));
        let mut bits = BitReader::new(out.words(), 0);
        for (keys, left) in splits {
            assert_eq!(take_split(&mut bits, keys), Some(left), "{left} of {keys}");
        }
        assert_eq!(bits.at(), out.bits());
    }

    #[test]
    fn codes_are_complete_and_near_their_entropy() {
        for (keys, code) in CODES.iter().enumerate().skip(2) {
            let lens = &code.lens[..=keys];
            let kraft: f64 = lens.iter().map(|&len| 0.5f64.powi(len.into())).sum();
            assert_eq!(kraft, 1.0, "{keys}");
            let (mut chance, mut entropy, mut mean) = (0.5f64.powi(keys as i32), 0.0, 0.0);
            for (left, &len) in lens.iter().enumerate() {
                entropy -= chance * chance.log2();
                mean += chance * f64::from(len);
                chance *= (keys - left) as f64 / (left + 1) as f64;
            }
            assert!(mean >= entropy && mean < entropy + 0.1, "{keys}: {mean} over {entropy}");
        }
    }

    #[test]
    fn what_is_no_code_is_refused() {
        assert_eq!(take_split(&mut BitReader::new(&[], 0), 17), None);
        let mut out = BitWriter::default();
        out.put_gamma(2 * 12 + 1);
        assert_eq!(take_split(&mut BitReader::new(out.words(), 0), 20), None);
        let mut out = BitWriter::default();
        out.put_gamma(2 * 12);
        assert_eq!(take_split(&mut BitReader::new(out.words(), 0), 20), None);
    }
}
