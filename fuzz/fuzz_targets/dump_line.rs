#![no_main]

#[allow(dead_code)]
#[path = "../../crates/varve-fs/src/dump/line.rs"]
mod line;

use line::Line;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok(line) = Line::parse(data) {
        let printed = line.print().unwrap();
        assert_eq!(Line::parse(&printed).unwrap(), line);
    }
});
