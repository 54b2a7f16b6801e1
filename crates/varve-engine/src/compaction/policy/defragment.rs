//! Decides what to defragment: which zones to empty, and of which table to rewrite what it has in them. A pure
//! function of what the manifest says.
//!
//! 1. [`uses`] sums up what the tables of a key space need of each file.
//! 2. A file that is no table's own and of which less than [`LIVE_PERCENT_MIN`] is needed may be emptied. Its *weight*
//!    is the mean length of the runs in it; the lightest goes first, so that least order is lost.
//! 3. One table that points at it is rewritten, the runs of the file copied, all others left. What else the table has in
//!    such files goes along as far as there is room in the new file: the next lightest that fits ([`Fit::First`]),
//!    or that which leaves the least room ([`Fit::Best`]).
//!
//! A file goes when nothing points at it any more. No step copies more than the room that there is.
//!
//! Apart from that, merges copy what they pass of files of which less than half is needed ([`leaving`]): that costs no
//! more than one byte written for each given back, and bounds what nobody needs even while merges never pause.
//!
//! Source: KVFS thesis 3.2.1. Departure: files are never written again, so what is copied goes into the room of a new
//! file and not into holes of old ones.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};
use varve_format::edit::TableMeta;
use varve_types::FileNo;

/// A file of which a smaller part is needed counts as under-utilized (KVFS thesis 4.5).
pub(crate) const LIVE_PERCENT_MIN: u64 = 75;
/// Merges copy what they pass of a file of which a smaller part is needed.
const STITCHED_PERCENT_MIN: u64 = 50;

/// Which zones are emptied together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fit {
    /// Those that fill the new file best: fewer and fuller files.
    #[default]
    Best,
    /// The lightest that fit.
    First,
}

/// What tables need of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileUse {
    pub(crate) size_bytes: u64,
    pub(crate) live_bytes: u64,
    pub(crate) runs: u64,
    /// Whether it is a table's own.
    pub(crate) is_table: bool,
}

impl FileUse {
    /// Whether too little of it is needed.
    pub(crate) fn is_under_utilized(&self) -> bool {
        !self.is_table && self.live_bytes * 100 < self.size_bytes * LIVE_PERCENT_MIN
    }

    fn weight(&self) -> u64 {
        self.live_bytes / self.runs.max(1)
    }
}

/// A table to rewrite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rewrite {
    pub(crate) table: FileNo,
    /// The zones whose blocks are copied.
    pub(crate) emptied: HashSet<FileNo>,
    /// Their bytes.
    pub(crate) bytes: u64,
}

/// What `tables` need of each file.
pub(crate) fn uses<'a>(tables: impl Iterator<Item = &'a TableMeta>) -> BTreeMap<FileNo, FileUse> {
    let mut files = BTreeMap::new();
    for table in tables {
        let size_bytes = table.size_bytes;
        let own = FileUse { size_bytes, live_bytes: size_bytes, runs: 1, is_table: true };
        files.insert(table.file, own);
        for zone in &table.zones {
            let size_bytes = zone.zone.size_bytes;
            let unused = FileUse { size_bytes, live_bytes: 0, runs: 0, is_table: false };
            let used: &mut FileUse = files.entry(zone.zone.file).or_insert(unused);
            if !used.is_table {
                used.live_bytes += zone.live_bytes;
                used.runs += zone.runs;
            }
        }
    }
    files
}

/// What part of the files nobody needs, in percent.
pub(crate) fn dead_percent(files: &BTreeMap<FileNo, FileUse>) -> u64 {
    let all: u64 = files.values().map(|file| file.size_bytes).sum();
    let dead = files.values().map(|file| file.size_bytes.saturating_sub(file.live_bytes));
    dead.sum::<u64>() * 100 / all.max(1)
}

/// The files whose blocks merges copy although they could stay.
pub(crate) fn leaving(files: &BTreeMap<FileNo, FileUse>) -> HashSet<FileNo> {
    let is_little_used = |used: &FileUse| {
        !used.is_table && used.live_bytes * 100 < used.size_bytes * STITCHED_PERCENT_MIN
    };
    files.iter().filter(|(_, used)| is_little_used(used)).map(|(file, _)| *file).collect()
}

/// How much may be copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Bytes that the device has room for.
    pub(crate) free_bytes: u64,
    /// Bytes that one new file takes over from others.
    pub(crate) file_bytes: u64,
}

