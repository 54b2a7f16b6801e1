//! Decoders on damaged rows: no panic, and whatever is accepted has one encoding.

use bytes::Bytes;

use crate::exercise::{exercise, key};
use crate::samples::samples;

#[test]
fn every_flipped_bit_and_every_cut_is_survived() {
    for sample in samples() {
        for at in 0..sample.bytes.len() {
            for bit in 0..8 {
                let mut bytes = sample.bytes.clone();
                bytes[at] ^= 1 << bit;
                exercise(sample.recode, &bytes);
            }
            for value in [0, 0x7f, 0x80, 0xff] {
                let mut bytes = sample.bytes.clone();
                bytes[at] = value;
                exercise(sample.recode, &bytes);
            }
            let cut = Bytes::copy_from_slice(&sample.bytes[..at]);
            assert!((sample.recode)(&cut).is_err(), "{} cut at {at}", sample.name);
        }
        let mut longer = sample.bytes.clone();
        longer.push(0);
        assert!((sample.recode)(&Bytes::from(longer)).is_err(), "{} with a byte more", sample.name);
    }
}

#[test]
fn a_row_of_another_version_is_refused() {
    // Rows of lookups have the handover's version.
    for sample in samples().iter().filter(|sample| !sample.name.starts_with("lookups-")) {
        let mut bytes = sample.bytes.clone();
        bytes[0] = 2;
        let error = (sample.recode)(&Bytes::from(bytes)).unwrap_err();
        assert_eq!((error.what, error.offset), ("an unknown row version", 0), "{}", sample.name);
    }
}

#[test]
fn every_kind_of_key_is_read_or_refused() {
    for len in 0..=17 {
        for byte in [0, 1, 2, 0x7f, 0x80, 0xff] {
            key(&vec![byte; len]);
        }
    }
}
