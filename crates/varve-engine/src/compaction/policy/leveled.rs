//! Leveled compaction as TableFS 4.1.2 describes it: level 0 is due by its number of sub-levels, which each
//! lookup may have to search; every other level by its bytes against a target that grows by a factor
//! from level to level. The level that is furthest above its target goes first. Tables of a level take
//! turns in key order. Where room is short, the first of those goes whose next job finds some.
//!
//! A level below level 0 with several sub-levels, which a store that was stepped before may have, is merged
//! into one first ([`stepped::collapse`]).

use bytes::Bytes;
use varve_format::edit::TableMeta;
use varve_types::{FileNo, SublevelId};

use super::{
    Job, LevelState, Levels, Run, Shape, States, level_bytes, merged_bytes, overlapping, stepped,
    target_bytes,
};
use crate::place::{LEVELS, Place};

/// The most bytes, in tables' worth, of the level after next that one output table may overlap.
pub(crate) const GRANDPARENT_TABLES_MAX: u64 = 10;

/// How far each level but the last is above its target; above 1 it is due.
fn score(shape: &Shape, levels: &Levels<'_>, level: usize) -> f64 {
    let runs = &levels[level];
    if level == 0 {
        return runs.len() as f64 / shape.sublevels_trigger.max(1) as f64;
    }
    level_bytes(runs) as f64 / target_bytes(shape, level) as f64
}

/// Bytes that stand above their level's target.
pub(super) fn debt_bytes(shape: &Shape, levels: &Levels<'_>) -> u64 {
    let l0 = if levels[0].len() > shape.sublevels_trigger { level_bytes(&levels[0]) } else { 0 };
    let rest = (1..LEVELS - 1)
        .map(|level| level_bytes(&levels[level]).saturating_sub(target_bytes(shape, level)));
    l0 + rest.sum::<u64>()
}

/// The one sub-level of a level below level 0.
fn only<'a, 'b>(levels: &'b Levels<'a>, level: usize) -> &'b [&'a TableMeta] {
    levels.get(level).and_then(|runs| runs.first()).map_or(&[], |run| &run.tables)
}

/// See [`super::pick`].
pub(super) fn pick(shape: &Shape, levels: &Levels<'_>, states: &States) -> Option<(f64, Job)> {
    if let Some(level) = (1..LEVELS).rfind(|level| levels[*level].len() > 1) {
        let sublevels = levels[level].len() as f64;
        return stepped::collapse(shape, levels, level).map(|job| (sublevels, job));
    }
    let mut due: Vec<(usize, f64)> = (0..LEVELS - 1)
        .map(|level| (level, score(shape, levels, level)))
        .filter(|(level, score)| *score >= 1.0 && !levels[*level].is_empty())
        .collect();
    due.sort_by(|a, b| b.1.total_cmp(&a.1));
    let job = |(level, score): &(usize, f64)| {
        job_of(shape, levels, states, *level).map(|(job, bytes)| (*score, job, bytes))
    };
    // What finds no room is not in the way of what does.
    let fits = |bytes: u64| bytes / 2 <= shape.room_bytes;
    let fitting = due.iter().filter_map(job).find(|(_, job, bytes)| job.is_move || fits(*bytes));
    let (score, job, _) = fitting.or_else(|| due.first().and_then(job))?;
    Some((score, job))
}

