//! Files that become large, are cut and grow again while others read and write them: who reads gets what was there at some
//! moment during the call, of each eight bytes the old ones or the new ones.
//!
//! Each word of a file says which version it is and where it belongs, so that one that is lost, old, or of another place is
//! told from all that may be read.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use varve_fs::{FormatOptions, MountOptions, NewFiles, VarveFs};
use varve_testkit::at_end;
use varve_testkit::rng::Rng;
use varve_types::InodeId;
use varve_vfs::{Caller, OpenFlags, SetAttr, Vfs};

use crate::concurrent::assert_sound;
use crate::support::{BOTH, Calls, READ, ROOT, Rig, WRITE, name};

/// Files above this size have an object.
const THRESHOLD: u64 = 16 << 10;
/// Bytes of which one thread at a time writes all.
const REGION: u64 = 2 << 10;
const WORD: u64 = 8;

fn rig() -> Rig {
    rig_with(MountOptions::default())
}

fn rig_with(mount: MountOptions) -> Rig {
    let options =
        FormatOptions { large_file_threshold_bytes: THRESHOLD, ..FormatOptions::default() };
    Rig::with(&options, mount)
}

/// The bytes from `offset` on of version `version`.
fn stamped(version: u32, offset: u64, len: u64) -> Vec<u8> {
    let words = offset / WORD..(offset + len) / WORD;
    words.flat_map(|word| ((u64::from(version) << 32) | (word + 1)).to_le_bytes()).collect()
}

/// The versions of the words that were read at `offset`; 0 for a hole. Each is where it belongs.
fn versions(bytes: &[u8], offset: u64) -> Vec<(u64, u32)> {
    let words = (offset / WORD..).zip(bytes.chunks_exact(8));
    words
        .map(|(word, bytes)| {
            let value = u64::from_le_bytes(bytes.try_into().unwrap());
            let (version, place) = ((value >> 32) as u32, value & 0xffff_ffff);
            assert!(value == 0 || place == word + 1, "word {word} holds {value:#x}");
            (word * WORD, version)
        })
        .collect()
}

/// How far the writes to one region are.
#[derive(Default)]
struct Region {
    begun: AtomicU32,
    done: AtomicU32,
}

/// A read of all regions is checked against what was written before it began and had begun before it ended.
fn read_regions(fs: &VarveFs, ino: InodeId, regions: &[Region], large: &AtomicBool, rng: &mut Rng) {
    let handle = fs.open_as(ino, READ);
    let first = rng.below(regions.len() as u64);
    let count = 1 + rng.below(regions.len() as u64 - first);
    let before: Vec<u32> =
        regions.iter().map(|region| region.done.load(Ordering::SeqCst)).collect();
    let bytes = fs.read(ino, handle, first * REGION, (count * REGION) as usize).unwrap();
    let is_small = !large.load(Ordering::SeqCst);
    assert_eq!(bytes.len() as u64, count * REGION, "a short read at {}", first * REGION);
    let mut last = (u64::MAX, 0);
    for (at, version) in versions(&bytes, first * REGION) {
        let region = at / REGION;
        let begun = regions[region as usize].begun.load(Ordering::SeqCst);
        let known = before[region as usize];
        assert!((known..=begun).contains(&version), "{at}: {version}, not {known} to {begun}");
        if is_small && last.0 == region {
            assert_eq!(version, last.1, "a torn read of a small file at {at}");
        }
        last = (region, version);
    }
    fs.release(ino, handle).unwrap();
}

