#![no_main]

#[path = "../../crates/varve-daemon/src/kv/protocol.rs"]
#[allow(dead_code, reason = "the target encodes and decodes only")]
mod protocol;

use protocol::{Request, Response, memory_bytes};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    assert!(memory_bytes(data) >= data.len());
    if let Ok((transaction, request)) = Request::decode(data) {
        assert_eq!(request.encode(transaction), data);
    }
    if let Ok(response) = Response::decode(data) {
        assert_eq!(response.encode(), data);
    }
});
