//! Overlay files: as version 1 wrote one, and under mutation.
#![allow(clippy::disallowed_methods, reason = "golden files are read from the source tree")]

use std::path::Path;

use varve_schema::overlay::{
    OverlayChange, OverlayHeader, OverlayKind, OverlayRecord, OverlaySlot, RECORDS_START,
};

use crate::exercise::overlay;
use crate::samples::time;

/// A file of four blocks, of which one is the overlay's own and the last is cut off; without its data.
fn sample() -> Vec<u8> {
    sample_of(OverlayKind::Written, false)
}

fn sample_of(kind: OverlayKind, is_covering: bool) -> Vec<u8> {
    let (salt, base_len) = (0x0123_4567_89ab_cdef, 250_000);
    let modified = time(1_700_000_000, 123_456_789);
    let header = OverlayHeader { kind, salt, base_len, modified, is_covering };
    let mut bytes = header.encode();
    bytes.resize(RECORDS_START as usize, 0);
    let slots = [OverlaySlot { turn: 2, records: 1 }, OverlaySlot { turn: 3, records: 2 }];
    for slot in slots {
        let (at, slot) = (slot.offset() as usize, slot.encode(header.salt));
        bytes[at..at + slot.len()].copy_from_slice(&slot);
    }
    for (index, change) in
        [OverlayChange::Own { first: 1, count: 1 }, OverlayChange::Cut { first: 3 }]
            .into_iter()
            .enumerate()
    {
        let record = OverlayRecord { change, boot: 7 };
        bytes.extend_from_slice(&record.encode(header.salt, index as u64));
    }
    bytes
}

#[test]
fn an_overlay_is_written_as_version_1_wrote_it() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1/overlay.blocks");
    if std::env::var_os("VARVE_BLESS").is_some() {
        std::fs::write(&path, sample()).unwrap();
    }
    let golden = std::fs::read(&path).unwrap();
    assert!(golden == sample());
    assert_eq!(overlay(&golden), 5, "all parts are read");
}

/// What is kept, which says since then that its file is as long as its blocks.
#[test]
fn a_covering_overlay_is_written_as_version_2_wrote_it() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v2/overlay.blocks");
    let bytes = sample_of(OverlayKind::Kept, true);
    if std::env::var_os("VARVE_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &bytes).unwrap();
    }
    assert!(std::fs::read(&path).unwrap() == bytes);
    assert_eq!(overlay(&bytes), 5, "all parts are read");
}

#[test]
fn every_flipped_bit_of_an_overlay_is_survived_and_noticed() {
    let bytes = sample();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1 << bit;
            // Behind a slot nothing is read, so that it is written as one sector.
            let is_read = !(4096 + 24..8192).contains(&at) && !(8192 + 24..12_288).contains(&at);
            assert_eq!(overlay(&bytes) < 5, is_read, "bit {bit} of byte {at}");
        }
    }
    (0..bytes.len()).for_each(|len| assert!(overlay(&bytes[..len]) < 5, "cut at {len}"));
}
