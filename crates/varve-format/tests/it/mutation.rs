//! Every decoder on thousands of damaged samples; one seed, so that a failure repeats.

use bytes::Bytes;
use varve_format::index::IndexPolicy;
use varve_format::log::LogKind;
use varve_format::section::{Compression, Handle, open_section};
use varve_format::table::{FOOTER_BYTES, Footer};

use varve_testkit::rng::MachineRng as Rng;

use crate::random::below;
use crate::{exercise, sample};

const ROUNDS: u64 = 5000;

/// Changes `data` in one to four places.
fn mutate(rng: &mut Rng, data: &mut Vec<u8>) {
    for _ in 0..=below(rng, 4) {
        let at = below(rng, data.len());
        match below(rng, 7) {
            0 if !data.is_empty() => data[at] ^= 1 << below(rng, 8),
            1 if !data.is_empty() => data[at] = [0, 1, 0x7f, 0x80, 0xff][below(rng, 5)],
            2 => data.truncate(at),
            3 => data.insert(at.min(data.len()), rng.next_u64() as u8),
            4 if !data.is_empty() => {
                data.remove(at);
            }
            5 if data.len() >= 8 => {
                let from = below(rng, data.len() - 7);
                let to = below(rng, data.len() - 7);
                data.copy_within(from..from + 8, to);
            }
            _ => {
                let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
                let len = 1 + below(rng, huge.len());
                let end = (at + len).min(data.len());
                data.splice(at.min(end)..end, huge[huge.len() - len..].iter().copied());
            }
        }
    }
}

/// `decode` on `good`, and on damaged copies of it.
fn storm(seed: u64, good: &[u8], decode: fn(&[u8])) {
    assert!(!good.is_empty());
    decode(good);
    decode(&[]);
    let mut rng = Rng::new(seed);
    for _ in 0..ROUNDS {
        let mut data = good.to_vec();
        mutate(&mut rng, &mut data);
        decode(&data);
    }
}

/// The content of one of the sample table's sections.
fn section_of(pick: fn(&Footer) -> Handle) -> Bytes {
    section_in(sample::table(Compression::None), pick)
}

fn section_in(table: Vec<u8>, pick: fn(&Footer) -> Handle) -> Bytes {
    let table = Bytes::from(table);
    let footer_at = table.len() - FOOTER_BYTES;
    let footer = Footer::decode(&table[footer_at..], sample::SALT, footer_at as u64).unwrap();
    let handle = pick(&footer);
    let range = handle.offset as usize..handle.end() as usize;
    open_section(&table.slice(range), sample::SALT, handle.offset).unwrap()
}

#[test]
fn logs() {
    storm(1, &sample::wal(), exercise::log);
    storm(2, &sample::manifest(), exercise::log);
}

#[test]
fn log_headers() {
    let mut payload = Vec::new();
    sample::log_header(LogKind::Wal).encode(&mut payload);
    storm(3, &payload, exercise::log_header);
}

#[test]
fn batches() {
    storm(4, &sample::batch(), exercise::batch);
}

#[test]
fn edits() {
    storm(5, &sample::edit_payload(), exercise::edit);
}

#[test]
fn blocks() {
    sample::blocks().iter().for_each(|block| storm(6, block, exercise::block));
}

#[test]
fn sections() {
    let mut packed = 100u32.to_le_bytes().to_vec();
    packed.extend_from_slice(&lz4_flex::block::compress(&[7; 100]));
    packed.push(Compression::Lz4 as u8);
    storm(7, &packed, exercise::section);
    let padded = b"content\0\0\0\0\x04\0\x03";
    storm(13, padded, exercise::section);
    [&packed[..], padded].iter().for_each(|section| storm(63, section, exercise::lost_section));
}

#[test]
fn footers() {
    let table = sample::table(Compression::None);
    storm(8, &table[table.len() - FOOTER_BYTES..], exercise::footer);
}

#[test]
fn indexes() {
    storm(9, &section_of(|footer| footer.index), exercise::index);
    for index in [IndexPolicy::EliasFano, IndexPolicy::ThreeLevel] {
        let content = section_in(sample::paged_table(index), |footer| footer.index);
        storm(12, &content, exercise::index);
    }
}

#[test]
fn filters() {
    for filter in sample::FILTERS {
        let table = sample::filtered_table(filter);
        storm(10, &section_in(table, |footer| footer.filter.unwrap()), exercise::filter);
    }
}

#[test]
fn zone_lists() {
    let table = Bytes::from(sample::stitched_table());
    let at = table.len() - FOOTER_BYTES;
    let handle =
        Footer::decode(&table[at..], sample::STITCHED_SALT, at as u64).unwrap().zones.unwrap();
    let range = handle.offset as usize..handle.end() as usize;
    let content = open_section(&table.slice(range), sample::STITCHED_SALT, handle.offset).unwrap();
    storm(16, &content, exercise::zones);
}

#[test]
fn segments() {
    let (segment, pointers) = sample::segment(Compression::None);
    storm(19, &segment, exercise::segment);
    let mut row = Vec::new();
    pointers[9].encode(&mut row);
    storm(17, &row, exercise::segment);
}

#[test]
fn all_properties() {
    storm(11, &section_of(|footer| footer.properties), exercise::properties);
    let separated = section_in(sample::separated_table(), |footer| footer.properties);
    storm(18, &separated, exercise::properties);
}

#[test]
fn saved_maps() {
    storm(61, &sample::saved_map_content(), exercise::saved_map);
    storm(62, &sample::map_file(), exercise::map_file);
}
