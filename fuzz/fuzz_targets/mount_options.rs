#![no_main]

#[path = "../../crates/varve-daemon/src/mount/options.rs"]
#[allow(dead_code, reason = "the target only reads options")]
mod options;

use options::Choices;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(choices) = Choices::parse(text, false) else { return };
    assert!(choices.memory_bytes.is_none_or(|bytes| bytes >= 4 << 20));
    assert_eq!(Choices::parse(text, true).unwrap(), choices);
    assert_eq!(Choices::parse(&format!("{text},{text}"), false).unwrap(), choices);
});