/// The next job of `level`, and bytes that it takes.
fn job_of(shape: &Shape, levels: &Levels<'_>, states: &States, level: usize) -> Option<(Job, u64)> {
    let upper = if level == 0 {
        overlapping_with_oldest(&levels[0])
    } else {
        let run = &levels[level][0];
        vec![(run.id, next_in_turn(&run.tables, &states[level].cursor))]
    };
    let smallest = upper.iter().map(|(_, table)| &table.smallest_key).min()?;
    let largest = upper.iter().map(|(_, table)| &table.largest_key).max()?;
    let lower = overlapping(only(levels, level + 1), smallest, largest);
    let grandparents = overlapping(only(levels, level + 2), smallest, largest);
    let grandparent_bytes = grandparents.iter().map(|table| table.total_bytes()).sum::<u64>();
    let is_move = upper.len() == 1
        && lower.is_empty()
        && grandparent_bytes <= GRANDPARENT_TABLES_MAX * shape.table_bytes;
    let below = levels[level + 1].first().map_or(SublevelId::default(), |run| run.id);
    let inputs = upper.iter().map(|(_, table)| *table).chain(lower.iter().copied());
    let bytes = inputs.map(|table| merged_bytes(shape, table)).sum();
    let place = |level, sublevel| move |table: &TableMeta| (Place { level, sublevel }, table.file);
    let mut inputs: Vec<(Place, FileNo)> =
        upper.iter().map(|(id, table)| place(level, *id)(table)).collect();
    inputs.extend(lower.into_iter().map(place(level + 1, below)));
    let job = Job {
        level,
        inputs,
        output_level: level + 1,
        output_sublevel: Some(below),
        end: None,
        is_move,
        state: LevelState { cursor: largest.clone(), pass: None },
    };
    Some((job, bytes))
}

/// The oldest tables of level 0 and every other that overlaps them, directly or through others: all
/// versions of their keys in the level go down together.
fn overlapping_with_oldest<'a>(runs: &[Run<'a>]) -> Vec<(SublevelId, &'a TableMeta)> {
    let Some(oldest) = runs.last().and_then(|run| run.tables.first()) else { return Vec::new() };
    let (mut smallest, mut largest) = (&oldest.smallest_key, &oldest.largest_key);
    loop {
        let found: Vec<_> = runs
            .iter()
            .flat_map(|run| {
                let tables = overlapping(&run.tables, smallest, largest).into_iter();
                tables.map(|table| (run.id, table))
            })
            .collect();
        let lower = found.iter().map(|(_, table)| &table.smallest_key).min().unwrap_or(smallest);
        let upper = found.iter().map(|(_, table)| &table.largest_key).max().unwrap_or(largest);
        if lower == smallest && upper == largest {
            return found;
        }
        (smallest, largest) = (lower, upper);
    }
}

/// The first table after the cursor, or the first of all.
fn next_in_turn<'a>(tables: &[&'a TableMeta], cursor: &Bytes) -> &'a TableMeta {
    tables.iter().find(|table| table.smallest_key > cursor).unwrap_or(&tables[0])
}

#[cfg(test)]
mod tests {
    use varve_format::segment::SegmentShare;

    use super::super::testing::{self, files, levels, table};
    use super::*;

    const SHAPE: Shape = Shape { table_bytes: 50, ..testing::SHAPE };

    fn job(tables: &[(usize, u64, TableMeta)], states: &States) -> Option<Job> {
        pick(&SHAPE, &levels(tables), states).map(|(_, job)| job)
    }

    #[test]
    fn a_store_in_shape_is_left_alone() {
        assert_eq!(job(&[], &States::default()), None);
        let tables = [(0, 1, table(1, ("a", "z"), 900)), (1, 0, table(2, ("a", "z"), 99))];
        assert_eq!(job(&tables, &States::default()), None);
        let bottom = [(LEVELS - 1, 0, table(1, ("a", "z"), u64::MAX / 2))];
        assert_eq!(job(&bottom, &States::default()), None);
    }

    #[test]
    fn level_0_takes_all_tables_that_hang_together() {
        let tables = [
            (0, 4, table(4, ("x", "z"), 1)),
            (0, 3, table(3, ("c", "f"), 1)),
            (0, 2, table(2, ("a", "d"), 1)),
            (1, 0, table(1, ("e", "w"), 1)),
            (1, 0, table(5, ("y", "y"), 1)),
        ];
        let job = job(&tables, &States::default()).unwrap();
        assert_eq!(files(&job), [3, 2, 1]);
        assert!(!job.is_move);
    }

