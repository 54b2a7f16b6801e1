#![no_main]

#[path = "../../crates/varve-fuse/src/handover/state.rs"]
mod state;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok(state) = state::SessionState::decode(data) {
        assert_eq!(state.encode(), data);
    }
});
