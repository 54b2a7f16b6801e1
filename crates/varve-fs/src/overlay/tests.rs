//! Overlays against vectors of bytes, over machines that die and lose power.

use std::io;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use varve_env::sim::SimEnv;
use varve_env::{Allocate, Env, File, OpenMode, Seek};
use varve_schema::overlay::{
    BLOCK_BYTES, OverlayChange, OverlayHeader, OverlayKind, OverlayRecord, OverlaySlot,
    SLOT_OFFSETS,
};
use varve_testkit::hooked::{HookedEnv, Hooks};
use varve_testkit::rng::Rng;
use varve_types::Timestamp;

use super::{FileBase, Overlay, Overlays};

const BLOCK: usize = BLOCK_BYTES as usize;
const OVERLAY: &str = "/I.blocks";
const BASE: &str = "/I";

fn base(env: &Arc<SimEnv>, bytes: &[u8]) -> Arc<dyn File> {
    let file = env.open(Path::new(BASE), OpenMode::CreateOrOpen).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    // A hole.
    file.allocate(Allocate::PunchHole, 2 * BLOCK_BYTES, BLOCK_BYTES).unwrap();
    file.sync_all().unwrap();
    file
}

fn with_hole(mut bytes: Vec<u8>) -> Vec<u8> {
    let len = bytes.len();
    bytes[(2 * BLOCK).min(len)..(3 * BLOCK).min(len)].fill(0);
    bytes
}

fn begun(env: &Arc<SimEnv>, kind: OverlayKind, base: &dyn File) -> Arc<Overlay> {
    let overlays = Overlays::new(env.clone());
    let overlay = overlays.create(Path::new(OVERLAY), kind, &base.stat().unwrap()).unwrap();
    env.sync_dir(Path::new("/")).unwrap();
    overlay
}

fn reopened(env: &Arc<SimEnv>) -> (Arc<Overlay>, Arc<dyn File>) {
    let overlay = Overlays::new(env.clone()).get(Path::new(OVERLAY)).unwrap().unwrap();
    (overlay, env.open(Path::new(BASE), OpenMode::ReadWrite).unwrap())
}

/// All that is seen, read in pieces of a random size.
fn seen(overlay: &Overlay, base: &dyn File, rng: &mut Rng) -> Vec<u8> {
    let base = FileBase(base);
    let file = overlay.over(&base);
    let len = file.stat().unwrap().len as usize;
    let mut bytes = vec![7; len];
    let mut at = 0;
    while at < len {
        let end = (at + rng.below(3 * BLOCK as u64) as usize + 1).min(len);
        assert_eq!(file.read_at(&mut bytes[at..end], at as u64).unwrap(), end - at);
        at = end;
    }
    assert_eq!(file.read_at(&mut [0], len as u64).unwrap(), 0);
    bytes
}

/// What is no data is zeros, and what is told goes up to the end.
fn seeks_right(overlay: &Overlay, base: &dyn File, bytes: &[u8]) {
    let base = FileBase(base);
    let file = overlay.over(&base);
    let mut at = 0;
    while at < bytes.len() as u64 {
        let data = file.seek(Seek::Data, at).unwrap_or(bytes.len() as u64);
        assert!(bytes[at as usize..data as usize].iter().all(|byte| *byte == 0), "{at}..{data}");
        if data == bytes.len() as u64 {
            break;
        }
        assert_eq!(file.seek(Seek::Data, data).unwrap(), data);
        at = file.seek(Seek::Hole, data).unwrap();
        assert!(at > data);
    }
    assert!(file.seek(Seek::Hole, bytes.len() as u64).is_err());
}

