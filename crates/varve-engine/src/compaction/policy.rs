//! Decides what to compact: a pure function of the tables' sizes and key ranges.
//!
//! Leveled compaction as TableFS 4.1.2 describes it: level 0 is due by its number of tables, which each
//! lookup may have to search; every other level by its bytes against a target that grows by a factor
//! from level to level. The level that is furthest above its target goes first. Tables of a level take
//! turns in key order.

use bytes::Bytes;
use varve_format::edit::TableMeta;
use varve_types::FileNo;

use crate::version::LEVELS;

/// The tables of a key space, level by level, as [`crate::version::Version::metas`] lists them.
pub(crate) type Levels<'a> = [Vec<&'a TableMeta>];

/// The most bytes, in tables' worth, of the level after next that one output table may overlap.
pub(crate) const GRANDPARENT_TABLES_MAX: u64 = 10;

/// The shape to keep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) l0_trigger: usize,
    pub(crate) level_base_bytes: u64,
    pub(crate) level_multiplier: u64,
    pub(crate) table_bytes: u64,
}

/// Where the last compaction of each level ended, so that the next takes up from there.
pub(crate) type Cursors = [Bytes; LEVELS];

/// What to merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    /// The level that is too large.
    pub(crate) level: usize,
    /// Its tables to merge.
    pub(crate) upper: Vec<FileNo>,
    /// The tables of the next level they overlap.
    pub(crate) lower: Vec<FileNo>,
    /// The largest key of `upper`, the cursor after the job.
    pub(crate) largest_key: Bytes,
    /// Whether the one table may move down as it is.
    pub(crate) is_move: bool,
}

impl Job {
    /// Where the merged rows go.
    pub(crate) fn output_level(&self) -> usize {
        self.level + 1
    }
}

/// Bytes that `level` may hold, for a level below level 0.
pub(crate) fn target_bytes(shape: &Shape, level: usize) -> u64 {
    let growth = shape.level_multiplier.saturating_pow(level.saturating_sub(1) as u32);
    shape.level_base_bytes.saturating_mul(growth).max(1)
}

fn level_bytes(tables: &[&TableMeta]) -> u64 {
    tables.iter().map(|table| table.size_bytes).sum()
}

/// How far each level but the last is above its target; above 1 it is due.
fn score(shape: &Shape, levels: &Levels<'_>, level: usize) -> f64 {
    let tables = &levels[level];
    if level == 0 {
        return tables.len() as f64 / shape.l0_trigger.max(1) as f64;
    }
    level_bytes(tables) as f64 / target_bytes(shape, level) as f64
}

/// Bytes that stand above their level's target, and so have to be moved sooner or later.
pub(crate) fn debt_bytes(shape: &Shape, levels: &Levels<'_>) -> u64 {
    let l0 = if levels[0].len() > shape.l0_trigger { level_bytes(&levels[0]) } else { 0 };
    let rest = (1..LEVELS - 1)
        .map(|level| level_bytes(&levels[level]).saturating_sub(target_bytes(shape, level)));
    l0 + rest.sum::<u64>()
}

/// The score and the job of the level most above its target, or `None` if all is in shape.
pub(crate) fn pick(shape: &Shape, levels: &Levels<'_>, cursors: &Cursors) -> Option<(f64, Job)> {
    let (level, score) = (0..LEVELS - 1)
        .map(|level| (level, score(shape, levels, level)))
        .max_by(|a, b| a.1.total_cmp(&b.1))?;
    if score < 1.0 || levels[level].is_empty() {
        return None;
    }
    let upper = if level == 0 {
        overlapping_with_oldest(&levels[0])
    } else {
        vec![next_in_turn(&levels[level], &cursors[level])]
    };
    let smallest = upper.iter().map(|table| &table.smallest_key).min()?;
    let largest = upper.iter().map(|table| &table.largest_key).max()?;
    let lower = overlapping(&levels[level + 1], smallest, largest);
    let grandparents = levels.get(level + 2).map_or(0, |tables| {
        overlapping(tables, smallest, largest).iter().map(|table| table.size_bytes).sum()
    });
    let is_move = upper.len() == 1
        && lower.is_empty()
        && grandparents <= GRANDPARENT_TABLES_MAX * shape.table_bytes;
    let numbers = |tables: &[&TableMeta]| tables.iter().map(|table| table.file).collect();
    let job = Job {
        level,
        upper: numbers(&upper),
        lower: numbers(&lower),
        largest_key: largest.clone(),
        is_move,
    };
    Some((score, job))
}

