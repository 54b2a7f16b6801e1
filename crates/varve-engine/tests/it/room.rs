//! A device that is filled, emptied and filled again: what is removed gives its room back, whatever the design.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use varve_engine::{
    Batch, Db, DbOptions, KeyspaceOptions, Store, StoreDesign, StoreError, StoreResult, ValuePolicy,
};
use varve_env::sim::{FaultRule, RoomRules, SimEnv, SimOp};
use varve_env::{Env, OpenMode};
use varve_types::KeyspaceId;

use crate::common::*;
use crate::designs::{PRESETS, options_of};

/// With the two blocks that are held to be lent.
const DEVICE_BYTES: u64 = (24 << 20) + (8 << 10);
const VALUE_BYTES: usize = 16 << 10;

/// A store of `design` whose memtable would be larger than the reserve.
fn options(design: StoreDesign) -> DbOptions {
    DbOptions {
        memtable_bytes: 4 << 20,
        table_bytes: 4 << 20,
        level_base_bytes: 8 << 20,
        space_reserve_bytes: 4 << 20,
        ..options_of(design)
    }
}

struct Filled {
    env: Arc<SimEnv>,
    db: Db,
    space: KeyspaceId,
}

impl Filled {
    fn new(design: StoreDesign, seed: u64) -> Filled {
        Filled::with(seed, options(design))
    }

    fn with(seed: u64, options: DbOptions) -> Filled {
        let env = SimEnv::new(seed);
        env.set_capacity(DEVICE_BYTES);
        let db = Db::open(env.clone(), &store_dir(), options).unwrap();
        let space = KeyspaceOptions { prefixed: true, compressed: false };
        let space = db.keyspace("rows", space).unwrap();
        Filled { env, db, space }
    }

    fn key(at: u64, round: u64) -> Vec<u8> {
        // Neighbours are far apart in time.
        let at = at.wrapping_mul(0x9e37_79b9) % 4096;
        [round.to_be_bytes(), at.to_be_bytes()].concat()
    }

    /// One of as many as there are numbers, far from that of its neighbours.
    fn key_of(at: u64) -> Vec<u8> {
        let at = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        [(at >> 48).to_be_bytes(), at.to_be_bytes()].concat()
    }

    fn value(at: u64) -> Vec<u8> {
        vec![at as u8; VALUE_BYTES]
    }

    /// Adds so many rows.
    fn add(&self, round: u64, count: u64) {
        for at in 0..count {
            let mut batch = Batch::new();
            batch.put(self.space, Filled::key(at, round), Filled::value(at));
            self.db.write(batch).unwrap();
        }
    }

    /// Adds rows until there is no room; says how many there was room for.
    fn fill(&self, round: u64) -> u64 {
        self.try_fill(round).unwrap_or_else(|error| panic!("{error}"))
    }

    fn try_fill(&self, round: u64) -> StoreResult<u64> {
        for at in 0.. {
            let mut batch = Batch::new();
            batch.put(self.space, Filled::key(at, round), Filled::value(at));
            match self.db.write(batch) {
                Ok(()) => {}
                Err(StoreError::NoSpace { .. }) => return Ok(at),
                Err(error) => return Err(error),
            }
        }
        unreachable!()
    }

    /// Removes the rows that `which` names of the first `count`.
    fn remove(&self, round: u64, count: u64, which: impl Fn(u64) -> bool) {
        for at in (0..count).filter(|at| which(*at)) {
            let mut batch = Batch::new();
            batch.delete(self.space, Filled::key(at, round));
            batch.reclaims_space();
            self.db.write(batch).unwrap();
        }
    }

    /// Checks that of the first `count` rows those are there that `which` names.
    fn check(&self, round: u64, count: u64, which: impl Fn(u64) -> bool) {
        for at in 0..count {
            let found = self.db.get(self.space, &Filled::key(at, round)).unwrap();
            let expected = which(at).then(|| Filled::value(at));
            assert_eq!(found.as_deref(), expected.as_deref(), "row {at}");
        }
    }

    /// The files of `kind`, by their numbers.
    fn files(&self, kind: &str) -> Vec<PathBuf> {
        let is_kind = |path: &PathBuf| path.extension().is_some_and(|found| found == kind);
        self.env.files_raw().into_iter().filter(is_kind).collect()
    }

