//! Stepped merge: each level collects sub-levels, and when there are enough of them one merge makes of them
//! one new sub-level of the next, so that a row is written about once per level.
//!
//! 1. A level is due when it has as many sub-levels as the trigger says. They make up a *pass*; sub-levels that
//!    come later wait for the next.
//! 2. A pass goes through the keys in order, a job's worth at a time: [`range_job`] takes from every sub-level of
//!    the pass what lies up to one key, and leaves clipped what goes on behind it.
//! 3. What comes out goes into the next level: into the oldest sub-level there that it can join without passing
//!    newer rows of the same range ([`sink`]), else into a new one. With a leveled bottom, what goes to the bottom
//!    is merged with it.
//! 4. A table of the pass that overlaps nothing moves as it is.
//! 5. Two things make a level due earlier, above a leveled bottom: of the rows above it so many replace older ones that the
//!    store takes three times its room; and, for level 0, rest: nothing is written for a while, and readers profit
//!    from fewer sub-levels.
//!
//! Source: SlimDB, thesis 5.1.2 and 5.3.3 (stepped merge, sub-levels, merges of a range of keys). The leveled
//! bottom is what the field calls lazy leveling: few duplicates at little more writing.

use bytes::Bytes;
use varve_format::edit::TableMeta;
use varve_types::{FileNo, SublevelId};

use super::{
    Job, LevelState, Levels, Run, Shape, States, level_bytes, merged_bytes, overlapping, run_bytes,
    target_bytes,
};
use crate::CompactionPolicy;
use crate::place::{LEVELS, Place};

/// Bytes that a job takes, in tables' worth, at which it ends.
const JOB_TABLES: u64 = 8;
/// Rows that replace older ones may be this part of all: two of three bytes are needed by nobody then.
const REPLACING_MAX: (u64, u64) = (2, 3);
/// At rest level 0 is due at one part in so many of the usual number of sub-levels.
const REST_SHARE: usize = 3;

/// Bytes of the sub-levels that are more than the trigger.
pub(super) fn debt_bytes(shape: &Shape, levels: &Levels<'_>) -> u64 {
    let excess = |runs: &Vec<Run<'_>>| runs.len().saturating_sub(shape.sublevels_trigger);
    levels.iter().map(|runs| runs[..excess(runs)].iter().map(run_bytes).sum::<u64>()).sum()
}

/// The level whose rows are kept in one sub-level: the deepest that holds any, or the one below if that is
/// full.
pub(super) fn bottom(shape: &Shape, levels: &Levels<'_>) -> usize {
    let deepest = (1..LEVELS).rfind(|level| !levels[*level].is_empty()).unwrap_or(1);
    let full = level_bytes(&levels[deepest]) > target_bytes(shape, deepest);
    if full { (deepest + 1).min(LEVELS - 1) } else { deepest }
}

/// See [`super::pick`].
pub(super) fn pick(shape: &Shape, levels: &Levels<'_>, states: &States) -> Option<(f64, Job)> {
    let trigger = shape.sublevels_trigger.max(2);
    let bottom = match shape.policy {
        CompactionPolicy::LazyLeveled => bottom(shape, levels),
        _ => LEVELS - 1,
    };
    if levels[bottom].len() > 1 {
        let sublevels = levels[bottom].len() as f64;
        return collapse(shape, levels, bottom).map(|job| (sublevels, job));
    }
    // In the midst of a pass rows count twice: where they came from and where they went.
    let settled = (0..bottom).all(|level| pass_of(levels, states, level).is_none());
    let score = |level: usize| {
        let share = levels[level].len() as f64 / trigger as f64;
        let early = settled
            && level + 1 == bottom
            && shape.policy == CompactionPolicy::LazyLeveled
            && is_top_heavy(levels, bottom)
            || level == 0 && is_worth_resting(shape, levels, bottom);
        if early || pass_of(levels, states, level).is_some() { share.max(1.0) } else { share }
    };
    let (level, score) = (0..bottom)
        .map(|level| (level, score(level)))
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .filter(|(_, score)| *score >= 1.0)?;
    step(shape, levels, states, level, bottom).map(|job| (score, job))
}

