#![no_main]

use varve_storage::Location;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(location) = Location::parse(text) else { return };
    let normal = location.to_string();
    let again = Location::parse(&normal).unwrap();
    assert_eq!(again, location);
    assert_eq!(again.to_string(), normal);
});