/// The next table to rewrite, or `None` if nothing is to be gained within `room`.
pub(crate) fn pick(
    tables: &[&TableMeta],
    files: &BTreeMap<FileNo, FileUse>,
    fit: Fit,
    room: Room,
) -> Option<Rewrite> {
    // A file goes only when the last table that points at it is rewritten.
    let room_bytes = room.free_bytes.min(room.file_bytes);
    let emptied = |file: &FileNo| {
        files.get(file).filter(|used| used.is_under_utilized() && used.live_bytes <= room_bytes)
    };
    // By weight, and then by age, so that the choice is the same every time.
    let order = |file: &FileNo| emptied(file).map(|used| (used.weight(), *file));
    let mut candidates: Vec<_> = files.keys().filter_map(order).collect();
    candidates.sort_unstable();
    candidates.into_iter().find_map(|(_, lightest)| {
        let points = |table: &&&TableMeta| table.zones.iter().any(|z| z.zone.file == lightest);
        let table = tables.iter().find(points)?;
        // Its index and filters are written again too, and what its own file has, at the most.
        let room_bytes = room.free_bytes.checked_sub(table.size_bytes)?.min(room.file_bytes);
        fill(table, order, fit, room_bytes)
    })
}

/// The next table to rewrite where room is short: one that points at the file of which the smallest part is needed, of
/// those of which at most `room_bytes` are, and one part in `share` is not. What the table has in its own file goes along,
/// which would be the next such file.
pub(crate) fn pick_small(
    tables: &[&TableMeta],
    files: &BTreeMap<FileNo, FileUse>,
    room_bytes: u64,
    share: u64,
) -> Option<Rewrite> {
    let fits = |(_, used): &(&FileNo, &FileUse)| {
        let dead_bytes = used.size_bytes.saturating_sub(used.live_bytes);
        !used.is_table && used.live_bytes <= room_bytes && dead_bytes * share >= used.size_bytes
    };
    let part = |used: &FileUse| used.live_bytes as f64 / used.size_bytes.max(1) as f64;
    let small = files.iter().filter(fits);
    let (emptied, _) = small.min_by(|a, b| part(a.1).total_cmp(&part(b.1)))?;
    let in_it = tables.iter().filter_map(|table| {
        let zone = table.zones.iter().find(|zone| zone.zone.file == *emptied)?;
        Some((table, zone.live_bytes))
    });
    let copied = |table: &TableMeta, bytes: u64| table.size_bytes + bytes;
    let (table, bytes) = in_it.min_by_key(|(table, bytes)| copied(table, *bytes))?;
    let emptied = HashSet::from([*emptied, table.file]);
    let fits = copied(table, bytes) <= room_bytes;
    fits.then_some(Rewrite { table: table.file, emptied, bytes })
}

/// Takes as many zones of `table` as fit into `room_bytes`; `order` gives the weight of those that may be emptied.
fn fill(
    table: &TableMeta,
    order: impl Fn(&FileNo) -> Option<(u64, FileNo)>,
    fit: Fit,
    room_bytes: u64,
) -> Option<Rewrite> {
    let mut rest: Vec<(u64, FileNo, u64)> = table
        .zones
        .iter()
        .filter_map(|zone| {
            order(&zone.zone.file).map(|(weight, file)| (weight, file, zone.live_bytes))
        })
        .collect();
    rest.sort_unstable();
    let mut rewrite = Rewrite { table: table.file, emptied: HashSet::new(), bytes: 0 };
    while let Some(at) = next_fit(&rest, fit, room_bytes - rewrite.bytes) {
        let (_, file, bytes) = rest.remove(at);
        rewrite.emptied.insert(file);
        rewrite.bytes += bytes;
    }
    (!rewrite.emptied.is_empty()).then_some(rewrite)
}

