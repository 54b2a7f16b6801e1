//! What is done with each store, and what it costs.
//!
//! 1. Create all rows in random order, looking first whether they are there. Let the store come to rest.
//! 2. Look up present keys, absent ones, and scan directories.
//! 3. Create as many again, directory by directory, the directories in random order. Let it rest, scan again.

use std::path::Path;
use std::time::Instant;

use serde::Serialize;

use crate::meter::{Files, Meter, cpu_ns, space_bytes, wait_until_still};
use crate::store::{Outcome, Store};
use crate::workload::{ROW_BYTES, ROWS_PER_DIRECTORY, absent_key, key, mixed, scattered, value};

/// The page cache is emptied every so many lookups.
const LOOKUPS_BETWEEN_DROPS: u64 = 32;

/// How much to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) rows: u64,
    pub(crate) lookups: u64,
    pub(crate) details: bool,
}

/// What creating cost, the work that the store did afterwards included.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Creates {
    /// Microseconds of all threads for a row.
    pub(crate) cpu_us: f64,
    /// Bytes written for a byte of rows.
    pub(crate) write_amplification: f64,
    /// Rows of the worst second over those of a mean one.
    pub(crate) worst_second: f64,
    /// Rows per second.
    pub(crate) rate: f64,
    /// Bytes on the device, at rest, for a byte of rows.
    pub(crate) space: f64,
}

/// What reading cost, for one lookup or scan.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Reads {
    pub(crate) cpu_us: f64,
    /// Bytes from the device.
    pub(crate) read_bytes: f64,
}

/// All figures of a store.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) random: Creates,
    pub(crate) index_bits_per_key: Option<f64>,
    pub(crate) found: Reads,
    pub(crate) absent: Reads,
    pub(crate) scan: Reads,
    pub(crate) clustered: Creates,
    pub(crate) clustered_scan: Reads,
}

struct Run<'a> {
    plan: &'a Plan,
    dir: &'a Path,
    store: Box<dyn Store>,
    /// Rows created.
    rows: u64,
}

/// Measures `store`, which was just made in `dir`.
pub(crate) fn run(plan: &Plan, dir: &Path, store: Box<dyn Store>) -> Outcome<Figures> {
    let mut run = Run { plan, dir, store, rows: 0 };
    let (rows, directories) = (plan.rows, plan.rows / ROWS_PER_DIRECTORY);
    let random = run.create(|index| scattered(index, rows))?;
    let index_bits = |bytes: u64| bytes as f64 * 8.0 / rows as f64;
    run.lookups(plan.lookups, |store, index| expect(store.get(&any_key(index, rows))?))?;
    let found = run.lookups(plan.lookups, |store, index| {
        expect(store.get(&any_key(index + plan.lookups, rows))?)
    })?;
    let index_bits_per_key = run.store.index_bytes().map(index_bits);
    let absent = run.lookups(plan.lookups, |store, index| {
        expect(!store.get(&absent_key(mixed(index) % rows))?)
    })?;
    let scans = plan.lookups / 10;
    let scan_one = |store: &dyn Store, first: u64, index: u64| {
        let directory = first + mixed(index) % directories;
        expect(store.scan(directory)? == ROWS_PER_DIRECTORY)
    };
    let scan = run.lookups(scans, |store, index| scan_one(store, 0, index))?;
    let clustered = run.create(|index| {
        let directory = directories + scattered(index / ROWS_PER_DIRECTORY, directories);
        directory * ROWS_PER_DIRECTORY + index % ROWS_PER_DIRECTORY
    })?;
    let clustered_scan = run.lookups(scans, |store, index| scan_one(store, directories, index))?;
    Ok(Figures { random, index_bits_per_key, found, absent, scan, clustered, clustered_scan })
}

fn any_key(index: u64, rows: u64) -> crate::workload::Key {
    key(mixed(index) % rows)
}

/// A figure of wrong answers is none.
fn expect(right: bool) -> Outcome<()> {
    if right { Ok(()) } else { Err("the store gave a wrong answer".into()) }
}

impl Run<'_> {
    /// Creates the rows that `row` numbers and lets the store come to rest.
    fn create(&mut self, row: impl Fn(u64) -> u64) -> Outcome<Creates> {
        let count = self.plan.rows;
        let (start, before) = (Instant::now(), Meter::now()?);
        let mapped_before = self.store.mapped_bytes();
        let (mut second, mut done, mut worst) = (start, 0, f64::MAX);
        for index in 0..count {
            let number = row(index);
            let key = key(number);
            expect(!self.store.get(&key)?)?;
            self.store.put(&key, &value(number))?;
            if index % 64 == 0 && second.elapsed().as_secs_f64() >= 1.0 {
                worst = worst.min((index - done) as f64 / second.elapsed().as_secs_f64());
                (second, done) = (Instant::now(), index);
            }
        }
        let rate = count as f64 / start.elapsed().as_secs_f64();
        self.rows += count;
        self.store.flush()?;
        wait_until_still()?;
        let taken = before.since()?;
        let written = taken.written + self.store.mapped_bytes() - mapped_before;
        self.tell();
        Ok(Creates {
            cpu_us: taken.cpu_ns as f64 / 1000.0 / count as f64,
            write_amplification: written as f64 / (count * ROW_BYTES) as f64,
            worst_second: worst.min(rate) / rate,
            rate,
            space: space_bytes(self.dir)? as f64 / (self.rows * ROW_BYTES) as f64,
        })
    }

    /// Does `step` so many times with nothing of the store's files in the page cache.
    fn lookups(
        &mut self,
        count: u64,
        step: impl Fn(&dyn Store, u64) -> Outcome<()>,
    ) -> Outcome<Reads> {
        let files = Files::below(self.dir)?;
        let before = Meter::now()?;
        let mut cpu = 0;
        for chunk in 0..count.div_ceil(LOOKUPS_BETWEEN_DROPS) {
            files.drop_cached();
            let start = cpu_ns()?;
            let first = chunk * LOOKUPS_BETWEEN_DROPS;
            for index in first..(first + LOOKUPS_BETWEEN_DROPS).min(count) {
                step(&*self.store, index)?;
            }
            cpu += cpu_ns()? - start;
        }
        let taken = before.since()?;
        self.tell();
        Ok(Reads {
            cpu_us: cpu as f64 / 1000.0 / count as f64,
            read_bytes: taken.read as f64 / count as f64,
        })
    }

    fn tell(&self) {
        if self.plan.details {
            eprintln!("{}", self.store.details());
        }
    }
}