#[test]
fn a_file_that_becomes_large_has_at_each_moment_what_was_written() {
    let rig = rig();
    let (size, count) = (THRESHOLD, THRESHOLD / REGION);
    for seed in 0..60 {
        let text = format!("f{seed}");
        let ino = rig.mk(ROOT, &text);
        rig.put_at(ino, 0, &stamped(0, 0, size));
        let regions: Vec<Region> = (0..count).map(|_| Region::default()).collect();
        let (large, over) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let end = at_end(|| over.store(true, Ordering::SeqCst));
            let (fs, regions, large, over) = (&rig.fs, &regions, &large, &over);
            for thread in 0..2 {
                scope.spawn(move || {
                    let mut rng = Rng::new(seed * 8 + thread);
                    while !over.load(Ordering::SeqCst) {
                        read_regions(fs, ino, regions, large, &mut rng);
                    }
                });
            }
            let writers: Vec<_> = (0..2)
                .map(|thread| {
                    scope.spawn(move || {
                        let mut rng = Rng::new(seed * 8 + 4 + thread);
                        let mut handle = fs.open_as(ino, BOTH);
                        for version in 1..40 {
                            let at = (rng.below(count / 2) * 2 + thread) % count;
                            let region = &regions[at as usize];
                            region.begun.store(version, Ordering::SeqCst);
                            let bytes = stamped(version, at * REGION, REGION);
                            fs.write(ino, handle, at * REGION, &bytes, false).unwrap();
                            region.done.store(version, Ordering::SeqCst);
                            if rng.below(5) == 0 {
                                fs.release(ino, handle).unwrap();
                                handle = fs.open_as(ino, BOTH);
                            }
                        }
                        fs.release(ino, handle).unwrap();
                    })
                })
                .collect();
            let mut rng = Rng::new(seed);
            let is_early =
                |region: &Region| u64::from(region.done.load(Ordering::SeqCst)) < 4 + seed % 16;
            while regions.iter().all(is_early) && writers.iter().any(|it| !it.is_finished()) {
                std::thread::yield_now();
            }
            large.store(true, Ordering::SeqCst);
            match rng.below(3) {
                0 => fs.cut(ino, size + REGION),
                _ => fs.put_at(ino, size, &stamped(1, size, REGION)),
            }
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            drop(end);
        });
        let contents = rig.contents(ino);
        assert_eq!(contents.len() as u64, size + REGION);
        for (at, version) in versions(&contents[..size as usize], 0) {
            let wanted = regions[(at / REGION) as usize].done.load(Ordering::SeqCst);
            assert_eq!(version, wanted, "seed {seed}, at {at}");
        }
    }
    assert_sound(&rig, "all became large");
}

/// Bytes of a record that is appended.
const RECORD: usize = 600;

fn record(thread: u64, number: u64) -> Vec<u8> {
    let words = [thread + 1, number + 1].into_iter().cycle().take(RECORD / 8);
    words.flat_map(u64::to_le_bytes).collect()
}

#[test]
fn what_several_append_beyond_the_threshold_is_there_once_and_in_order() {
    const THREADS: u64 = 3;
    const RECORDS: u64 = 40;
    let rig = rig();
    let append = OpenFlags { append: true, ..WRITE };
    for seed in 0..20 {
        let ino = rig.mk(ROOT, &format!("f{seed}"));
        let (acknowledged, writing) = (AtomicU64::new(0), AtomicU64::new(THREADS));
        let check = |bytes: &[u8]| {
            let mut next = [0; THREADS as usize];
            for found in bytes.chunks(RECORD) {
                // Only of the last record a part may be there.
                let thread = (0..THREADS)
                    .find(|thread| record(*thread, next[*thread as usize]).starts_with(found));
                let Some(thread) = thread else { panic!("seed {seed}: no record: {found:?}") };
                next[thread as usize] += 1;
            }
        };
        std::thread::scope(|scope| {
            let (fs, acknowledged, writing) = (&rig.fs, &acknowledged, &writing);
            let check = &check;
            for thread in 0..THREADS {
                scope.spawn(move || {
                    let _end = at_end(|| {
                        writing.fetch_sub(1, Ordering::SeqCst);
                    });
                    let handle = fs.open_as(ino, append);
                    for number in 0..RECORDS {
                        fs.write(ino, handle, 0, &record(thread, number), false).unwrap();
                        acknowledged.fetch_add(RECORD as u64, Ordering::SeqCst);
                    }
                    fs.release(ino, handle).unwrap();
                });
            }
            scope.spawn(move || {
                while writing.load(Ordering::SeqCst) > 0 {
                    let known = acknowledged.load(Ordering::SeqCst);
                    let size = fs.getattr(ino).unwrap().size;
                    assert!(size >= known, "{size} bytes, of {known} appended");
                    let bytes = fs.contents(ino);
                    assert!(bytes.len() as u64 >= size, "{} bytes of {size}", bytes.len());
                    check(&bytes);
                }
            });
        });
        let contents = rig.contents(ino);
        assert_eq!(contents.len() as u64, THREADS * RECORDS * RECORD as u64);
        check(&contents);
    }
    assert_sound(&rig, "all was appended");
}

