#![no_main]

#[path = "../../crates/varve/src/upgrade/baton.rs"]
mod baton;

use baton::Baton;

// With the checksum put right, so that the code behind it is reached.
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let sealed = [data, &crc32c::crc32c(data).to_le_bytes()].concat();
    if let Ok(baton) = Baton::decode(&sealed) {
        assert_eq!(baton.encode(), sealed);
    }
});
