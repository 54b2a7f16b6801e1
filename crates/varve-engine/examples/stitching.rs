//! What stitching leaves behind, by its threshold: `stitching DIR [MIB]`.
//!
//! As in section 4.5 of the thesis of KVFS, smaller: MIB MiB (48 if not given) of file blocks of 4 KiB go into files taken
//! at random, in sequences of random length up to the stitching threshold, and a part of older blocks is
//! overwritten. Printed for each threshold, before and after defragmentation: zones, the part of them of which less
//! than 75 % is needed, how they are used, the mean run, the time of a scan of all; write amplification of compaction
//! and of defragmentation. Table 4.4 and figures 4.9 and 4.10 stand beside.

use std::path::Path;
use std::sync::Arc;

use varve_engine::{
    Batch, CompactionPolicy, Db, DbOptions, Defragmented, Direction, Fit, Fragmentation, KeyRange,
    KeyspaceOptions, Store, StoreResult,
};
use varve_env::Env;
use varve_env::os::OsEnv;
use varve_env::rng::Rng;
use varve_format::filter::FilterPolicy;
use varve_types::KeyspaceId;

const BLOCK_BYTES: u64 = 4000;
const FILES: u64 = 200;
const MIB: u64 = 1 << 20;
/// The last is above the longest run, so that everything is copied.
const THRESHOLDS_KIB: [u32; 7] = [16, 32, 64, 128, 256, 512, NO_STITCHING];
const NO_STITCHING: u32 = 1 << 20;
/// The longest sequence.
const SEQUENCE_KIB_MAX: u32 = 512;

/// What one threshold came to.
struct Outcome {
    threshold_kib: u32,
    done: Defragmented,
    /// Bytes written by compaction for each byte put in, and by defragmentation.
    amplification: [f64; 2],
    /// Milliseconds of a scan, before and after, and of the defragmentation.
    ms: [f64; 3],
}

fn open(env: &Arc<OsEnv>, dir: &Path, threshold_kib: u32) -> StoreResult<(Db, KeyspaceId)> {
    let options = DbOptions {
        compaction: CompactionPolicy::Stitched,
        stitch_threshold_bytes: threshold_kib << 10,
        filter: FilterPolicy::Quotient { remainder_bits: 8 },
        memtable_bytes: 2 << 20,
        table_bytes: 4 << 20,
        level_base_bytes: 8 << 20,
        sublevels_trigger: 4,
        // Fragmentation is what is looked for: nothing is done about it in the background.
        dead_percent_max: 100,
        ..DbOptions::with_memory_budget(64 << 20)
    };
    let db = Db::open(env.clone(), dir, options)?;
    let id = db.keyspace("blocks", KeyspaceOptions { prefixed: true, compressed: false })?;
    Ok((db, id))
}

fn write(db: &Db, id: KeyspaceId, threshold_kib: u32, bytes: u64) -> StoreResult<()> {
    let mut random = Rng::new(u64::from(threshold_kib));
    let mut lengths = vec![0u64; FILES as usize];
    let mut written = 0;
    while written < bytes {
        let file = random.below(FILES);
        let blocks = 1 + random.below(u64::from(threshold_kib.min(SEQUENCE_KIB_MAX)) / 4);
        // One sequence of four overwrites what is there.
        let length = lengths[file as usize];
        let overwrites = length > 0 && random.below(4) == 0;
        let start = if overwrites { random.below(length) } else { length };
        let mut batch = Batch::new();
        for block in start..start + blocks {
            let key = [file.to_be_bytes(), block.to_be_bytes()].concat();
            batch.put(id, key, vec![(file ^ block) as u8; BLOCK_BYTES as usize]);
        }
        db.write(batch)?;
        lengths[file as usize] = length.max(start + blocks);
        written += blocks * BLOCK_BYTES;
    }
    db.flush()?;
    db.compact()
}

/// Milliseconds that a scan of all takes.
fn scan_ms(env: &OsEnv, db: &Db, id: KeyspaceId) -> StoreResult<f64> {
    let start = env.monotonic();
    for row in db.scan(id, KeyRange::all(), Direction::Forward)? {
        row?;
    }
    Ok((env.monotonic() - start).as_secs_f64() * 1e3)
}