/// Of two who open a file anew for each record the one lets go while the other begins to write. Whoever read it in between
/// had the row say again how large the file was for the first, and the next open cut off what the second had written.
#[test]
fn what_one_has_appended_stays_when_another_lets_go() {
    const THREADS: u64 = 2;
    const RECORDS: u64 = 4000;
    let rig = rig();
    let append = OpenFlags { append: true, ..WRITE };
    let ino = rig.mk(ROOT, "f");
    rig.put_at(ino, 0, &stamped(1, 0, THRESHOLD + 4096));
    let acknowledged = AtomicU64::new(rig.getattr(ino).unwrap().size);
    let writing = AtomicU64::new(THREADS);
    std::thread::scope(|scope| {
        let (fs, acknowledged, writing) = (&rig.fs, &acknowledged, &writing);
        for thread in 0..THREADS {
            scope.spawn(move || {
                let _end = at_end(|| {
                    writing.fetch_sub(1, Ordering::SeqCst);
                });
                for number in 0..RECORDS {
                    let handle = fs.open_as(ino, append);
                    fs.write(ino, handle, 0, &record(thread, number), false).unwrap();
                    acknowledged.fetch_add(RECORD as u64, Ordering::SeqCst);
                    fs.release(ino, handle).unwrap();
                }
            });
            scope.spawn(move || {
                while writing.load(Ordering::SeqCst) > 0 {
                    let known = acknowledged.load(Ordering::SeqCst);
                    let handle = fs.open_as(ino, READ);
                    let size = fs.getattr(ino).unwrap().size;
                    assert!(size >= known, "{size} bytes, of {known}");
                    fs.release(ino, handle).unwrap();
                }
            });
        }
    });
    assert_eq!(rig.contents(ino).len() as u64, acknowledged.into_inner());
    assert_sound(&rig, "all was appended");
}

/// What a file was after each change, the empty file first.
#[derive(Default)]
struct History {
    states: Vec<Vec<u8>>,
}

/// What a read gave, and which changes had been done before it and had begun after it.
struct Sample {
    done: usize,
    begun: usize,
    offset: u64,
    len: u64,
    bytes: Vec<u8>,
}

impl History {
    fn change(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.states.last().unwrap().clone();
        change(&mut state);
        self.states.push(state);
    }

    fn check(&self, sample: &Sample, seed: u64) {
        let Sample { done, begun, offset, len, bytes } = sample;
        let states = &self.states[*done..=*begun];
        let rest = |state: &Vec<u8>| (state.len() as u64).saturating_sub(*offset).min(*len);
        let lens = (states.iter().map(rest).min(), states.iter().map(rest).max());
        let got = bytes.len() as u64;
        let told = format!("seed {seed}, changes {done} to {begun}, {len} bytes at {offset}");
        assert!(Some(got) >= lens.0 && Some(got) <= lens.1, "{told}: {got}, not {lens:?}");
        for (at, word) in (*offset..).step_by(8).zip(bytes.chunks(8)) {
            let range = at as usize..at as usize + word.len();
            let allowed = states.iter().any(|state| match state.get(range.clone()) {
                Some(bytes) => bytes == word,
                // The kernel zeroes what is cut off a large file while somebody may be reading it.
                None => word.iter().all(|byte| *byte == 0),
            });
            assert!(allowed, "{told}: {word:?} at {at} was never there then");
        }
    }
}

/// One change to the file, as it is made and as it is to be.
fn change(fs: &VarveFs, ino: InodeId, version: u32, rng: &mut Rng, history: &mut History) {
    const SIZES: [u64; 6] = [0, 400, 6000, THRESHOLD, THRESHOLD + 4096, THRESHOLD + 10_000];
    let size = rng.pick(&SIZES) / WORD * WORD;
    match rng.below(3) {
        0 => {
            history.change(|state| state.resize(size as usize, 0));
            fs.cut(ino, size);
        }
        _ => {
            let at = rng.below(THRESHOLD + 4096) / WORD * WORD;
            let bytes = stamped(version, at, (1 + rng.below(800)) * WORD);
            let end = at as usize + bytes.len();
            history.change(|state| {
                state.resize(state.len().max(end), 0);
                state[at as usize..end].copy_from_slice(&bytes);
            });
            fs.put_at(ino, at, &bytes);
        }
    }
}

