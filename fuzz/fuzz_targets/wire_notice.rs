#![no_main]

use varve_wire::frame::{self, Kind};
use varve_wire::{Header, Notice};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = frame::first(data);
    let Ok(message) = varve_wire::decode::<Notice>(data) else { return };
    // Numbers may be encoded in more bytes than they need, so the bytes need not be the same.
    let mut bytes = Vec::new();
    varve_wire::encode(&mut bytes, Header::new(Kind::Notice, 1), &message, &[]);
    if let Ok(Some(frame)) = frame::first(&bytes) {
        assert_eq!(varve_wire::decode::<Notice>(frame.body).as_ref(), Ok(&message));
    }
});
