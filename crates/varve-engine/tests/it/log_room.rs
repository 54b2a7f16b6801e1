//! The room ahead of the log's end.

use varve_engine::{Batch, Db, DbOptions, Store};
use varve_env::os::OsEnv;
use varve_env::sim::SimEnv;
use varve_env::{Env, OpenMode};

use crate::common::*;

/// Records smaller and larger than what is taken at once, through several windows: what a process leaves that dies there is
/// all of them.
#[test]
fn records_of_all_sizes_survive_in_mapped_room() {
    const SIZES: [usize; 8] = [1, 100, 40_000, 4096, 131_000, 70_000, 300_000, 32_768];
    let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let options = || DbOptions { memtable_bytes: 64 << 20, ..small_options() };
    let db = Db::open(OsEnv::new(), dir.path(), options()).unwrap();
    let space = make_spaces(&db).unwrap()[1];
    let value = |row: usize| vec![row as u8; SIZES[row % SIZES.len()]];
    for row in 0..160_usize {
        let mut batch = Batch::new();
        batch.put(space, row.to_be_bytes(), value(row));
        db.write(batch).unwrap();
    }
    let (through_window, all) = (counter(&db, "log_window_bytes"), counter(&db, "log_bytes"));
    assert!(all > 8 << 20);
    if through_window == 0 {
        varve_testkit::skipped("the storage of temporary files is not written as memory");
    } else {
        // All but those of 300,000 bytes, which are half of the bytes.
        assert!(through_window * 3 > all, "{through_window} of {all}");
    }

    let env = OsEnv::new();
    for item in env.list(dir.path()).unwrap() {
        let file = env.open(&dir.path().join(&item.name), OpenMode::Read).unwrap();
        let mut bytes = vec![0; file.stat().unwrap().len as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let twin = env.open(&copy.path().join(&item.name), OpenMode::CreateNew).unwrap();
        twin.write_all_at(&bytes, 0).unwrap();
    }
    let found = Db::open(OsEnv::new(), copy.path(), options()).unwrap();
    for row in 0..160_usize {
        let key = row.to_be_bytes();
        assert_eq!(found.get(space, &key).unwrap().as_deref(), Some(&value(row)[..]), "{row}");
    }
    assert_eq!(found.get(space, &160_usize.to_be_bytes()).unwrap(), None);
}

/// Syncs write all of the pages that are written to as memory, so none are where syncs are frequent.
#[test]
fn the_log_is_written_as_memory_while_little_is_synced() {
    let options = DbOptions { memtable_bytes: 64 << 20, ..small_options() };
    let db = Db::open(SimEnv::new(1) as _, &store_dir(), options).unwrap();
    let space = make_spaces(&db).unwrap()[1];
    let put = |rows: std::ops::Range<u32>| {
        for row in rows {
            let mut batch = Batch::new();
            batch.put(space, row.to_be_bytes(), vec![1; 1000]);
            db.write(batch).unwrap();
        }
    };
    for round in 0..8 {
        put(round * 500..(round + 1) * 500);
        db.sync().unwrap();
    }
    assert_eq!(counter(&db, "log_window_bytes"), 0);
    let (all, warmed) = (counter(&db, "log_bytes"), counter(&db, "log_warmed_bytes"));
    assert!(warmed > all, "room is written before it is used: {warmed} of {all}");
    put(4000..8000);
    let mapped = counter(&db, "log_window_bytes");
    // All but the first MiB.
    assert!((5 << 19..3 << 20).contains(&mapped), "{mapped}");
}