    /// Bytes of the files that hold rows and values.
    fn row_bytes(&self) -> u64 {
        let files = ["table", "seg"].map(|kind| self.files(kind)).concat();
        files.iter().map(|file| self.env.stat(file).unwrap().len).sum()
    }

    /// Has reads of all files fail whose names end with `suffix`.
    fn fail_reads(&self, suffix: &str) {
        let (path_suffix, op) = (suffix.to_owned(), SimOp::Read);
        self.env.fail(FaultRule { path_suffix, op, nth: 1, errno: 5, sticky: true });
    }

    /// The store as another process would find it after a power cut.
    fn cut(self, design: StoreDesign) -> Filled {
        drop(self.db);
        Filled::again(self.env.power_cut_keep_nothing(), design)
    }

    /// The store closed, and opened again.
    fn reopened(self, design: StoreDesign) -> Filled {
        self.db.close().unwrap();
        Filled::again(self.env, design)
    }

    fn again(env: Arc<SimEnv>, design: StoreDesign) -> Filled {
        let db = Db::open(env.clone(), &store_dir(), options(design)).unwrap();
        let space = KeyspaceOptions { prefixed: true, compressed: false };
        let space = db.keyspace("rows", space).unwrap();
        Filled { env, db, space }
    }
}

/// After everything had been removed nothing fitted: the full memtable found no room beside what it would replace.
#[test]
fn a_device_that_is_full_of_rows_is_empty_when_they_are_removed() {
    for (seed, (name, design)) in (0..).zip(PRESETS) {
        let store = Filled::new(design, seed);
        let first = store.fill(0);
        let fits = DEVICE_BYTES / VALUE_BYTES as u64;
        assert!(first > fits * 6 / 10, "{name}: {first} rows of {fits}");
        let mut before = first;
        for round in 1..4 {
            store.check(round - 1, before, |_| true);
            store.remove(round - 1, before, |_| true);
            let again = store.fill(round);
            assert!(again > first * 9 / 10, "{name}: {first} rows, then {again}");
            store.check(round - 1, before, |_| false);
            before = again;
        }
    }
}

#[test]
fn what_stays_on_a_full_device_is_not_in_the_way_of_what_goes() {
    for (seed, (name, design)) in (0..).zip(PRESETS) {
        let store = Filled::new(design, seed);
        let first = store.fill(0);
        store.remove(0, first, |at| at % 2 == 0);
        let again = store.fill(1);
        assert!(again > first * 4 / 10, "{name}: {first} rows, then {again}");
        store.check(0, first, |at| at % 2 == 1);
        store.check(1, again, |_| true);
        store.db.sync().unwrap();
        let store = store.cut(design);
        store.check(0, first, |at| at % 2 == 1);
        store.check(1, again, |_| true);
    }
}

/// Where an older state was kept too, nobody looked again after the snapshot had gone.
#[test]
fn what_a_snapshot_sees_keeps_its_room_until_that_goes() {
    let older = [false, true].into_iter();
    let cases = older.flat_map(|has_older| PRESETS.map(|(name, design)| (has_older, name, design)));
    for (seed, (has_older, name, design)) in (0..).zip(cases) {
        let store = Filled::new(design, seed);
        if has_older {
            store.db.create_snapshot("empty").unwrap();
        }
        let first = store.fill(0);
        store.db.create_snapshot("kept").unwrap();
        store.remove(0, first, |_| true);
        let kept = store.fill(1);
        assert!(kept < first / 10, "{name}: {first} rows, then {kept} beside a snapshot of them");
        store.db.delete_snapshot("kept").unwrap();
        let again = store.fill(2);
        assert!(again + kept > first * 8 / 10, "{name}: {first} rows, then {kept} and {again}");
        store.check(0, first, |_| false);
    }
}

