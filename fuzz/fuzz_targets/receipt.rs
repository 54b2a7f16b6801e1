#![no_main]

use varve_fs::stream::Receipt;

// As the store keeps it, and as a token on a command line.
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let kept = serde_json::from_slice::<Receipt>(data).ok();
    let told = std::str::from_utf8(data).ok().and_then(Receipt::of_token);
    for receipt in kept.into_iter().chain(told) {
        let bytes = serde_json::to_vec(&receipt).unwrap();
        assert_eq!(serde_json::from_slice::<Receipt>(&bytes).unwrap(), receipt);
        assert_eq!(Receipt::of_token(&receipt.token()), Some(receipt));
    }
});
