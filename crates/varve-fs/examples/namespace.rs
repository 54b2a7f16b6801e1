//! Measures small operations through the library, on the temporary directory's disk: microseconds each,
//! of the clock and of the calling thread's processor.
//!
//! `cargo run --release -p varve-fs --example namespace -- [FILES]`
#![allow(clippy::disallowed_methods, reason = "a measurement reads the clock")]

use std::error::Error;
use std::time::Instant;

use varve_env::os::OsEnv;
use varve_fs::{FormatOptions, MountOptions, VarveFs, format};
use varve_types::{FileName, InodeId};
use varve_vfs::{Caller, FsResult, SetAttr, Vfs};

const DIRS: u64 = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let files: u64 = std::env::args().nth(1).map_or(Ok(200_000), |text| text.parse())?;
    let base = tempfile::tempdir()?;
    let store = base.path().join("store");
    let env = OsEnv::new();
    let dyn_env: std::sync::Arc<dyn varve_env::Env> = env;
    format(&dyn_env, &store, &FormatOptions::default())?;
    let fs = VarveFs::open(dyn_env, &store, MountOptions::default())?;
    let dirs: Vec<InodeId> = (0..DIRS)
        .map(|i| {
            Ok(fs.mkdir(Caller::ROOT, InodeId::ROOT, name(&format!("d{i}"))?, 0o755)?.attr.ino)
        })
        .collect::<FsResult<_>>()?;
    let names: Vec<String> = (0..files / DIRS).map(|i| format!("file-{i:06}")).collect();
    let each = |what: &str, op: &mut dyn FnMut(InodeId, FileName<'_>) -> FsResult<()>| {
        let (start, on_cpu) = (Instant::now(), cpu_ns());
        for dir in &dirs {
            for text in &names {
                op(*dir, name(text)?)?;
            }
        }
        let count = (DIRS * names.len() as u64) as f64;
        print(what, start.elapsed().as_secs_f64() * 1e6 / count, cpu_ns() - on_cpu, count);
        FsResult::Ok(())
    };
    let mut known = Vec::new();
    each("create", &mut |dir, text| {
        known.push(fs.mknod(Caller::ROOT, dir, text, 0o100_644, 0)?.attr.ino);
        Ok(())
    })?;
    let mut at = known.iter().cycle();
    each("getattr", &mut |_, _| at.next().map_or(Ok(()), |ino| fs.getattr(*ino).map(drop)))?;
    each("lookup", &mut |dir, text| fs.lookup(dir, text).map(drop))?;
    let chmod = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    each("chmod", &mut |_, _| {
        at.next().map_or(Ok(()), |ino| fs.setattr(Caller::ROOT, *ino, chmod).map(drop))
    })?;
    let (start, on_cpu) = (Instant::now(), cpu_ns());
    let mut listed = 0u64;
    for dir in &dirs {
        fs.readdir(*dir, 0, true, &mut |_| {
            listed += 1;
            true
        })?;
    }
    let count = listed as f64;
    print("readdir+", start.elapsed().as_secs_f64() * 1e6 / count, cpu_ns() - on_cpu, count);
    each("unlink", &mut |dir, text| fs.unlink(dir, text))?;
    fs.close()?;
    Ok(())
}

fn name(text: &str) -> FsResult<FileName<'_>> {
    Ok(FileName::new(text.as_bytes())?)
}

fn print(what: &str, micros: f64, on_cpu_ns: u64, count: f64) {
    println!("{what:<10} {micros:8.2} us, {:6.2} us of CPU", on_cpu_ns as f64 / 1e3 / count);
}

/// What this thread has used of a processor so far, in nanoseconds.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}