/// Rows and what hid them stood in one table once a merge had come by both while a snapshot saw the rows. Only tables above
/// were searched for what hides rows, so that their room never came back.
#[test]
fn what_a_snapshot_kept_in_one_table_gives_its_room_back() {
    let reopens = [false, true].into_iter();
    let removes = [false, true].into_iter();
    let ways = reopens.flat_map(|reopens| removes.clone().map(move |removes| (reopens, removes)));
    let cases = ways.flat_map(|way| PRESETS.map(|(name, design)| (way, name, design)));
    for (seed, ((reopens, removes), name, design)) in (0..).zip(cases) {
        let rows = 400;
        let store = Filled::new(design, seed);
        store.add(0, rows);
        store.db.create_snapshot("kept").unwrap();
        match removes {
            true => store.remove(0, rows, |_| true),
            false => (0..rows).for_each(|at| {
                let mut batch = Batch::new();
                batch.put(store.space, Filled::key(at, 0), vec![1; 10]);
                store.db.write(batch).unwrap();
            }),
        }
        store.db.flush().unwrap();
        store.db.compact().unwrap();
        store.db.delete_snapshot("kept").unwrap();
        let store = if reopens { store.reopened(design) } else { store };
        let full = store.row_bytes();
        assert!(full > rows * VALUE_BYTES as u64, "{name}: {full} bytes of {rows} rows");
        store.db.reclaim().unwrap();
        let left = store.row_bytes();
        assert!(left < full / 50, "{name}: {full} bytes, then {left} ({reopens}, {removes})");
        for at in 0..rows {
            let found = store.db.get(store.space, &Filled::key(at, 0)).unwrap();
            assert_eq!(found.is_none(), removes, "{name}: row {at}");
        }
    }
}

#[test]
fn a_fifth_that_is_removed_makes_room_for_half_of_it_at_least() {
    for (seed, (name, design)) in (0..).zip(PRESETS) {
        let store = Filled::new(design, seed);
        let first = store.fill(0);
        store.remove(0, first, |at| at % 5 == 0);
        let again = store.fill(1);
        assert!(again > first * 9 / 100, "{name}: {first} rows, then {again}");
        store.check(0, first, |at| at % 5 != 0);
        store.check(1, again, |_| true);
    }
}

/// A search that had failed for want of room was not repeated before tables changed, however much room others had made.
#[test]
fn room_that_others_make_is_used_to_get_more() {
    for (seed, (name, design)) in (0..).zip(PRESETS) {
        // It holds no room of its own that would do.
        let store = Filled::with(seed, DbOptions { space_reserve_bytes: 0, ..options(design) });
        let first = 800;
        store.add(0, first);
        store.remove(0, first, |at| at % 2 == 0);
        store.db.flush().unwrap();
        store.env.set_capacity(store.env.used_bytes() + (64 << 10));
        assert_eq!(store.db.reclaim().unwrap(), 0, "{name}");
        store.env.set_capacity(DEVICE_BYTES);
        assert!(store.db.reclaim().unwrap() > 0, "{name}");
    }
}

/// What was removed from a storage that gives its room back only when it commits was missed by whoever wrote before that.
#[test]
fn room_that_storage_gives_back_late_is_waited_for() {
    for (seed, (name, design)) in (0..).zip(PRESETS) {
        let store = Filled::new(design, seed);
        store.env.set_room_rules(RoomRules { frees_late: true, ..RoomRules::default() });
        let dir = store_dir().join("beside");
        let path = dir.join("large");
        store.env.create_dir(&dir).unwrap();
        let large = store.env.open(&path, OpenMode::CreateNew).unwrap();
        large.write_all_at(&vec![1; DEVICE_BYTES as usize / 2], 0).unwrap();
        large.sync_all().unwrap();
        drop(large);
        store.env.sync_dir(&store_dir()).unwrap();
        store.env.sync_dir(&dir).unwrap();
        let first = store.fill(0);
        store.env.remove_file(&path).unwrap();
        // A search in vain is not repeated at once.
        store.env.sleep(Duration::from_secs(2));
        let more = store.fill(1);
        let fits = DEVICE_BYTES / 2 / VALUE_BYTES as u64;
        assert!(more > fits / 2, "{name}: {first} rows, then {more} of {fits}");
    }
}

/// Two inodes were held for opening a store, which takes a log, a manifest, its copy and a new `CURRENT` before it removes any.
#[test]
fn a_store_opens_where_no_file_can_be_made() {
    for (seed, (name, design)) in (0..).zip(PRESETS) {
        let mut store = Filled::new(design, seed);
        let mut others = 0;
        let mut take_inodes = |env: &SimEnv| {
            let more = |number| env.open(&PathBuf::from(format!("/{number}")), OpenMode::CreateNew);
            let before = others;
            while more(others).is_ok() {
                others += 1;
            }
            others - before
        };
        store.env.set_room_rules(RoomRules { inodes_max: 60, ..RoomRules::default() });
        // Others take each inode that the store gives back.
        for round in 0..40 {
            let mut batch = Batch::new();
            batch.delete(store.space, Filled::key(round, 0));
            batch.reclaims_space();
            match store.db.write(batch).and_then(|()| store.db.flush()) {
                Ok(()) | Err(StoreError::NoSpace { .. }) => {}
                Err(error) => panic!("{name}: {error}"),
            }
            take_inodes(&store.env);
        }
        // Killed as soon as it is open, too.
        for _ in 0..3 {
            assert_eq!(take_inodes(&store.env), 0, "{name}");
            let Filled { env, db, .. } = store;
            drop(db);
            store = Filled::again(env.power_cut_keep_all(), design);
        }
    }
}

