//! Writes slow down smoothly while compaction is behind, and are as fast as before when it has caught up.
//! Time is the simulated machine's, in which nothing but the pace takes longer than a microsecond.

use std::sync::Arc;
use std::time::Duration;

use varve_engine::{Batch, Db, DbOptions, Store};
use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_types::KeyspaceId;

use crate::common::*;
use crate::threaded::{Threaded, threaded};

const ROW_BYTES: usize = 256;
/// Bytes written between two flushes, after each of which the pace is set anew.
const STEP_BYTES: usize = 4 << 10;
const SOFT_BYTES: u64 = 48 << 10;
const HARD_BYTES: u64 = 256 << 10;

struct Bench {
    env: Arc<Threaded>,
    db: Db,
    space: KeyspaceId,
    rows: u64,
}

impl Bench {
    fn new() -> Bench {
        let env = Arc::new(threaded(&SimEnv::new(1)));
        let options = DbOptions {
            memtable_bytes: 64 << 10,
            debt_soft_bytes: SOFT_BYTES,
            debt_hard_bytes: HARD_BYTES,
            sync_interval: Duration::from_secs(3600),
            ..small_options()
        };
        let db = Db::open(Arc::clone(&env) as Arc<dyn Env>, &store_dir(), options).unwrap();
        let space = make_spaces(&db).unwrap()[1];
        Bench { env, db, space, rows: 0 }
    }

    /// Writes one step and flushes it. Returns how long the writes took, and the longest of them.
    fn step(&mut self) -> (Duration, Duration) {
        let (mut sum, mut longest) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..STEP_BYTES / ROW_BYTES {
            let mut batch = Batch::new();
            // Scattered, so that every flush overlaps every other.
            let key = self.rows.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
            batch.put(self.space, key, vec![7; ROW_BYTES]);
            let begin = self.env.monotonic();
            self.db.write(batch).unwrap();
            let took = self.env.monotonic().saturating_sub(begin);
            sum += took;
            longest = longest.max(took);
            self.rows += 1;
        }
        self.db.flush().unwrap();
        (sum, longest)
    }
}

#[test]
fn writes_slow_down_smoothly_with_the_debt_and_recover() {
    let mut bench = Bench::new();
    bench.env.hooks.hold(true);
    let steps: Vec<_> = (0..3 * HARD_BYTES as usize / STEP_BYTES).map(|_| bench.step()).collect();
    let sums: Vec<u64> = steps.iter().map(|(sum, _)| sum.as_micros() as u64).collect();
    let longest = steps.iter().map(|(_, longest)| *longest).max().unwrap();
    // Free of charge at first, in the end a megabyte a second, and nobody waits long for it.
    let free = sums.iter().take_while(|micros| **micros < 500).count();
    assert!(free * STEP_BYTES > 16 << 10, "the first steps take {:?}", &sums[..8]);
    let full = STEP_BYTES as u64;
    let last = sums.last().copied().unwrap();
    assert!((full / 2..full * 2).contains(&last), "the last step takes {last} of {full}");
    assert!(longest <= Duration::from_millis(51), "a write waits {longest:?}");
    // Over any eight steps it gets slower by little: no step of the way is a wall.
    let windows: Vec<u64> = sums.windows(8).map(|window| window.iter().sum()).collect();
    for pair in windows.windows(2) {
        assert!(pair[1] <= pair[0] + 2 * full, "from {} to {} in one step", pair[0], pair[1]);
        assert!(pair[1] + 2 * full >= pair[0], "it gets faster while the debt grows: {pair:?}");
    }
    bench.env.hooks.hold(false);
    bench.db.compact().unwrap();
    let (after, _) = bench.step();
    assert!(after < Duration::from_micros(500), "after the debt is paid a step takes {after:?}");
    let metrics: String = bench.db.metrics_json();
    assert!(!metrics.contains("\"paced_ns\":0,"), "{metrics}");
    bench.db.close().unwrap();
}