    /// A level 0 that found no room was picked again and again, and nothing else was.
    #[test]
    fn a_job_that_finds_no_room_is_not_in_the_way_of_others() {
        let tables = [
            (0, 4, table(4, ("a", "z"), 300)),
            (0, 3, table(3, ("a", "z"), 300)),
            (0, 2, table(2, ("a", "z"), 300)),
            (0, 1, table(1, ("a", "z"), 300)),
            (1, 0, table(5, ("a", "c"), 60)),
            (1, 0, table(6, ("d", "f"), 60)),
            (2, 0, table(7, ("b", "g"), 60)),
        ];
        let within = |room_bytes| {
            let shape = Shape { room_bytes, ..SHAPE };
            let picked = pick(&shape, &levels(&tables), &States::default());
            picked.map(|(_, job)| (job.level, files(&job)))
        };
        assert_eq!(within(660), Some((0, vec![4, 3, 2, 1, 5, 6])));
        assert_eq!(within(659), Some((1, vec![5, 7])));
        assert_eq!(within(60), Some((1, vec![5, 7])));
        // Where none does, the most urgent says so.
        assert_eq!(within(59), Some((0, vec![4, 3, 2, 1, 5, 6])));
    }

    /// Values that the merge brings into rows were left out: it was refused, and picked again and again.
    #[test]
    fn what_is_brought_into_rows_takes_room_too() {
        let share = SegmentShare { segment: FileNo::new(9), bytes: 500 };
        let upper = TableMeta { segments: vec![share], ..table(4, ("a", "z"), 60) };
        let tables = [
            (0, 4, upper),
            (0, 3, table(3, ("a", "z"), 60)),
            (1, 0, table(5, ("a", "c"), 110)),
            (2, 0, table(7, ("b", "g"), 60)),
        ];
        let within = |values_in_rows, room_bytes| {
            let shape = Shape { values_in_rows, room_bytes, sublevels_trigger: 1, ..SHAPE };
            let picked = pick(&shape, &levels(&tables), &States::default());
            picked.map(|(_, job)| files(&job))
        };
        assert_eq!(within(true, 365), Some(vec![4, 3, 5]));
        assert_eq!(within(true, 364), Some(vec![5, 7]));
        assert_eq!(within(false, 364), Some(vec![4, 3, 5]));
    }

    #[test]
    fn tables_take_turns() {
        let tables = [
            (1, 0, table(1, ("a", "c"), 60)),
            (1, 0, table(2, ("d", "f"), 60)),
            (2, 0, table(3, ("e", "g"), 60)),
        ];
        let mut states = States::default();
        let first = job(&tables, &states).unwrap();
        assert_eq!(files(&first), [1]);
        assert!(first.is_move);
        states[1] = first.state;
        let second = job(&tables, &states).unwrap();
        assert_eq!(files(&second), [2, 3]);
        states[1] = second.state;
        assert_eq!(files(&job(&tables, &states).unwrap()), [1]);
    }

    #[test]
    fn a_table_does_not_move_above_too_many_grandparents() {
        let tables = [(1, 0, table(1, ("a", "z"), 200)), (3, 0, table(2, ("a", "z"), 501))];
        assert!(!job(&tables, &States::default()).unwrap().is_move);
    }

    #[test]
    fn sub_levels_left_by_another_policy_are_merged_into_one_first() {
        let tables = [
            (0, 9, table(9, ("a", "z"), 1)),
            (0, 8, table(8, ("a", "z"), 1)),
            (2, 5, table(2, ("a", "m"), 1)),
            (2, 3, table(1, ("d", "z"), 1)),
        ];
        let job = job(&tables, &States::default()).unwrap();
        assert_eq!(files(&job), [2, 1]);
        assert_eq!((job.output_level, job.output_sublevel), (2, Some(SublevelId::new(3))));
    }

    #[test]
    fn debt_is_what_stands_above_the_targets() {
        let over = (1, 0, table(1, ("a", "z"), 130));
        let l0 = |id| (0, id, table(id, ("a", "z"), 7));
        assert_eq!(debt_bytes(&SHAPE, &levels(&[over.clone(), l0(8), l0(9)])), 30);
        assert_eq!(debt_bytes(&SHAPE, &levels(&[over, l0(7), l0(8), l0(9)])), 51);
    }
}