/// One random change; says which bytes it may have changed.
fn change(file: &dyn File, model: &mut Vec<u8>, rng: &mut Rng) -> std::ops::Range<usize> {
    let len = model.len();
    let from = rng.below(len as u64 + BLOCK_BYTES) as usize;
    let most = *rng.pick(&[100, 5000, 3 * BLOCK_BYTES]);
    let count = rng.below(most) as usize + 1;
    let (offset, end) = (from as u64, from + count);
    match rng.below(8) {
        0 => {
            let len = if rng.chance(30) { from / BLOCK * BLOCK } else { from };
            file.set_len(len as u64).unwrap();
            let old = model.len();
            model.resize(len, 0);
            return len.min(old)..old.max(len);
        }
        1 => {
            file.allocate(Allocate::PunchHole, offset, count as u64).unwrap();
            let len = model.len();
            model[from.min(len)..end.min(len)].fill(0);
        }
        2 => {
            file.allocate(Allocate::ZeroRange, offset, count as u64).unwrap();
            model.resize(len.max(end), 0);
            model[from..end].fill(0);
        }
        3 => {
            file.allocate(Allocate::Extend, offset, count as u64).unwrap();
            model.resize(len.max(end), 0);
        }
        _ => {
            let bytes = rng.bytes(count);
            file.write_all_at(&bytes, offset).unwrap();
            model.resize(len.max(end), 0);
            model[from..end].copy_from_slice(&bytes);
        }
    }
    from.min(len)..end
}

#[test]
fn what_is_written_is_seen_and_survives_the_process_and_synced_the_power() {
    for seed in 0..30 {
        let (mut rng, env) = (Rng::new(seed), SimEnv::new(seed));
        let len = [9 * BLOCK + 77, 5 * BLOCK, 100][seed as usize % 3];
        let mut model = with_hole(rng.bytes(len));
        let mut file = base(&env, &model);
        let mut overlay = begun(&env, OverlayKind::Written, file.as_ref());
        let mut env = env;
        for step in 0..60 {
            let under = FileBase(file.as_ref());
            change(&overlay.over(&under), &mut model, &mut rng);
            let bytes = seen(&overlay, file.as_ref(), &mut rng);
            assert!(bytes == model, "seed {seed}, step {step}");
            seeks_right(&overlay, file.as_ref(), &model);
            let lost_power = rng.chance(10);
            if lost_power {
                overlay.sync(rng.chance(50)).unwrap();
                env = env.power_cut(rng.next_u64());
            } else if rng.chance(20) {
                env = env.process_kill();
            } else {
                continue;
            }
            (overlay, file) = reopened(&env);
            assert!(seen(&overlay, file.as_ref(), &mut rng) == model, "seed {seed}, step {step}");
            assert!(!lost_power || !overlay.is_unsynced());
        }
        // Over the base it makes the same file, also the second time.
        let again = file;
        for _ in 0..2 {
            overlay.apply(again.as_ref()).unwrap();
            let mut bytes = vec![0; again.stat().unwrap().len as usize];
            again.read_exact_at(&mut bytes, 0).unwrap();
            assert!(bytes == model, "seed {seed}, applied");
        }
    }
}

/// Bytes that were not written to since the sync are as they were, whatever of the others a power cut leaves.
#[test]
fn a_power_cut_takes_nothing_with_what_was_not_synced() {
    let mut dropped = 0;
    for seed in 0..200 {
        let (mut rng, env) = (Rng::new(seed), SimEnv::new(seed));
        let len = 9 * BLOCK + 77;
        let mut model = with_hole(rng.bytes(len));
        let file = base(&env, &model);
        let overlay = begun(&env, OverlayKind::Written, file.as_ref());
        let under = FileBase(file.as_ref());
        let over = overlay.over(&under);
        for _ in 0..rng.below(4) {
            let offset = rng.below(len as u64 - 2000);
            let bytes = rng.bytes(2000);
            over.write_all_at(&bytes, offset).unwrap();
            model[offset as usize..][..2000].copy_from_slice(&bytes);
        }
        overlay.sync(false).unwrap();
        let mut touched = vec![false; len];
        let mut offsets = Vec::new();
        for _ in 0..4 {
            let offset = rng.below(len as u64 - 2000);
            over.write_all_at(&rng.bytes(2000), offset).unwrap();
            touched[offset as usize..][..2000].fill(true);
            offsets.push(offset);
        }
        let mut env = env;
        // Twice, so that what the first cut left of records is there when the second comes.
        for _ in 0..2 {
            env = env.power_cut(seed);
            let (overlay, file) = reopened(&env);
            let bytes = seen(&overlay, file.as_ref(), &mut rng);
            assert_eq!(bytes.len(), len);
            for at in (0..len).filter(|at| !touched[*at]) {
                assert_eq!(bytes[at], model[at], "seed {seed}, byte {at}");
            }
            dropped += u32::from(offsets.iter().any(|at| !overlay.owns(&(*at..*at + 1))));
            let offset = rng.below(len as u64 - 2000);
            let under = FileBase(file.as_ref());
            overlay.over(&under).write_all_at(&rng.bytes(2000), offset).unwrap();
            touched[offset as usize..][..2000].fill(true);
        }
    }
    assert!(dropped > 50, "no record was lost: {dropped}");
}