/// A value that could not be read where room was looked for failed the write that looked, though it was none of its
/// business, and poisoned the store from the background.
#[test]
fn damage_in_values_is_passed_by_where_room_is_looked_for() {
    let design = StoreDesign::TABLEFS_COLUMN;
    let store = Filled::new(design, 1);
    let first = store.fill(0);
    let segments = store.files("seg");
    let damaged = &segments[0];
    assert!(segments.len() > 1, "a sound one is there too");
    let bytes = store.env.stat(damaged).unwrap().len;
    // Some of them are of rows that stay.
    (1..bytes / VALUE_BYTES as u64).for_each(|value| {
        store.env.damage(damaged, value * VALUE_BYTES as u64, 1).unwrap();
    });
    store.remove(0, first, |at| at % 5 == 0);
    let again = store.fill(1);
    assert!(again > first * 5 / 100, "{first} rows, then {again}");
    store.check(1, again, |_| true);
    store.remove(1, again, |_| true);
}

/// What a table had in a segment of which little was in use and that could not be read was to be written anew with what it had
/// in others, so that these passed for damaged, and a merge for the shape of the levels poisoned the store.
#[test]
fn a_damaged_segment_is_not_in_the_way_of_sound_ones() {
    let store = Filled::new(StoreDesign::TABLEFS_COLUMN, 1);
    let first = store.fill(0);
    // One table of all rows.
    store.db.compact().unwrap();
    let segments = store.files("seg");
    let bytes = store.env.stat(&segments[0]).unwrap().len;
    let values = bytes / VALUE_BYTES as u64;
    (0..values).for_each(|value| {
        store.env.damage(&segments[0], value * VALUE_BYTES as u64 + 100, 1).unwrap();
    });
    let is_damaged = |at| store.db.get(store.space, &Filled::key(at, 0)).is_err();
    let damaged: Vec<bool> = (0..first).map(is_damaged).collect();
    let count = damaged.iter().filter(|damaged| **damaged).count() as u64;
    assert!(count > 20 && count < first / 2, "{count} of {first} rows are damaged");
    // Less than half of the damaged segment is in use, and more of all others.
    let goes = |at: u64| at % 10 < if damaged[at as usize] { 7 } else { 3 };
    store.remove(0, first, goes);
    store.db.flush().unwrap();
    while store.db.reclaim().unwrap() > 0 {}
    let again = store.fill(1);
    assert!(again > first * 15 / 100, "{first} rows, then {again}");
    store.check(1, again, |_| true);
    for at in (0..first).filter(|at| !damaged[*at as usize]) {
        let found = store.db.get(store.space, &Filled::key(at, 0)).unwrap();
        assert_eq!(found.is_some(), !goes(at), "row {at}");
    }
    store.remove(1, again, |_| true);
}

/// A file of which the device could not read a part failed each write that looked for room, though it was none of its
/// business, and poisoned the store from the background.
#[test]
fn what_cannot_be_read_is_passed_by_where_room_is_looked_for() {
    for (name, design) in PRESETS {
        let is_passed_by = (0..4).any(|seed| {
            let count = failing_table(design, seed, usize::MAX).err();
            (0..count.unwrap_or(0)).any(|table| failing_table(design, seed, table) == Ok(true))
        });
        assert!(is_passed_by, "{name}");
    }
}

