//! `STORE/LOST`, as it is and with a checksum that fits: what cannot be read hides everything, and what can hides the same once it is
//! written again.
#![no_main]

#[allow(dead_code)]
#[path = "../../crates/varve-fs/src/epoch.rs"]
mod epoch;
#[allow(dead_code)]
#[path = "../../crates/varve-fs/src/lost.rs"]
mod lost;

use std::path::Path;

use varve_env::sim::SimEnv;
use varve_env::{Env, OpenMode};

use epoch::Epoch;
use lost::{LOST_NAME, Lost};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let sealed = [data, format!("\n{:08x}\n", crc32c::crc32c(data)).as_bytes()].concat();
    for bytes in [data, &sealed] {
        let (env, dir) = (SimEnv::new(1), Path::new("/store"));
        env.create_dir(dir).unwrap();
        let file = env.open(&dir.join(LOST_NAME), OpenMode::CreateOrOpen).unwrap();
        file.write_all_at(bytes, 0).unwrap();
        let read = || Lost::read(&*env, dir).unwrap();
        let before = read();
        let key = &data[..data.len().min(16)];
        assert_eq!(before.hides(key), before.meets_data(key, key));
        assert!(!before.doubts_data(key, key) || before.hides(key));
        let epoch = Epoch::new(data.len() as u64);
        assert!(!before.clone().seen_at(epoch).hides(key) || before.hides(key));
        // A snapshot that is older than everything keeps what is marked by then.
        Lost::note_marked(&*env, dir, u64::MAX, &mut [Epoch::new(0)].into_iter()).unwrap();
        let after = read();
        assert!(after.clone().unmarked().is_empty());
        let is_kept = before.clone().seen_at(Epoch::new(0));
        assert_eq!(after.hides(key), is_kept.hides(key));
    }
});