/// Whoever keeps first may do to the base what he likes, at any crash; and what is kept moves to an earlier one.
#[test]
fn what_is_kept_stays_whatever_becomes_of_the_base() {
    for seed in 0..40 {
        let (mut rng, mut env) = (Rng::new(seed), SimEnv::new(seed));
        let len = [40 * BLOCK + 5, 6 * BLOCK][seed as usize % 2];
        let first = with_hole(rng.bytes(len));
        let mut file = base(&env, &first);
        let mut model = first.clone();
        let mut overlay = begun(&env, OverlayKind::Kept, file.as_ref());
        let modified = file.stat().unwrap().modified;
        let write = |overlay: &Overlay, file: &dyn File, model: &mut Vec<u8>, rng: &mut Rng| {
            let from = rng.below(model.len() as u64 + BLOCK_BYTES);
            let bytes = rng.bytes(rng.clone().below(3 * BLOCK_BYTES) as usize + 1);
            let end = from + bytes.len() as u64;
            overlay.keep(&FileBase(file), &(from..end)).unwrap();
            file.write_all_at(&bytes, from).unwrap();
            model.resize(model.len().max(end as usize), 0);
            model[from as usize..end as usize].copy_from_slice(&bytes);
        };
        for _ in 0..12 {
            write(&overlay, file.as_ref(), &mut model, &mut rng);
            if rng.chance(20) {
                let len = rng.below(model.len() as u64);
                overlay.keep(&FileBase(file.as_ref()), &(len..model.len() as u64)).unwrap();
                file.set_len(len).unwrap();
                model.truncate(len as usize);
            }
            assert!(seen(&overlay, file.as_ref(), &mut rng) == first, "seed {seed}");
            if rng.chance(30) {
                env = match rng.below(4) {
                    0 => env.process_kill(),
                    1 => env.power_cut_keep_nothing(),
                    2 => env.power_cut_keep_all(),
                    _ => env.power_cut(rng.next_u64()),
                };
                (overlay, file) = reopened(&env);
                assert!(seen(&overlay, file.as_ref(), &mut rng) == first, "seed {seed}");
                model = vec![0; file.stat().unwrap().len as usize];
                file.read_exact_at(&mut model, 0).unwrap();
            }
        }
        let stat = overlay.over(&FileBase(file.as_ref())).stat().unwrap();
        assert_eq!((stat.len, stat.modified), (len as u64, modified));
        // A second view begins, and later ends: the first sees through what the second kept, then has it.
        let second = model.clone();
        let overlays = Overlays::new(env.clone());
        let path = Path::new("/later.blocks");
        let stat = file.stat().unwrap();
        let later = overlays.create(path, OverlayKind::Kept, &stat).unwrap();
        for _ in 0..4 {
            write(&later, file.as_ref(), &mut model, &mut rng);
        }
        let below = FileBase(file.as_ref());
        let layered = later.over(&below);
        assert!(seen(&later, file.as_ref(), &mut rng) == second, "seed {seed}");
        assert!(seen(&overlay, &layered, &mut rng) == first, "seed {seed}");
        overlay.adopt(&later).unwrap();
        assert!(seen(&overlay, file.as_ref(), &mut rng) == first, "seed {seed}, adopted");
        let (overlay, file) = reopened(&env.power_cut_keep_nothing());
        assert!(seen(&overlay, file.as_ref(), &mut rng) == first, "seed {seed}, adopted for good");
    }
}

