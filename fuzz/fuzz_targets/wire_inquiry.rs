#![no_main]

use varve_wire::frame::{self, Kind};
use varve_wire::{Header, Inquiry};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = frame::first(data);
    let mut bytes = Vec::new();
    // The answer: no body, and JSON that the wire does not look at.
    if data.len() <= varve_wire::DATA_BYTES_MAX {
        varve_wire::encode(&mut bytes, Header::new(Kind::Report, 1), &(), data);
        let report = frame::first(&bytes).unwrap().unwrap();
        assert_eq!((report.header.kind, report.data), (Kind::Report, data));
        assert_eq!(varve_wire::decode::<()>(report.body), Ok(()));
    }
    let Ok(message) = varve_wire::decode::<Inquiry<'_>>(data) else { return };
    // Numbers may be encoded in more bytes than they need, so the bytes need not be the same.
    bytes.clear();
    varve_wire::encode(&mut bytes, Header::new(Kind::Inquiry, 1), &message, &[]);
    if let Ok(Some(frame)) = frame::first(&bytes) {
        assert_eq!(varve_wire::decode::<Inquiry<'_>>(frame.body).as_ref(), Ok(&message));
    }
});
