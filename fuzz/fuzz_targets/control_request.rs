#![no_main]

#[path = "../../crates/varve-daemon/src/control/request.rs"]
#[allow(dead_code, reason = "the target decodes and encodes only")]
mod request;

use request::Request;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(request) = serde_json::from_str::<Request>(text) {
        let said = serde_json::to_string(&request).unwrap();
        let again: Request = serde_json::from_str(&said).unwrap();
        assert_eq!(serde_json::to_string(&again).unwrap(), said);
    }
});