/// One who changes block after block waits for few syncs, one who changes here and there copies no more than he must.
#[test]
fn runs_that_are_kept_double() {
    let env = SimEnv::new(1);
    let blocks = 1000;
    let file = env.open(Path::new(BASE), OpenMode::CreateOrOpen).unwrap();
    file.set_len(blocks * BLOCK_BYTES).unwrap();
    let overlay = begun(&env, OverlayKind::Kept, file.as_ref());
    let syncs = env.sync_count();
    for block in 0..blocks {
        let at = block * BLOCK_BYTES;
        overlay.keep(&FileBase(file.as_ref()), &(at..at + BLOCK_BYTES)).unwrap();
    }
    let syncs = env.sync_count() - syncs;
    assert!(syncs <= 2 * 15, "{syncs}");
    let env = SimEnv::new(1);
    let file = env.open(Path::new(BASE), OpenMode::CreateOrOpen).unwrap();
    file.write_all_at(&vec![1; 50 * BLOCK], 0).unwrap();
    let overlay = begun(&env, OverlayKind::Kept, file.as_ref());
    for block in [40, 3, 17] {
        overlay
            .keep(&FileBase(file.as_ref()), &(block * BLOCK_BYTES..block * BLOCK_BYTES + 9))
            .unwrap();
    }
    let taken = env.stat(Path::new(OVERLAY)).unwrap().allocated;
    assert!(taken <= 3 * BLOCK_BYTES + super::HEAD_BYTES, "{taken}");
}

/// Each byte of header, slots and records is under a checksum, and the error names file and offset.
#[test]
fn damage_is_told_with_file_and_offset() {
    let env = SimEnv::new(1);
    let file = base(&env, &vec![1; 9 * BLOCK]);
    let overlay = begun(&env, OverlayKind::Written, file.as_ref());
    for block in [1, 5] {
        let under = FileBase(file.as_ref());
        overlay.over(&under).write_all_at(b"written", block * BLOCK_BYTES).unwrap();
        overlay.sync(false).unwrap();
    }
    let broken = |offset: u64| {
        let env = env.process_kill();
        env.damage(Path::new(OVERLAY), offset, 0x10).unwrap();
        let loaded = Overlays::new(env).get(Path::new(OVERLAY));
        loaded.err().map(|error| error.to_string())
    };
    for offset in (0..56).chain([4095]) {
        let error = broken(offset).unwrap();
        assert!(error.contains("/I.blocks is damaged at offset 0"), "{error}");
    }
    for index in 0..2 {
        let begin = OverlayRecord::offset(index);
        for offset in begin..begin + 32 {
            let error = broken(offset).unwrap();
            assert!(error.contains(&format!("damaged at offset {begin}")), "{error}");
        }
    }
    // One slot may be torn, as the other still counts; but what it counted is not known to be durable then.
    let both = env.process_kill();
    SLOT_OFFSETS.iter().for_each(|offset| both.damage(Path::new(OVERLAY), *offset, 1).unwrap());
    let error = Overlays::new(both).get(Path::new(OVERLAY)).unwrap_err().to_string();
    assert!(error.contains("damaged at offset 4096"), "{error}");
    let cut = env.process_kill();
    cut.truncate_raw(Path::new(OVERLAY), OverlayRecord::offset(1)).unwrap();
    let error = Overlays::new(cut).get(Path::new(OVERLAY)).unwrap_err().to_string();
    assert!(error.contains("cut off"), "{error}");
}

