//! What the measuring programs share.

use std::path::Path;

use varve_env::os::OsEnv;
use varve_env::{Env, OpenMode};

/// Nanoseconds that this thread spent on a processor.
pub(crate) fn cpu_ns(env: &OsEnv) -> u64 {
    let mut text = [0; 64];
    let read = env
        .open(Path::new("/proc/thread-self/schedstat"), OpenMode::Read)
        .and_then(|file| file.read_at(&mut text, 0));
    let text = String::from_utf8_lossy(&text[..read.unwrap_or(0)]);
    text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}
