#![no_main]

#[path = "../../crates/varve-fuse/src/protocol/constants.rs"]
#[allow(dead_code, reason = "the target decodes only")]
mod constants;
#[path = "../../crates/varve-fuse/src/protocol/request.rs"]
#[allow(dead_code, reason = "the target looks at few of the fields")]
mod request;

use request::{Header, Request};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok((header, body)) = Header::decode(data) else { return };
    assert!(body.len() + 40 <= data.len());
    if let Ok(Request::BatchForget(forgets)) = Request::decode(header.opcode, body) {
        assert!(forgets.iter().count() * 16 <= body.len());
    }
});