/// Whether so much above the bottom replaces older rows that the last level of sub-levels is to be merged into it.
pub(super) fn is_top_heavy(levels: &Levels<'_>, bottom: usize) -> bool {
    if bottom < 2 {
        return false;
    }
    let Some(last) = levels[bottom - 1].last() else { return false };
    let oldest = levels[bottom].first().unwrap_or(last);
    let is_alone = levels[bottom].is_empty() && levels[bottom - 1].len() == 1;
    let all: u64 = levels.iter().map(|runs| level_bytes(runs)).sum();
    let newer = levels.iter().flatten().filter(|run| run.id != oldest.id);
    let replacing: u64 = newer.map(|run| run.replacing_bytes).sum();
    let (part, of) = REPLACING_MAX;
    !is_alone && replacing.saturating_mul(of) > all.saturating_mul(part)
}

/// Whether level 0 is to be merged because the store is at rest: never so as to rewrite more below than twice what comes
/// down.
fn is_worth_resting(shape: &Shape, levels: &Levels<'_>, bottom: usize) -> bool {
    let enough = (shape.sublevels_trigger / REST_SHARE).max(2);
    let rewritten = if bottom == 1 { level_bytes(&levels[1]) } else { 0 };
    shape.at_rest
        && shape.policy == CompactionPolicy::LazyLeveled
        && levels[0].len() >= enough
        && rewritten <= 2 * level_bytes(&levels[0])
}

/// The pass that goes on in `level`: its newest sub-level.
fn pass_of(levels: &Levels<'_>, states: &States, level: usize) -> Option<SublevelId> {
    states[level].pass.filter(|pass| levels[level].iter().any(|run| run.id <= *pass))
}

/// The next job of the pass of `level`, which begins with it if there is none.
fn step(
    shape: &Shape,
    levels: &Levels<'_>,
    states: &States,
    level: usize,
    bottom: usize,
) -> Option<Job> {
    let runs = &levels[level];
    let pass = pass_of(levels, states, level).or_else(|| runs.first().map(|run| run.id))?;
    let first = runs.iter().position(|run| run.id <= pass)?;
    let is_last = level + 1 == bottom && shape.policy == CompactionPolicy::LazyLeveled;
    let lower = levels[bottom].first().filter(|_| is_last);
    let mut job = range_job(shape, level, &runs[first..], level + 1, lower)?;
    job.state.pass = Some(pass);
    job.output_sublevel = match lower {
        Some(run) => Some(run.id),
        None => sink(&levels[level + 1], &range_of(&job, levels)?),
    };
    Some(job)
}

/// Merges the sub-levels of `level` into its oldest, a range of keys at a time.
pub(super) fn collapse(shape: &Shape, levels: &Levels<'_>, level: usize) -> Option<Job> {
    let (oldest, newer) = levels[level].split_last()?;
    let mut job = range_job(shape, level, newer, level, Some(oldest))?;
    job.output_sublevel = Some(oldest.id);
    Some(job)
}