/// Opens a file for writing and closes it again, and changes its mode, until it is over.
fn come_and_go(fs: &VarveFs, ino: InodeId, mut rng: Rng, is_over: &dyn Fn() -> bool) {
    while !is_over() {
        let handle = fs.open_as(ino, WRITE);
        if rng.below(4) == 0 {
            fs.fsync(ino, handle, rng.below(2) == 0).unwrap();
        }
        fs.release(ino, handle).unwrap();
        let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
        fs.setattr(Caller::ROOT, ino, set).unwrap();
    }
}

#[test]
fn a_file_that_is_cut_and_grows_again_reads_as_it_was_at_some_moment() {
    const CHANGES: usize = 150;
    // One that began large, as those before it were, would grow by pages too, and here that is told by its sizes.
    let mount = MountOptions { new_files: NewFiles::Small, ..MountOptions::default() };
    let rig = rig_with(mount);
    for seed in 0..16 {
        let (_, opened) =
            rig.create(Caller::ROOT, ROOT, name(&format!("f{seed}")), 0o644, BOTH).unwrap();
        let ino = rig.find(ROOT, &format!("f{seed}")).unwrap().ino;
        // Half of them are open for writing all the time, so that their rows stay as they were when they were opened.
        if seed % 2 == 0 {
            rig.release(ino, opened.handle).unwrap();
        }
        let (begun, done) = (AtomicU64::new(0), AtomicU64::new(0));
        let mut history = History { states: vec![Vec::new()] };
        let samples = std::thread::scope(|scope| {
            let (fs, begun, done) = (&rig.fs, &begun, &done);
            let is_over = || done.load(Ordering::SeqCst) == CHANGES as u64;
            let readers: Vec<_> = (0..2)
                .map(|thread| {
                    scope.spawn(move || {
                        let mut rng = Rng::new(seed * 4 + thread);
                        let mut samples = Vec::new();
                        let handle = fs.open_as(ino, READ);
                        while done.load(Ordering::SeqCst) < CHANGES as u64 {
                            let offset = rng.below(THRESHOLD + 8192) / WORD * WORD;
                            let len = (1 + rng.below(1000)) * WORD;
                            let before = done.load(Ordering::SeqCst) as usize;
                            let read = || fs.read(ino, handle, offset, len as usize).unwrap();
                            let bytes = (rng.below(4) > 0).then(|| read().to_vec());
                            let size = fs.getattr(ino).unwrap().size;
                            let after = begun.load(Ordering::SeqCst) as usize;
                            samples.push((before, after, offset, len, bytes, size));
                        }
                        fs.release(ino, handle).unwrap();
                        samples
                    })
                })
                .collect();
            scope.spawn(move || come_and_go(fs, ino, Rng::new(seed * 4 + 3), &is_over));
            let _end = at_end(|| done.store(CHANGES as u64, Ordering::SeqCst));
            let mut rng = Rng::new(seed * 4 + 2);
            for version in 1..=CHANGES {
                begun.store(version as u64, Ordering::SeqCst);
                change(fs, ino, version as u32, &mut rng, &mut history);
                done.store(version as u64, Ordering::SeqCst);
            }
            readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect::<Vec<_>>()
        });
        for (done, begun, offset, len, bytes, size) in samples {
            let mut sizes: Vec<u64> =
                history.states[done..=begun].iter().map(|state| state.len() as u64).collect();
            sizes.sort_unstable();
            // A large file grows by pages while it is written to.
            let was_large = history.states[..=begun].iter().any(|s| s.len() as u64 > THRESHOLD);
            let between = was_large && (sizes[0]..=sizes[sizes.len() - 1]).contains(&size);
            assert!(between || sizes.contains(&size), "seed {seed}: {size} bytes, not {sizes:?}");
            if let Some(bytes) = bytes {
                history.check(&Sample { done, begun, offset, len, bytes }, seed);
            }
        }
        if seed % 2 == 1 {
            rig.release(ino, opened.handle).unwrap();
        }
        assert!(rig.contents(ino) == *history.states.last().unwrap(), "seed {seed}");
    }
    assert_sound(&rig, "all were cut");
    let rig = rig.remount();
    assert_sound(&rig, "after a remount");
}