/// The oldest table of level 0 and every other that overlaps it, directly or through others: all
/// versions of their keys in the level go down together.
fn overlapping_with_oldest<'a>(tables: &[&'a TableMeta]) -> Vec<&'a TableMeta> {
    let Some(oldest) = tables.last() else { return Vec::new() };
    let (mut smallest, mut largest) = (&oldest.smallest_key, &oldest.largest_key);
    loop {
        let found = overlapping(tables, smallest, largest);
        let lower = found.iter().map(|table| &table.smallest_key).min().unwrap_or(smallest);
        let upper = found.iter().map(|table| &table.largest_key).max().unwrap_or(largest);
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

/// The tables that may hold keys from `smallest` to `largest`.
fn overlapping<'a>(
    tables: &[&'a TableMeta],
    smallest: &Bytes,
    largest: &Bytes,
) -> Vec<&'a TableMeta> {
    let overlaps =
        |table: &&&TableMeta| table.largest_key >= smallest && table.smallest_key <= largest;
    tables.iter().filter(overlaps).copied().collect()
}

#[cfg(test)]
mod tests {
    use varve_types::SeqNo;

    use super::*;

    const SHAPE: Shape =
        Shape { l0_trigger: 2, level_base_bytes: 100, level_multiplier: 10, table_bytes: 50 };

    fn table(file: u64, range: (&'static str, &'static str), size_bytes: u64) -> TableMeta {
        TableMeta {
            file: FileNo::new(file),
            size_bytes,
            entries: 1,
            tombstones: 0,
            smallest_seq: SeqNo::new(file),
            largest_seq: SeqNo::new(file),
            smallest_key: Bytes::from_static(range.0.as_bytes()),
            largest_key: Bytes::from_static(range.1.as_bytes()),
        }
    }

    fn job(tables: &[(usize, TableMeta)], cursors: &Cursors) -> Option<Job> {
        let mut levels = vec![Vec::new(); LEVELS];
        tables.iter().for_each(|(level, table)| levels[*level].push(table));
        pick(&SHAPE, &levels, cursors).map(|(_, job)| job)
    }

    fn numbers(files: &[FileNo]) -> Vec<u64> {
        files.iter().map(|file| file.get()).collect()
    }

    #[test]
    fn a_store_in_shape_is_left_alone() {
        assert_eq!(job(&[], &Cursors::default()), None);
        let tables = [(0, table(1, ("a", "z"), 900)), (1, table(2, ("a", "z"), 99))];
        assert_eq!(job(&tables, &Cursors::default()), None);
        let bottom = [(LEVELS - 1, table(1, ("a", "z"), u64::MAX / 2))];
        assert_eq!(job(&bottom, &Cursors::default()), None);
    }

    #[test]
    fn level_0_takes_all_tables_that_hang_together() {
        let tables = [
            (0, table(4, ("x", "z"), 1)),
            (0, table(3, ("c", "f"), 1)),
            (0, table(2, ("a", "d"), 1)),
            (1, table(1, ("e", "w"), 1)),
            (1, table(5, ("y", "y"), 1)),
        ];
        let job = job(&tables, &Cursors::default()).unwrap();
        assert_eq!(numbers(&job.upper), [3, 2]);
        assert_eq!(numbers(&job.lower), [1]);
        assert!(!job.is_move);
    }

    #[test]
    fn tables_take_turns() {
        let tables = [
            (1, table(1, ("a", "c"), 60)),
            (1, table(2, ("d", "f"), 60)),
            (2, table(3, ("e", "g"), 60)),
        ];
        let mut cursors = Cursors::default();
        let first = job(&tables, &cursors).unwrap();
        assert_eq!(numbers(&first.upper), [1]);
        assert!(first.is_move);
        cursors[1] = first.largest_key;
        let second = job(&tables, &cursors).unwrap();
        assert_eq!((numbers(&second.upper), numbers(&second.lower)), (vec![2], vec![3]));
        cursors[1] = second.largest_key;
        assert_eq!(numbers(&job(&tables, &cursors).unwrap().upper), [1]);
    }

    #[test]
    fn a_table_does_not_move_above_too_many_grandparents() {
        let tables = [(1, table(1, ("a", "z"), 200)), (3, table(2, ("a", "z"), 501))];
        assert!(!job(&tables, &Cursors::default()).unwrap().is_move);
    }

    #[test]
    fn debt_is_what_stands_above_the_targets() {
        let tables = [table(1, ("a", "z"), 130), table(2, ("a", "z"), 7)];
        let mut levels = vec![Vec::new(); LEVELS];
        levels[0] = vec![&tables[1]; 2];
        levels[1] = vec![&tables[0]];
        assert_eq!(debt_bytes(&SHAPE, &levels), 30);
        levels[0] = vec![&tables[1]; 3];
        assert_eq!(debt_bytes(&SHAPE, &levels), 51);
    }
}