/// An overlay over a base of more than 2^61 bytes was made and written to, and could never be read again.
#[test]
fn a_base_is_as_long_as_leaves_room_for_the_records() {
    let has_room = |base_len: &u64| {
        let modified = Timestamp::default();
        OverlayHeader {
            kind: OverlayKind::Written,
            salt: 0,
            base_len: *base_len,
            modified,
            is_covering: false,
        }
        .has_room()
    };
    let mut longest = 1 << 61;
    for bit in (0..63).rev() {
        longest = Some(longest + (1 << bit)).filter(has_room).unwrap_or(longest);
    }
    for kind in [OverlayKind::Written, OverlayKind::Kept] {
        for len in [(1 << 61) + 1, longest] {
            let env = SimEnv::new(1);
            let file = env.open(Path::new(BASE), OpenMode::CreateOrOpen).unwrap();
            file.set_len(len).unwrap();
            file.write_all_at(b"ab", len - 2).unwrap();
            let overlay = begun(&env, kind, file.as_ref());
            let under = FileBase(file.as_ref());
            match kind {
                OverlayKind::Written => {
                    overlay.over(&under).write_all_at(b"c", len - 1).unwrap();
                }
                OverlayKind::Kept => {
                    overlay.keep(&under, &(len - 1..len)).unwrap();
                    file.write_all_at(b"c", len - 1).unwrap();
                }
            }
            let (overlay, file) = reopened(&env.process_kill());
            let under = FileBase(file.as_ref());
            let over = overlay.over(&under);
            let mut end = [0; 3];
            assert_eq!(over.read_at(&mut end, len - 2).unwrap(), 2);
            assert_eq!(end, if kind == OverlayKind::Kept { *b"ab\0" } else { *b"ac\0" });
            assert_eq!(over.stat().unwrap().len, len);
        }
        let env = SimEnv::new(1);
        let file = env.open(Path::new(BASE), OpenMode::CreateOrOpen).unwrap();
        file.set_len(longest + 1).unwrap();
        let overlays = Overlays::new(env.clone());
        let made = overlays.create(Path::new(OVERLAY), kind, &file.stat().unwrap());
        assert_eq!(made.unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        let names = env.list(Path::new("/")).unwrap();
        assert_eq!(names.len(), 1, "{names:?}");
    }
}

/// An overlay of 12 KiB that says to own all of a base of 2 EiB: reading it wanted 4 TiB of memory.
#[test]
fn what_an_overlay_claims_takes_no_memory() {
    for kind in [OverlayKind::Kept, OverlayKind::Written] {
        let env = SimEnv::new(1);
        let (base_len, modified) = (1 << 61, Timestamp::default());
        let header = OverlayHeader { kind, salt: 3, base_len, modified, is_covering: false };
        let file = env.open(Path::new(OVERLAY), OpenMode::CreateOrOpen).unwrap();
        file.write_all_at(&header.encode(), 0).unwrap();
        let slot = OverlaySlot { turn: 1, records: 1 };
        file.write_all_at(&slot.encode(3), slot.offset()).unwrap();
        let change = OverlayChange::Own { first: 0, count: header.base_blocks() };
        let record = OverlayRecord { change, boot: 0 }.encode(3, 0);
        file.write_all_at(&record, OverlayRecord::offset(0)).unwrap();
        if kind == OverlayKind::Written {
            file.set_len(header.data_start() + base_len).unwrap();
        }
        let report = super::inspect_overlay(env.as_ref(), Path::new(OVERLAY)).unwrap();
        assert_eq!(report.own, [(0, header.base_blocks())]);
        let overlay = Overlays::new(env).get(Path::new(OVERLAY)).unwrap().unwrap();
        assert!(overlay.owns(&(0..base_len)));
        let ranges = overlay.changes(base_len).unwrap();
        assert_eq!(ranges, std::slice::from_ref(&(0..base_len)));
    }
}

/// Something that happens once, behind a renaming.
#[derive(Default)]
struct OnceRenamed(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Hooks for OnceRenamed {
    fn after_rename(&self, _to: &Path) {
        let happens = self.0.lock().take();
        if let Some(happens) = happens {
            happens();
        }
    }
}

/// Who looked for an overlay at the moment when it got its name read it a second time, and wrote to that one: a commit took the
/// other, which owned nothing.
#[test]
fn who_looks_for_an_overlay_that_is_being_made_finds_that_one() {
    let sim = SimEnv::new(1);
    let stat = base(&sim, &[1; BLOCK]).stat().unwrap();
    let env = Arc::new(HookedEnv::new(&sim, OnceRenamed::default()));
    let overlays = Overlays::new(env.clone());
    let ((go, gone), (tell, told)) = (mpsc::channel(), mpsc::channel::<()>());
    *env.hooks.0.lock() = Some(Box::new(move || {
        go.send(()).unwrap();
        let _ = told.recv_timeout(Duration::from_millis(100));
    }));
    thread::scope(|scope| {
        let overlays = &overlays;
        let looker = scope.spawn(move || {
            gone.recv().unwrap();
            let found = overlays.get(Path::new(OVERLAY)).unwrap().unwrap();
            let _ = tell.send(());
            found
        });
        let made = overlays.create(Path::new(OVERLAY), OverlayKind::Written, &stat).unwrap();
        assert!(Arc::ptr_eq(&made, &looker.join().unwrap()));
    });
}
