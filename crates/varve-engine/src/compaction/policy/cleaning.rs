//! Decides which segments are emptied: pure functions of how much of each is in use.
//!
//! 1. A merge writes values anew, instead of carrying pointers to them along, if they stand in segments of which
//!    less than half is in use ([`leaving`]). That costs no more than one byte written for each given back.
//! 2. When what is not in use comes to more than a third of what is, tables are rewritten in their places, one by
//!    one, so that they no longer point into the segment with the smallest part in use ([`pick`]). In use of it are
//!    three quarters at most, so each byte given back costs three written.
//!
//! The excess counts as debt, which slows writers down: the space of a store is bounded. What cannot be emptied counts for
//! nothing ([`leave_alone`]).
//!
//! Source: the garbage collection of WiscKey (section 3.3) and its successors, here without a lookup per value.

use std::collections::{BTreeSet, HashSet};

use varve_types::FileNo;

use super::{Job, Levels, Shape, States};
use crate::place::Place;

/// A segment as a merge's inputs, or all tables of a key space, use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentUse {
    pub(crate) file: FileNo,
    /// Bytes of its records.
    pub(crate) record_bytes: u64,
    /// Bytes of records that tables point at.
    pub(crate) used_bytes: u64,
}

impl SegmentUse {
    fn unused_bytes(&self) -> u64 {
        self.record_bytes.saturating_sub(self.used_bytes)
    }

    fn used_part(&self) -> f64 {
        self.used_bytes as f64 / self.record_bytes.max(1) as f64
    }
}

/// A merge writes anew what stands in segments with a smaller part in use.
const USED_PART_MIN: f64 = 0.5;
/// What is not in use may be this part of what is.
const UNUSED_DIVISOR: u64 = 3;
/// The most bytes of values that one merge writes anew, in tables' worth.
const REWRITTEN_TABLES_MAX: u64 = 8;

/// Takes out of `uses` the segments that cannot be emptied, which it returns: those that `is_damaged` says, and those into which
/// such tables point.
pub(crate) fn leave_alone(
    levels: &Levels<'_>,
    uses: &mut Vec<SegmentUse>,
    is_damaged: impl Fn(FileNo) -> bool,
) -> HashSet<FileNo> {
    let tables = levels.iter().flatten().flat_map(|run| &run.tables);
    let pointing = tables.filter(|table| is_damaged(table.file));
    let mut left: HashSet<FileNo> =
        pointing.flat_map(|table| &table.segments).map(|share| share.segment).collect();
    left.extend(uses.iter().map(|segment| segment.file).filter(|file| is_damaged(*file)));
    uses.retain(|segment| !left.contains(&segment.file));
    left
}

fn unused_max(shape: &Shape, uses: &[SegmentUse]) -> u64 {
    let used: u64 = uses.iter().map(|segment| segment.used_bytes).sum();
    (used / UNUSED_DIVISOR).max(shape.table_bytes)
}

/// Bytes that are not in use beyond what may be.
pub(crate) fn debt_bytes(shape: &Shape, uses: &[SegmentUse]) -> u64 {
    let unused: u64 = uses.iter().map(SegmentUse::unused_bytes).sum();
    unused.saturating_sub(unused_max(shape, uses))
}

/// The urgency, above 1 if cleaning is due; the job, which rewrites one table in its place; and the segment that
/// it shall no longer point into.
pub(crate) fn pick(
    shape: &Shape,
    levels: &Levels<'_>,
    uses: &[SegmentUse],
    states: &States,
) -> Option<(f64, Job, FileNo)> {
    let unused: u64 = uses.iter().map(SegmentUse::unused_bytes).sum();
    let score = unused as f64 / unused_max(shape, uses) as f64;
    if score < 1.0 {
        return None;
    }
    let worst = uses.iter().min_by(|a, b| a.used_part().total_cmp(&b.used_part()))?.file;
    Some((score, emptying(levels, worst, states)?, worst))
}

/// The job that rewrites one table in its place, and the segment that it shall no longer point into: that with the smallest
/// part in use of those of which at most `used_max` bytes are, and one part in `share` is not.
pub(crate) fn pick_small(
    levels: &Levels<'_>,
    uses: &[SegmentUse],
    states: &States,
    used_max: u64,
    share: u64,
) -> Option<(Job, FileNo)> {
    let fits = |segment: &&SegmentUse| {
        segment.used_bytes <= used_max && segment.unused_bytes() * share >= segment.record_bytes
    };
    let small = uses.iter().filter(fits);
    let worst = small.min_by(|a, b| a.used_part().total_cmp(&b.used_part()))?.file;
    Some((emptying(levels, worst, states)?, worst))
}

/// Rewrites in its place the table that points most into the segment `worst`.
fn emptying(levels: &Levels<'_>, worst: FileNo, states: &States) -> Option<Job> {
    let tables = levels.iter().enumerate().flat_map(|(level, runs)| {
        let placed = runs.iter().map(move |run| (Place { level, sublevel: run.id }, run));
        placed.flat_map(|(place, run)| run.tables.iter().map(move |table| (place, *table)))
    });
    let shares = tables.filter_map(|(place, table)| {
        let share = table.segments.iter().find(|share| share.segment == worst)?;
        Some((share.bytes, place, table))
    });
    let (_, place, table) = shares.max_by_key(|(bytes, ..)| *bytes)?;
    Some(Job::in_place(place, table.file, states))
}