/// A job that takes the first keys of the runs `upper` of `level`, and what the run `lower` of
/// `output_level` has in their range.
fn range_job(
    shape: &Shape,
    level: usize,
    upper: &[Run<'_>],
    output_level: usize,
    lower: Option<&Run<'_>>,
) -> Option<Job> {
    let first =
        upper.iter().filter_map(|run| run.tables.first()).min_by_key(|t| &t.smallest_key)?;
    let upper_tables: Vec<_> = upper.iter().flat_map(|run| run.tables.iter().copied()).collect();
    let lower_tables = lower.iter().flat_map(|run| run.tables.iter().copied());
    let lower_tables: Vec<_> =
        lower_tables.filter(|table| table.largest_key >= first.smallest_key).collect();
    let alone = overlapping(&upper_tables, &first.smallest_key, &first.largest_key).len() == 1
        && overlapping(&lower_tables, &first.smallest_key, &first.largest_key).is_empty();
    let end = if alone {
        Some(first.largest_key.clone())
    } else {
        let tables: Vec<&TableMeta> = upper_tables.into_iter().chain(lower_tables).collect();
        end_of_job(shape, &tables)
    };
    let within = |table: &&&TableMeta| {
        table.largest_key >= first.smallest_key
            && end.as_ref().is_none_or(|end| table.smallest_key <= end)
    };
    let mut inputs: Vec<(Place, FileNo)> = Vec::new();
    let placed = upper.iter().map(|run| (level, run)).chain(lower.map(|run| (output_level, run)));
    for (level, run) in placed {
        let place = Place { level, sublevel: run.id };
        inputs.extend(run.tables.iter().filter(within).map(|table| (place, table.file)));
    }
    let is_move = alone;
    let state = LevelState::default();
    Some(Job { level, inputs, output_level, output_sublevel: None, end, is_move, state })
}

/// The first key at which a table ends and the tables that begin before it come to a job's bytes; none if
/// they never do before the last.
fn end_of_job(shape: &Shape, tables: &[&TableMeta]) -> Option<Bytes> {
    let bytes_max = shape.room_bytes.min(JOB_TABLES * shape.table_bytes);
    let mut by_start = tables.to_vec();
    by_start.sort_by(|a, b| a.smallest_key.cmp(&b.smallest_key));
    let mut ends: Vec<&Bytes> = tables.iter().map(|table| &table.largest_key).collect();
    ends.sort_unstable();
    let (mut begun, mut sum) = (0, 0u64);
    for end in &ends {
        while let Some(table) = by_start.get(begun).filter(|table| table.smallest_key <= **end) {
            sum = sum.saturating_add(merged_bytes(shape, table));
            begun += 1;
        }
        if sum >= bytes_max {
            return (*end != *ends.last()?).then(|| (*end).clone());
        }
    }
    None
}

/// The first and last key that the outputs of `job` may have.
fn range_of(job: &Job, levels: &Levels<'_>) -> Option<(Bytes, Bytes)> {
    let tables = || {
        let runs = levels[job.level].iter();
        let all = runs.flat_map(|run| run.tables.iter());
        all.filter(|table| job.inputs.iter().any(|(_, file)| *file == table.file))
    };
    let smallest = tables().map(|table| &table.smallest_key).min()?;
    let largest = tables().map(|table| &table.largest_key).max()?;
    Some((smallest.clone(), job.end.as_ref().unwrap_or(largest).clone()))
}

/// The oldest of `runs`, newest first, that has no table in `range` and that no newer one with a table
/// there hides.
fn sink(runs: &[Run<'_>], range: &(Bytes, Bytes)) -> Option<SublevelId> {
    let free = |run: &&Run<'_>| overlapping(&run.tables, &range.0, &range.1).is_empty();
    runs.iter().take_while(free).last().map(|run| run.id)
}

#[cfg(test)]
mod tests {
    use varve_format::segment::SegmentShare;

    use super::super::testing::{SHAPE, files, levels, table};
    use super::*;

    const STEPPED: Shape = Shape { policy: CompactionPolicy::Stepped, ..SHAPE };
    const LAZY: Shape = Shape { policy: CompactionPolicy::LazyLeveled, ..STEPPED };

    fn job(shape: &Shape, tables: &[(usize, u64, TableMeta)], states: &States) -> Option<Job> {
        pick(shape, &levels(tables), states).map(|(_, job)| job)
    }

    #[test]
    fn a_level_waits_until_it_has_enough_sub_levels() {
        let one = [(0, 1, table(1, ("a", "z"), 1000))];
        assert_eq!(job(&STEPPED, &one, &States::default()), None);
        let two = [(0, 2, table(2, ("b", "y"), 1)), (0, 1, table(1, ("a", "z"), 1))];
        let job = job(&STEPPED, &two, &States::default()).unwrap();
        assert_eq!(files(&job), [2, 1]);
        assert_eq!((job.output_level, job.output_sublevel, job.end), (1, None, None));
        assert_eq!(job.state.pass, Some(SublevelId::new(2)));
    }

    #[test]
    fn a_pass_takes_a_range_of_keys_and_leaves_later_sub_levels_alone() {
        let tables = [
            (0, 9, table(9, ("a", "z"), 40)),
            (0, 2, table(3, ("a", "k"), 40)),
            (0, 2, table(4, ("l", "z"), 40)),
            (0, 1, table(1, ("a", "m"), 40)),
            (0, 1, table(2, ("n", "z"), 40)),
        ];
        let mut states = States::default();
        states[0].pass = Some(SublevelId::new(2));
        let job = job(&STEPPED, &tables, &states).unwrap();
        assert_eq!(files(&job), [3, 1]);
        assert_eq!(job.end.as_deref(), Some(&b"k"[..]));
        assert!(!job.is_move);
    }

    #[test]
    fn where_room_is_short_a_job_takes_less() {
        let tables = [
            (0, 2, table(3, ("a", "c"), 40)),
            (0, 2, table(4, ("l", "z"), 40)),
            (0, 1, table(1, ("b", "m"), 30)),
            (0, 1, table(2, ("n", "z"), 40)),
        ];
        let end = |room_bytes| {
            let job = job(&Shape { room_bytes, ..STEPPED }, &tables, &States::default());
            job.unwrap().end
        };
        assert_eq!(end(71).as_deref(), Some(&b"m"[..]));
        assert_eq!(end(70).as_deref(), Some(&b"c"[..]));
        assert_eq!(end(0).as_deref(), Some(&b"c"[..]));
    }

    /// Values that the merge brings into rows were left out: it was refused, and picked again and again.
    #[test]
    fn where_values_are_brought_into_rows_a_job_takes_less() {
        let pointing = |file, range, bytes| {
            let share = SegmentShare { segment: FileNo::new(9), bytes };
            TableMeta { segments: vec![share], ..table(file, range, 10) }
        };
        let tables = [
            (0, 2, pointing(3, ("a", "c"), 20)),
            (0, 2, pointing(4, ("l", "z"), 20)),
            (0, 1, pointing(1, ("b", "m"), 30)),
            (0, 1, pointing(2, ("n", "z"), 20)),
        ];
        let end = |values_in_rows, room_bytes| {
            let shape = Shape { values_in_rows, room_bytes, ..STEPPED };
            job(&shape, &tables, &States::default()).unwrap().end
        };
        assert_eq!(end(true, 71).as_deref(), Some(&b"m"[..]));
        assert_eq!(end(true, 70).as_deref(), Some(&b"c"[..]));
        assert_eq!(end(false, 30).as_deref(), Some(&b"m"[..]));
        assert_eq!(end(false, 71), None);
    }

    #[test]
    fn a_table_that_overlaps_nothing_moves() {
        let tables = [(0, 2, table(2, ("c", "d"), 1)), (0, 1, table(1, ("a", "b"), 1))];
        let job = job(&STEPPED, &tables, &States::default()).unwrap();
        assert_eq!((files(&job), job.is_move), (vec![1], true));
    }

    #[test]
    fn rows_sink_only_where_nothing_newer_is_passed() {
        let upper = [(0, 9, table(9, ("d", "f"), 1)), (0, 8, table(8, ("d", "f"), 1))];
        let target = |below: &[(usize, u64, TableMeta)]| {
            let tables: Vec<_> = upper.iter().chain(below).cloned().collect();
            job(&STEPPED, &tables, &States::default()).unwrap().output_sublevel
        };
        assert_eq!(target(&[]), None);
        assert_eq!(target(&[(1, 5, table(5, ("a", "c"), 1))]), Some(SublevelId::new(5)));
        let hidden = [(1, 5, table(5, ("e", "e"), 1)), (1, 4, table(4, ("a", "b"), 1))];
        assert_eq!(target(&hidden), None);
    }

    #[test]
    fn a_leveled_bottom_is_merged_with() {
        let tables = [
            (0, 9, table(9, ("d", "f"), 1)),
            (0, 8, table(8, ("e", "g"), 1)),
            (1, 3, table(1, ("a", "c"), 1)),
            (1, 3, table(2, ("f", "h"), 1)),
        ];
        let job = job(&LAZY, &tables, &States::default()).unwrap();
        assert_eq!(files(&job), [9, 8, 2]);
        assert_eq!((job.output_level, job.output_sublevel), (1, Some(SublevelId::new(3))));
    }

    #[test]
    fn a_full_bottom_becomes_a_level_of_sub_levels() {
        let tables = [
            (0, 9, table(9, ("a", "z"), 1)),
            (0, 8, table(8, ("a", "z"), 1)),
            (1, 3, table(1, ("a", "z"), 101)),
        ];
        let job = job(&LAZY, &tables, &States::default()).unwrap();
        assert_eq!((files(&job), job.output_sublevel), (vec![9, 8], None));
    }

    #[test]
    fn what_could_be_old_twice_over_is_merged_into_the_bottom() {
        let shape = Shape { sublevels_trigger: 9, ..LAZY };
        let table = |id, level, bytes| (level, id, table(id, ("a", "z"), bytes));
        let light = [table(4, 0, 100), table(3, 1, 300), table(1, 2, 201)];
        assert_eq!(job(&shape, &light, &States::default()), None);
        let heavy = [table(4, 0, 103), table(3, 1, 300), table(1, 2, 201)];
        let found = job(&shape, &heavy, &States::default()).unwrap();
        assert_eq!((files(&found), found.output_sublevel), (vec![3, 1], Some(SublevelId::new(1))));
        // Before there is a bottom the oldest sub-level counts as one.
        let new = [table(4, 1, 120), table(3, 1, 120), table(2, 1, 101)];
        assert_eq!(files(&job(&shape, &new, &States::default()).unwrap()), [4, 3, 2]);
        assert_eq!(job(&shape, &new[1..], &States::default()), None);
        let alone = [table(4, 0, 400), table(2, 1, 101)];
        assert_eq!(job(&shape, &alone, &States::default()), None);
    }

    #[test]
    fn rows_that_replace_none_are_not_merged_early() {
        let shape = Shape { sublevels_trigger: 9, ..LAZY };
        let table = |id, level, bytes| (level, id, table(id, ("a", "z"), bytes));
        let heavy = [table(4, 0, 103), table(3, 1, 300), table(1, 2, 201)];
        let mut levels = levels(&heavy);
        let is_merged = |levels: &Levels<'_>| pick(&shape, levels, &States::default()).is_some();
        assert!(is_merged(&levels));
        levels[0][0].replacing_bytes = 102;
        assert!(!is_merged(&levels));
        // The oldest rows replace none, whatever is said of them.
        levels[1][0].replacing_bytes = 201;
        levels[2][0].replacing_bytes = 999;
        assert!(!is_merged(&levels));
    }

    #[test]
    fn at_rest_level_0_is_merged_early_but_not_into_much_more() {
        let shape = Shape { sublevels_trigger: 9, at_rest: true, ..LAZY };
        let table = |id, level, bytes| (level, id, table(id, ("a", "z"), bytes));
        let mut tables = vec![table(9, 0, 10), table(8, 0, 10)];
        assert_eq!(job(&shape, &tables, &States::default()), None);
        tables.push(table(7, 0, 10));
        assert_eq!(files(&job(&shape, &tables, &States::default()).unwrap()), [9, 8, 7]);
        assert_eq!(job(&Shape { at_rest: false, ..shape }, &tables, &States::default()), None);
        tables.push(table(1, 1, 61));
        assert_eq!(job(&shape, &tables, &States::default()), None);
    }

    #[test]
    fn the_last_level_is_kept_in_one_sub_level() {
        let last = LEVELS - 1;
        let tables = [(last, 9, table(9, ("a", "z"), 1)), (last, 8, table(8, ("a", "z"), 1))];
        let job = job(&STEPPED, &tables, &States::default()).unwrap();
        assert_eq!((job.output_level, job.output_sublevel), (last, Some(SublevelId::new(8))));
    }

    #[test]
    fn debt_is_what_waits_beyond_the_trigger() {
        let run = |id| (0, id, table(id, ("a", "z"), 7));
        assert_eq!(debt_bytes(&STEPPED, &levels(&[run(1), run(2)])), 0);
        assert_eq!(debt_bytes(&STEPPED, &levels(&[run(1), run(2), run(3), run(4)])), 14);
    }
}
