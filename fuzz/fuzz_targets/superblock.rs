#![no_main]

use std::path::Path;

use varve_env::sim::SimEnv;
use varve_env::{Env, OpenMode};
use varve_fs::Superblock;

// As it is, and with a checksum that fits, so that the code behind it is reached.
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let sealed = [data, format!("\n{:08x}\n", crc32c::crc32c(data)).as_bytes()].concat();
    for bytes in [data, &sealed] {
        let (env, dir) = (SimEnv::new(1), Path::new("/store"));
        env.create_dir(dir).unwrap();
        let file = env.open(&dir.join("VARVE"), OpenMode::CreateOrOpen).unwrap();
        file.write_all_at(bytes, 0).unwrap();
        if let Ok(superblock) = Superblock::read(&*env, dir) {
            superblock.public();
        }
    }
});