/// Fills a device, removes half, and writes on while the table with this number cannot be read. Whether the table was looked at and writes
/// went on: a merge that needs the table says so and stops the store, and there may be none left that looks for room. The number of
/// tables is the error if there is no such table.
fn failing_table(design: StoreDesign, seed: u64, table: usize) -> Result<bool, usize> {
    let store = Filled::new(design, seed);
    let first = store.fill(0);
    store.db.flush().unwrap();
    store.remove(0, first, |at| at % 2 == 0);
    let tables = store.files("table");
    assert!(tables.len() > 1, "a sound one is there too");
    let failing = tables.get(table).ok_or(tables.len())?;
    store.fail_reads(failing.file_name().unwrap().to_str().unwrap());
    let again = match store.try_fill(1) {
        Err(StoreError::Poisoned { .. }) => return Ok(false),
        again => again.unwrap(),
    };
    store.check(1, again, |_| true);
    // Where values stand apart, those that the table points at have to stay.
    let is_apart = options(design).values != ValuePolicy::InRow;
    Ok(store.env.fault_count() > 0 && (is_apart || again > first / 100))
}

/// Who is refused is told so at once, though no file can be read any more, and none is tried again and again.
#[test]
fn a_device_that_is_gone_is_not_asked_for_room_again_and_again() {
    for (seed, (name, design)) in (0..).zip(PRESETS) {
        let store = Filled::new(design, seed);
        let first = store.fill(0);
        store.remove(0, first, |at| at % 2 == 0);
        store.fail_reads("");
        let mut writes = (0..200).map(|at| {
            let mut batch = Batch::new();
            batch.put(store.space, Filled::key(at, 1), Filled::value(at));
            store.db.write(batch)
        });
        let refused = writes.find_map(Result::err);
        let (files, faults) = (store.files("table").len() as u64, store.env.fault_count());
        assert!(refused.is_some(), "{name}");
        for _ in 0..10 {
            assert!(writes.next().unwrap().is_err(), "{name}");
        }
        let more = store.env.fault_count() - faults;
        assert!(more <= files, "{name}: {more} reads of {files} files for ten writes");
    }
}

