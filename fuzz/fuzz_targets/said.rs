#![no_main]

#[path = "../../crates/varve-fuse/src/adapter/said.rs"]
mod said;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some(how) = said::beginning(data) {
        assert!(how.is_empty() || data.ends_with(&[b",", how].concat()));
        assert!(said::ending(data).is_none());
    }
    if let Ok(id) = said::id_in(data) {
        assert_eq!([id, 0].map(u64::to_ne_bytes).concat(), data);
    }
    if let Some(limits) = said::limits_in(data) {
        let words = [("bytes", limits.bytes), ("inodes", limits.inodes)];
        let words = words.map(|(name, limit)| limit.map(|limit| format!("{name}={limit}")));
        let words: Vec<String> = words.into_iter().flatten().collect();
        assert_eq!(said::limits_in(words.join(" ").as_bytes()), Some(limits));
    }
});
