#![no_main]

use std::path::Path;

use varve_env::sim::SimEnv;
use varve_env::{Env, OpenMode};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let (env, dir) = (SimEnv::new(1), Path::new("/engine"));
    env.create_dir(dir).unwrap();
    let current = dir.join("CURRENT");
    let file = env.open(&current, OpenMode::CreateOrOpen).unwrap();
    file.write_all_at(data, 0).unwrap();
    if let Ok(found) = varve_engine::inspect(&*env, &current, false) {
        let named = String::from_utf8(data.to_vec()).unwrap();
        let (first, second) = named.trim_end().split_once('\n').unwrap();
        assert_eq!(first, second, "{found}");
    }
});
