//! An overlay as a whole, with checksums that fit: what it says to own is what its records say, whatever length it claims, and takes
//! no more memory than they justify.
#![no_main]

use std::collections::BTreeMap;
use std::path::Path;

use varve_env::sim::SimEnv;
use varve_env::{Env, OpenMode};
use varve_fs::inspect_overlay;
use varve_schema::overlay::{
    OverlayChange, OverlayHeader, OverlayKind, OverlayRecord, OverlaySlot,
};
use varve_types::Timestamp;

/// Bytes of one change in the input: what and how far, the first block, how many.
const CHANGE_BYTES: usize = 17;
const OVERLAY: &str = "/I.blocks";

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// Numbers of all sizes that are in the base, if the low bits of `shift` say so.
fn number(shift: u8, raw: u64, blocks: u64) -> u64 {
    if shift & 0x40 == 0 { (raw >> (shift & 0x3f)) % (blocks + 1) } else { raw }
}

/// The runs that records say, each until the next begins.
fn add(own: &mut BTreeMap<u64, u64>, first: u64, mut end: u64) {
    let mut start = first;
    while let Some((&other, &to)) = own.range(..=end).next_back()
        && to >= start
    {
        own.remove(&other);
        (start, end) = (start.min(other), end.max(to));
    }
    own.insert(start, end);
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((head, changes)) = data.split_at_checked(CHANGE_BYTES) else { return };
    let kind = if head[0] & 1 == 0 { OverlayKind::Kept } else { OverlayKind::Written };
    let (base_len, salt) = (word(&head[1..9]), word(&head[9..]));
    let modified = Timestamp::default();
    let header = OverlayHeader { kind, salt, base_len, modified, is_covering: false };
    if !header.has_room() {
        return;
    }
    let env = SimEnv::new(0);
    let file = env.open(Path::new(OVERLAY), OpenMode::CreateOrOpen).unwrap();
    file.write_all_at(&header.encode(), 0).unwrap();
    let (mut index, mut limit) = (0, header.base_blocks());
    let (mut own, mut is_right) = (BTreeMap::new(), true);
    for change in changes.chunks_exact(CHANGE_BYTES) {
        let first = number(change[0], word(&change[1..9]), header.base_blocks());
        let count = number(
            change[0],
            word(&change[9..]),
            header.base_blocks() - first.min(header.base_blocks()),
        );
        let change = match change[0] & 0x80 {
            0 => OverlayChange::Own { first, count },
            _ => OverlayChange::Cut { first },
        };
        let bytes = OverlayRecord { change, boot: 0 }.encode(salt, index);
        is_right &= OverlayRecord::decode(&bytes, &header, index).is_ok();
        file.write_all_at(&bytes, OverlayRecord::offset(index)).unwrap();
        index += 1;
        match change {
            _ if !is_right => {}
            OverlayChange::Own { first, count } => add(&mut own, first, first + count),
            OverlayChange::Cut { first } => limit = limit.min(first),
        }
    }
    let slot = OverlaySlot { turn: 1, records: index };
    file.write_all_at(&slot.encode(salt), slot.offset()).unwrap();
    if kind == OverlayKind::Written {
        file.set_len(header.data_start() + base_len).unwrap();
    }
    let is_right = is_right && index <= header.records_max();
    match inspect_overlay(env.as_ref(), Path::new(OVERLAY)) {
        Ok(report) => {
            assert!(is_right);
            assert_eq!(report.limit, limit);
            let below = own.iter().filter(|(first, _)| **first < limit);
            let below: Vec<_> = below.map(|(first, to)| (*first, to.min(&limit) - first)).collect();
            assert_eq!(report.own, below);
        }
        Err(error) => assert!(!is_right, "{error}"),
    }
});
