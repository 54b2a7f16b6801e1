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
    match Request::decode(header.opcode, body) {
        Ok(Request::BatchForget(forgets)) => assert!(forgets.iter().count() * 16 <= body.len()),
        Ok(Request::Setxattr(set)) => {
            for extended in [false, true] {
                let _ = set.decode(extended);
            }
        }
        _ => {}
    }
});