/// Which of `zones`, lightest first, comes next into `room` bytes.
fn next_fit(zones: &[(u64, FileNo, u64)], fit: Fit, room: u64) -> Option<usize> {
    let mut fitting = zones.iter().enumerate().filter(|(_, (_, _, bytes))| *bytes <= room);
    match fit {
        Fit::First => fitting.next(),
        Fit::Best => fitting.max_by_key(|(at, (_, _, bytes))| (*bytes, std::cmp::Reverse(*at))),
    }
    .map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use varve_format::edit::ZoneMeta;
    use varve_format::table::Zone;
    use varve_types::FileSalt;

    use super::super::testing::table;
    use super::*;

    /// A table with zones of (file, bytes of the file, bytes needed, runs).
    fn stitched(file: u64, zones: &[(u64, u64, u64, u64)]) -> TableMeta {
        let zone = |&(file, size_bytes, live_bytes, runs)| ZoneMeta {
            zone: Zone { file: FileNo::new(file), salt: FileSalt::new(file), size_bytes },
            live_bytes,
            runs,
        };
        TableMeta { zones: zones.iter().map(zone).collect(), ..table(file, ("a", "z"), 100) }
    }

    fn picked(tables: &[TableMeta], fit: Fit, file_bytes: u64) -> Option<(u64, Vec<u64>, u64)> {
        let tables: Vec<&TableMeta> = tables.iter().collect();
        let room = Room { free_bytes: file_bytes + 100, file_bytes };
        let rewrite = pick(&tables, &uses(tables.iter().copied()), fit, room)?;
        let mut emptied: Vec<u64> = rewrite.emptied.iter().map(|file| file.get()).collect();
        emptied.sort_unstable();
        Some((rewrite.table.get(), emptied, rewrite.bytes))
    }

    #[test]
    fn merges_copy_what_they_pass_of_files_of_which_less_than_half_is_needed() {
        let tables = [
            stitched(10, &[(1, 100, 49, 1), (2, 100, 50, 1), (3, 100, 30, 1), (4, 100, 30, 1)]),
            stitched(4, &[(3, 100, 30, 1)]),
        ];
        let leaving = leaving(&uses(tables.iter()));
        assert_eq!(leaving, HashSet::from([FileNo::new(1)]), "4 is a table's own file");
    }

    #[test]
    fn the_zone_with_the_shortest_runs_goes_first() {
        let tables = [
            stitched(10, &[(1, 100, 40, 1), (2, 100, 60, 4)]),
            stitched(11, &[(3, 100, 80, 9), (1, 100, 20, 1)]),
        ];
        // Weights: 30, 15; of file 3 enough is needed.
        assert_eq!(picked(&tables, Fit::First, 60), Some((10, vec![2], 60)));
        assert_eq!(picked(&tables, Fit::First, 100), Some((10, vec![1, 2], 100)));
        assert_eq!(picked(&tables, Fit::First, 59), None, "each needs 60 bytes in all");
        assert_eq!(picked(&tables[1..], Fit::First, 59), Some((11, vec![1], 20)));
    }

    #[test]
    fn best_fit_leaves_the_least_room() {
        let zones = [(1, 100, 10, 2), (2, 100, 30, 5), (3, 100, 70, 9), (4, 100, 60, 7)];
        let tables = [stitched(10, &zones)];
        assert_eq!(picked(&tables, Fit::First, 100), Some((10, vec![1, 2, 4], 100)));
        assert_eq!(picked(&tables, Fit::Best, 100), Some((10, vec![2, 3], 100)));
    }

    #[test]
    fn where_room_is_short_the_file_of_least_use_that_fits_goes_alone() {
        let tables = [
            stitched(10, &[(1, 1000, 400, 1), (2, 1000, 500, 9)]),
            stitched(11, &[(3, 1000, 960, 9), (1, 1000, 100, 1)]),
        ];
        let metas: Vec<&TableMeta> = tables.iter().collect();
        let picked = |room_bytes, share| {
            let rewrite = pick_small(&metas, &uses(tables.iter()), room_bytes, share)?;
            let mut emptied: Vec<u64> = rewrite.emptied.iter().map(|file| file.get()).collect();
            emptied.sort_unstable();
            Some((rewrite.table.get(), emptied, rewrite.bytes))
        };
        // Each is 100 bytes in its own file.
        assert_eq!(picked(1000, 2), Some((11, vec![1, 11], 100)));
        assert_eq!(picked(499, 2), None);
        assert_eq!(picked(500, 2), Some((11, vec![1, 11], 100)));
        assert_eq!(picked(1000, 1), None);
    }

    #[test]
    fn what_is_used_enough_or_is_a_table_stays() {
        assert_eq!(picked(&[stitched(10, &[(1, 100, 75, 9)])], Fit::Best, 1000), None);
        let clipped = [stitched(10, &[(11, 100, 5, 1)]), stitched(11, &[])];
        assert_eq!(picked(&clipped, Fit::Best, 1000), None);
        assert_eq!(picked(&[], Fit::Best, 1000), None);
    }

    #[test]
    fn what_nobody_needs_is_counted() {
        let tables = [stitched(10, &[(1, 100, 40, 1)]), stitched(11, &[(1, 100, 10, 1)])];
        assert_eq!(dead_percent(&uses(tables.iter())), 16);
        assert_eq!(dead_percent(&BTreeMap::new()), 0);
    }
}
