#![no_main]

#[path = "../../crates/varve-schema/tests/it/exercise.rs"]
#[allow(dead_code, reason = "each target calls one of the functions")]
mod exercise;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    exercise::exercise(exercise::request, data);
    exercise::exercise(exercise::client, data);
});
