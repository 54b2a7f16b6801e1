#![no_main]

#[path = "../../crates/varve-daemon/src/upgrade/handover_message.rs"]
#[allow(dead_code, reason = "the target decodes and encodes only")]
mod handover_message;

use handover_message::HandoverMessage;

// With the checksum put right, so that the code behind it is reached.
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let sealed = [data, &crc32c::crc32c(data).to_le_bytes()].concat();
    if let Ok(message) = HandoverMessage::decode(&sealed) {
        assert_eq!(message.encode(), sealed);
    }
});
