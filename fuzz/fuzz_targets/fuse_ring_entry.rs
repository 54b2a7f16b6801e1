#![no_main]

#[path = "../../crates/varve-fuse/src/protocol/constants.rs"]
#[allow(dead_code, reason = "the target decodes only")]
mod constants;
#[path = "../../crates/varve-fuse/src/protocol/request.rs"]
#[allow(dead_code, reason = "the target looks at few of the fields")]
mod request;
#[path = "../../crates/varve-fuse/src/protocol/ring.rs"]
#[allow(dead_code, reason = "the target decodes only")]
mod ring;

/// What the layout takes from the encoder of answers.
mod reply {
    pub(crate) fn header(_: u64, _: i32, _: usize) -> [u8; 16] {
        [0; 16]
    }
}

use request::{Header, Request};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // An entry of the machine's size, its fixed parts and the payload's begin from the input.
    let mut entry = vec![0; ring::LEAD_BYTES + 8192];
    let (lead, payload) = data.split_at(data.len().min(ring::HEADERS_BYTES));
    entry[..lead.len()].copy_from_slice(lead);
    let payload = &payload[..payload.len().min(8192)];
    entry[ring::LEAD_BYTES..ring::LEAD_BYTES + payload.len()].copy_from_slice(payload);
    let _ = ring::commit_id(&entry);
    let Ok(bytes) = ring::gather(&mut entry) else { return };
    assert!(bytes.len() >= 40 && bytes.len() <= 40 + 128 + 8192);
    if let Ok((header, body)) = Header::decode(bytes) {
        let _ = Request::decode(header.opcode, body);
    }
});