fn measure(env: &Arc<OsEnv>, dir: &Path, threshold_kib: u32, bytes: u64) -> StoreResult<Outcome> {
    let dir = dir.join(format!("threshold-{threshold_kib}"));
    let (db, id) = open(env, &dir, threshold_kib)?;
    write(&db, id, threshold_kib, bytes)?;
    let metrics: serde_json::Value = serde_json::from_str(&db.metrics_json()).unwrap_or_default();
    let levels = metrics["compaction_write_bytes_by_level"].as_array().into_iter().flatten();
    let compacted: u64 = levels.filter_map(serde_json::Value::as_u64).sum();
    let before = scan_ms(env, &db, id)?;
    let start = env.monotonic();
    let done = db.defragment(Fit::Best)?;
    let defragmented = (env.monotonic() - start).as_secs_f64() * 1e3;
    let ms = [before, scan_ms(env, &db, id)?, defragmented];
    let amplification = [compacted, done.written_bytes].map(|part| part as f64 / bytes as f64);
    db.close()?;
    Ok(Outcome { threshold_kib, done, amplification, ms })
}

fn label(threshold_kib: u32) -> String {
    if threshold_kib == NO_STITCHING { "none".to_owned() } else { format!("{threshold_kib} KiB") }
}

fn percent(part: u64, of: u64) -> f64 {
    part as f64 * 100.0 / of.max(1) as f64
}

#[allow(clippy::print_stdout, reason = "this is what the program is for")]
fn print(outcomes: &[Outcome]) {
    println!("Table 4.4: a defragmentation; times in milliseconds.");
    println!(
        "threshold  scan before  defragmentation  scan after  zones before  after  bytes needed by nobody"
    );
    for Outcome { threshold_kib, done, ms, .. } in outcomes {
        let dead = |of: &Fragmentation| percent(of.dead_bytes, of.bytes);
        println!(
            "{:>9}  {:>11.0}  {:>15.0}  {:>10.0}  {:>12}  {:>5}  {:>5.1} % then {:.1} %",
            label(*threshold_kib),
            ms[0],
            ms[2],
            ms[1],
            done.before.zones,
            done.after.zones,
            dead(&done.before),
            dead(&done.after)
        );
    }
    println!(
        "thesis, 64 KiB and 38 GB: 377.7 s, 284.1 s, 274.8 s, 11264 zones, of which 6270 (55 %) were reclaimed"
    );
    println!(
        "\nFigure 4.9: zones of which less than 75 % is needed. In the thesis they become fewer as the threshold grows."
    );
    println!(
        "threshold  before    after  mean run before  after  written by compaction  by defragmentation"
    );
    for Outcome { threshold_kib, done, amplification, .. } in outcomes {
        let under = |of: &Fragmentation| percent(of.under_utilized, of.zones);
        println!(
            "{:>9}  {:>4.0} %  {:>5.0} %  {:>11} KiB  {:>1} KiB  {:>21.2}  {:>18.2}",
            label(*threshold_kib),
            under(&done.before),
            under(&done.after),
            done.before.mean_run_bytes >> 10,
            done.after.mean_run_bytes >> 10,
            amplification[0],
            amplification[1]
        );
    }
    println!(
        "\nFigure 4.10: zones by the part of them that is needed, before. In the thesis small thresholds leave most zones"
    );
    println!("around 40 and 70 %, large ones either below 10 % or nearly whole.");
    println!(
        "threshold    <10    <20    <30    <40    <50    <60    <70    <80    <90   <100    100 %"
    );
    for Outcome { threshold_kib, done, .. } in outcomes {
        let parts =
            done.before.by_use.map(|zones| format!("{:>5.0} %", percent(zones, done.before.zones)));
        println!("{:>9}  {}", label(*threshold_kib), parts.join(""));
    }
}

fn main() -> StoreResult<()> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().unwrap_or_else(|| "stitching".to_owned());
    let mib = arguments.next().and_then(|mib| mib.parse().ok()).unwrap_or(48);
    let env = OsEnv::new();
    let dir = Path::new(&dir);
    let measured = THRESHOLDS_KIB.map(|threshold| measure(&env, dir, threshold, mib * MIB));
    let outcomes = measured.into_iter().collect::<StoreResult<Vec<Outcome>>>()?;
    print(&outcomes);
    Ok(())
}