/// The segments, besides `worst`, whose values a merge writes anew. `uses` are those of the whole key space,
/// `pointed` those of the merge's inputs: bytes by segment. There is room for `room_bytes` of them.
pub(crate) fn leaving(
    shape: &Shape,
    uses: &[SegmentUse],
    pointed: impl Fn(FileNo) -> u64,
    worst: Option<FileNo>,
    room_bytes: u64,
) -> BTreeSet<FileNo> {
    let mut candidates: Vec<_> = uses
        .iter()
        .filter(|segment| segment.used_part() < USED_PART_MIN && pointed(segment.file) > 0)
        .collect();
    candidates.sort_by(|a, b| a.used_part().total_cmp(&b.used_part()));
    let mut left = room_bytes.min(REWRITTEN_TABLES_MAX * shape.table_bytes);
    let mut leaving: BTreeSet<FileNo> = worst.into_iter().collect();
    for segment in candidates {
        let bytes = pointed(segment.file);
        if bytes > left {
            break;
        }
        left -= bytes;
        leaving.insert(segment.file);
    }
    leaving
}

#[cfg(test)]
mod tests {
    use varve_format::edit::TableMeta;
    use varve_format::segment::SegmentShare;

    use super::super::testing::{SHAPE, files, levels, table};
    use super::*;

    fn used(file: u64, record_bytes: u64, used_bytes: u64) -> SegmentUse {
        SegmentUse { file: FileNo::new(file), record_bytes, used_bytes }
    }

    fn pointing(file: u64, shares: &[(u64, u64)]) -> TableMeta {
        let share = |(segment, bytes): &(u64, u64)| SegmentShare {
            segment: FileNo::new(*segment),
            bytes: *bytes,
        };
        TableMeta { segments: shares.iter().map(share).collect(), ..table(file, ("a", "z"), 1) }
    }

    #[test]
    fn nothing_is_cleaned_while_a_third_or_less_is_unused() {
        let tables = [(1, 0, pointing(1, &[(7, 90)]))];
        let pick = |record_bytes| {
            let uses = [used(7, record_bytes, 90)];
            let picked = pick(&SHAPE, &levels(&tables), &uses, &States::default());
            assert_eq!(debt_bytes(&SHAPE, &uses), record_bytes.saturating_sub(120));
            picked.map(|(_, job, worst)| (files(&job), worst.get()))
        };
        assert_eq!(pick(119), None);
        assert_eq!(pick(121), Some((vec![1], 7)));
    }

    #[test]
    fn the_table_that_points_most_into_the_worst_segment_is_rewritten_in_its_place() {
        let tables = [
            (0, 9, pointing(1, &[(7, 10), (8, 90)])),
            (3, 0, pointing(2, &[(7, 20)])),
            (4, 0, pointing(3, &[(8, 10)])),
        ];
        let uses = [used(7, 100, 30), used(8, 100, 100)];
        let (score, job, worst) =
            pick(&SHAPE, &levels(&tables), &uses, &States::default()).unwrap();
        assert!(score > 1.0);
        assert_eq!((files(&job), worst), (vec![2], FileNo::new(7)));
        assert_eq!((job.level, job.output_level, job.end), (3, 3, None));
    }

    #[test]
    fn what_damaged_tables_point_into_is_left_alone() {
        let tables =
            [(0, 9, pointing(1, &[(7, 10), (8, 20)])), (1, 0, pointing(2, &[(8, 1), (9, 1)]))];
        let left_and_rest = |damaged: &[u64]| {
            let mut uses = vec![used(7, 100, 10), used(8, 100, 21), used(9, 100, 1)];
            let is_damaged = |file: FileNo| damaged.contains(&file.get());
            let left = leave_alone(&levels(&tables), &mut uses, is_damaged);
            let mut left: Vec<_> = left.into_iter().map(FileNo::get).collect();
            left.sort_unstable();
            (left, uses.iter().map(|segment| segment.file.get()).collect())
        };
        assert_eq!(left_and_rest(&[]), (vec![], vec![7, 8, 9]));
        assert_eq!(left_and_rest(&[1]), (vec![7, 8], vec![9]));
        assert_eq!(left_and_rest(&[2, 7]), (vec![7, 8, 9], vec![]));
    }

    #[test]
    fn of_the_segments_that_fit_the_one_of_least_use_is_emptied() {
        let tables = [(0, 9, pointing(1, &[(7, 30), (8, 50), (9, 9)]))];
        let uses = [used(7, 100, 30), used(8, 100, 50), used(9, 10, 9)];
        let pick = |used_max, share| {
            let picked = pick_small(&levels(&tables), &uses, &States::default(), used_max, share);
            picked.map(|(job, worst)| (files(&job), worst.get()))
        };
        assert_eq!(pick(100, 2), Some((vec![1], 7)));
        assert_eq!(pick(29, 2), None);
        assert_eq!(pick(29, 10), Some((vec![1], 9)));
        assert_eq!(pick(8, 10), None);
    }

    #[test]
    fn merges_take_values_out_of_segments_of_little_use_within_a_bound() {
        let uses = [used(1, 100, 49), used(2, 100, 51), used(3, 100, 1), used(4, 100, 2)];
        let within = |bytes: u64, worst: Option<u64>, room_bytes: u64| {
            let pointed = |file: FileNo| if file == FileNo::new(4) { 0 } else { bytes };
            let set = leaving(&SHAPE, &uses, pointed, worst.map(FileNo::new), room_bytes);
            set.into_iter().map(FileNo::get).collect::<Vec<_>>()
        };
        let of = |bytes, worst| within(bytes, worst, 1 << 30);
        assert_eq!(within(40, None, 79), [3]);
        assert_eq!(within(40, None, 39), [0; 0]);
        assert_eq!(of(40, None), [1, 3]);
        assert_eq!(of(41, None), [3]);
        assert_eq!(of(81, None), [0; 0]);
        assert_eq!(of(81, Some(2)), [2]);
    }
}
