#![no_main]

use varve_trace::{Analysis, Reader, Record, Writer};

/// The records of a trace, up to what is wrong with it.
fn records(trace: &[u8]) -> Vec<Record> {
    Reader::new(trace).map(|reader| reader.map_while(Result::ok).collect()).unwrap_or_default()
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // One frame whose checksum is right, so that what decodes records is reached.
    let mut trace = b"varvetrc\x01".to_vec();
    trace.extend((data.len() as u32).to_le_bytes());
    trace.extend(crc32c::crc32c_append(crc32c::crc32c(&0_u64.to_le_bytes()), data).to_le_bytes());
    trace.extend(data);
    let found = records(&trace);
    let mut writer = Writer::new(Vec::new()).unwrap();
    found.iter().for_each(|record| writer.put(record).unwrap());
    assert_eq!(records(&writer.finish().unwrap()), found);
    let mut analysis = Analysis::default();
    found.iter().for_each(|record| analysis.learn(record));
    records(data);
});
