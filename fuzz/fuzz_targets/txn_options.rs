#![no_main]

use varve::TransactionOptions;
use varve::transaction_options::parse;

// What follows `varve.txn-begin,` in the name of an attribute.
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(words) = std::str::from_utf8(data) else { return };
    let Some(read) = parse(words) else { return };
    assert!(read.lock_wait_ms <= 3_600_000 && read.idle_abort_s != Some(0));
    let mut told = vec![
        format!("isolation={}", name_of(&read.isolation)),
        format!("on-conflict={}", name_of(&read.on_conflict)),
        format!("lock-timeout={}", read.lock_wait_ms as f64 / 1000.0),
        format!("priority={}", read.priority),
    ];
    told.extend(read.idle_abort_s.map(|seconds| format!("idle-abort={seconds}s")));
    let again = parse(&told.join(",")).unwrap();
    // Thousandths of a second are no fractions of two: one of them may be lost.
    assert!(read.lock_wait_ms - again.lock_wait_ms <= 1);
    assert_eq!(TransactionOptions { lock_wait_ms: read.lock_wait_ms, ..again }, read);
});

fn name_of(choice: &impl serde::Serialize) -> String {
    serde_json::to_value(choice).unwrap().as_str().unwrap().to_owned()
}
