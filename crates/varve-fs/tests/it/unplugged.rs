//! Storage that loses its power while the machine goes on, and is the same to it: what it had synced is found again.

use varve_fs::FormatOptions;
use varve_vfs::{FsResult, Vfs};

use crate::bench::repair;
use crate::crash::{open, sim_store};
use crate::support::{BOTH, Calls, READ, ROOT, WRITE};

/// Bytes that a file has as a small one.
const SMALL: usize = 5000;
/// How many states of the storage are looked at.
const SEEDS: u64 = 60;

/// The bytes of a file, or why they cannot be read.
fn bytes_of(fs: &dyn Vfs) -> FsResult<Vec<u8>> {
    let ino = fs.find(ROOT, "file")?.ino;
    let handle = fs.open(ino, READ)?.handle;
    let bytes = fs.read(ino, handle, 0, 1 << 20);
    fs.release(ino, handle)?;
    Ok(bytes?.to_vec())
}

/// How a file grows large that was synced as a small one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grows {
    /// It stays open from the first on, and is open when the storage loses its power.
    Open,
    /// It is opened once more for it, and closed.
    Closed,
    /// By its length alone.
    Longer,
}

/// A file that was synced as a small one and grew large without another sync read as zeros, or not at all.
#[test]
fn what_was_synced_as_a_small_file_is_found_again_after_it_grew_large() {
    let (mut grown, mut small, mut told) = (0, 0, 0);
    for seed in 0..SEEDS {
        for grows in [Grows::Open, Grows::Closed, Grows::Longer] {
            let env = sim_store(seed, &FormatOptions::default());
            let fs = open(&env);
            // Directories of objects are there, and those of another are made later.
            fs.put_at(fs.mk(ROOT, "large"), 0, &[9; 70_000]);
            let file = fs.mk(ROOT, "file");
            let handle = fs.open_as(file, BOTH);
            fs.write(file, handle, 0, &[1; SMALL], false).unwrap();
            if grows != Grows::Open {
                fs.release(file, handle).unwrap();
                fs.sync().unwrap();
            } else {
                fs.fsync(file, handle, false).unwrap();
            }
            match grows {
                Grows::Open => drop(fs.write(file, handle, SMALL as u64, &[2; 70_000], false)),
                Grows::Closed => fs.put_at(file, SMALL as u64, &[2; 70_000]),
                Grows::Longer => fs.cut(file, 90_000),
            }
            let what = format!("seed {seed}, {grows:?}");
            let image = env.storage_cut(seed);
            let found = open(&image);
            let bytes = bytes_of(&found).or_else(|_| {
                // What its row claims besides is lost, which it says.
                told += 1;
                found.close().unwrap();
                repair(&image);
                bytes_of(&open(&image))
            });
            let bytes = bytes.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(bytes.len() >= SMALL, "{what}: {} bytes", bytes.len());
            assert!(bytes[..SMALL] == [1; SMALL], "{what}: they are others");
            let is_small = bytes.len() == SMALL;
            (small, grown) = (small + u64::from(is_small), grown + u64::from(!is_small));
        }
    }
    println!("{grown} grown, {small} small, {told} told of");
    assert!(grown > 10 && small > 10, "{grown} {small} {told}");
}

/// A file whose bytes nobody has synced is not synced for growing large.
#[test]
fn what_was_never_synced_grows_large_without_a_sync() {
    let env = sim_store(1, &FormatOptions::default());
    let fs = open(&env);
    let syncs = || env.count_of(varve_env::sim::SimOp::Sync);
    fs.put_at(fs.mk(ROOT, "first"), 0, &[9; 70_000]);
    let before = syncs();
    for text in ["made", "cut"] {
        if text == "cut" {
            fs.put_at(fs.mk(ROOT, text), 0, &[1; SMALL]);
            fs.sync().unwrap();
        }
        let before = syncs();
        let file =
            if text == "made" { fs.mk(ROOT, text) } else { fs.find(ROOT, text).unwrap().ino };
        let flags = varve_vfs::OpenFlags { truncate: true, ..WRITE };
        let handle = fs.open_as(file, flags);
        for n in 0..20 {
            fs.write(file, handle, n * 5000, &[3; SMALL], false).unwrap();
        }
        fs.release(file, handle).unwrap();
        assert_eq!(syncs(), before, "{text}");
        // The next one has another begin.
        fs.sync().unwrap();
    }
    assert!(syncs() > before);
}