/// Merges asked for room for the whole files of tables of which they had taken a part already. Halfway through a level
/// they stopped for good, what they had taken stayed, and sub-levels became more and more.
#[test]
fn a_pass_through_many_sub_levels_comes_to_its_end_on_a_device_that_fills_up() {
    const SUBLEVELS: u64 = 16;
    const ROW_BYTES: usize = 1000;
    const STEP: u64 = 200;
    let (_, design) = PRESETS[4];
    let store = Filled::with(
        3,
        DbOptions {
            memtable_bytes: 256 << 10,
            table_bytes: 256 << 10,
            level_base_bytes: 64 << 20,
            sublevels_trigger: SUBLEVELS as usize,
            ..options(design)
        },
    );
    let write = |at: u64| {
        let mut batch = Batch::new();
        batch.put(store.space, Filled::key_of(at), vec![at as u8; ROW_BYTES]);
        store.db.write(batch)
    };
    let sublevels = || {
        let metrics = metrics(&store.db);
        let levels = metrics["keyspaces"][0]["levels"].as_array().unwrap().clone();
        levels.iter().map(|level| level["sublevels"].as_u64().unwrap()).sum::<u64>()
    };
    let mut next = 0;
    while write(next).is_ok() {
        next += 1;
    }
    let full = next;
    for removed in (0..full).step_by(STEP as usize) {
        for at in removed..removed + STEP {
            let mut batch = Batch::new();
            batch.delete(store.space, Filled::key_of(at));
            batch.reclaims_space();
            store.db.write(batch).unwrap();
        }
        let made = (0..STEP).take_while(|at| write(next + at).is_ok()).count() as u64;
        next += made;
        match store.db.compact() {
            Ok(()) | Err(StoreError::NoSpace { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        let (there, sublevels) = (next - removed - STEP, sublevels());
        assert!(there > full * 8 / 10, "{full} rows, then {there} after {removed}");
        assert!(sublevels < 5 * SUBLEVELS, "{sublevels} sub-levels after {removed} removals");
    }
}

/// Only deletions counted, and not those of somebody who goes on to look.
#[test]
fn what_was_written_over_gives_its_room_back_once_nobody_looks() {
    for (seed, (name, design)) in (0..).zip(PRESETS) {
        let store = Filled::new(design, seed);
        let rows = DEVICE_BYTES / VALUE_BYTES as u64 / 4;
        let write = |round: u64| {
            for at in 0..rows {
                let mut batch = Batch::new();
                batch.put(store.space, Filled::key(at, 0), Filled::value(at + round));
                store.db.write(batch).unwrap();
            }
        };
        write(0);
        let before = store.db.snapshot();
        write(1);
        assert_eq!(store.db.reclaim().unwrap(), 0, "{name}");
        let full = store.env.used_bytes();
        drop(before);
        assert!(store.db.reclaim().unwrap() > 0, "{name}");
        let left = store.env.used_bytes();
        assert!(left < full * 3 / 4, "{name}: {full} bytes, then {left}");
        for at in 0..rows {
            let found = store.db.get(store.space, &Filled::key(at, 0)).unwrap();
            assert_eq!(found.as_deref(), Some(&Filled::value(at + 1)[..]), "{name}: row {at}");
        }
    }
}

/// The whole store was read again for each write that was refused.
#[test]
fn deletions_elsewhere_have_no_table_read() {
    for (seed, (name, design)) in (0..).zip(PRESETS) {
        let store = Filled::new(design, seed);
        let first = store.fill(1);
        let refuse = |round: u64| {
            store.remove(0, 1500 + round, |_| true);
            store.remove(2, 1500 + round, |_| true);
            let before = counter(&store.db, "device_read_bytes");
            let fits = store.fill(3 + round);
            assert!(fits < first / 10, "{name}: {fits} fit");
            counter(&store.db, "device_read_bytes") - before
        };
        refuse(0);
        let read = refuse(1);
        assert!(read < DEVICE_BYTES / 2, "{name}: {read} bytes read");
    }
}

/// Rows that wait for an external sync were flushed in vain again and again.
#[test]
fn rows_that_wait_for_an_external_sync_do_not_hold_up_a_refusal() {
    let env = SimEnv::new(1);
    env.set_capacity(4 << 20);
    let open = |env: &Arc<SimEnv>| {
        let db = Db::open(env.clone(), &store_dir(), DbOptions::default()).unwrap();
        let options = KeyspaceOptions { prefixed: false, compressed: false };
        let space = db.keyspace("rows", options).unwrap();
        (db, space)
    };
    let (db, space) = open(&env);
    db.set_external_sync(Box::new(|| Ok(())));
    let mut batch = Batch::new();
    batch.put(space, "outside", vec![1; 60 << 10]);
    batch.depends_on_external();
    db.write(batch).unwrap();
    let env = env.power_cut_keep_all();
    drop(db);
    let (db, space) = open(&env);
    let refused = (0..100_u8).find_map(|at| {
        let mut batch = Batch::new();
        batch.put(space, vec![at], vec![at; 60 << 10]);
        db.write(batch).err()
    });
    assert!(matches!(refused, Some(StoreError::NoSpace { .. })), "{refused:?}");
}

/// A sample of the blocks above missed deletions that stood close together, so that what they hid was never looked at.
#[test]
fn deletions_that_stand_close_together_among_other_rows_count() {
    for (seed, (name, design)) in (0..).zip(PRESETS) {
        let store = Filled::new(design, seed);
        let put = |round: u64, rows: u64, bytes: usize| {
            for at in 0..rows {
                let mut batch = Batch::new();
                batch.put(store.space, Filled::key(at, round), vec![at as u8; bytes]);
                store.db.write(batch).unwrap();
            }
        };
        put(5, 300, VALUE_BYTES);
        store.db.flush().unwrap();
        let full = store.env.used_bytes();
        assert!(full > 300 * VALUE_BYTES as u64, "{name}: {full} bytes");
        put(1, 1000, 100);
        store.remove(5, 300, |_| true);
        put(9, 1000, 100);
        store.db.reclaim().unwrap();
        let left = store.env.used_bytes();
        assert!(left < full / 3, "{name}: {full} bytes, then {left}");
    }
}

/// A power cut had taken the room of the files that are held, and nobody gave back the inodes that they still had.
#[test]
fn a_store_opens_without_an_inode_where_its_reserve_has_lost_its_room() {
    let (_, design) = PRESETS[0];
    let store = Filled::new(design, 1);
    store.add(0, 4);
    let (env, reserve) = (Arc::clone(&store.env), store_dir());
    drop(store.db);
    let env = env.process_kill();
    let mut held = 0;
    for item in env.list(&reserve).unwrap() {
        if item.name.to_string_lossy().starts_with("RESERVE") {
            env.open(&reserve.join(&item.name), OpenMode::ReadWrite).unwrap().set_len(0).unwrap();
            held += 1;
        }
    }
    assert!(held > 10, "{held} files are held");
    let nodes = env.files_raw().len() as u64;
    env.set_room_rules(RoomRules { inodes_max: nodes, ..RoomRules::default() });
    Db::open(env.clone(), &store_dir(), options(design)).unwrap();
}
