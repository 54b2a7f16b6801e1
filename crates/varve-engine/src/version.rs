//! The table files of one key space at one moment, level by level.
//!
//! A level is a list of sub-levels, a sub-level is a run of tables (SlimDB, thesis 5.1.2). A flush makes a
//! sub-level of level 0; leveled compaction keeps one sub-level in each level below, stepped merges several.
//!
//! A [`Version`] never changes; a flush or a compaction makes the next one. Readers hold the one they
//! began with, and a table file is removed when the last version that lists it is dropped.
//!
//! Invariants, checked by [`Version::check`] before a version is installed:
//! - the sub-levels of a level stand newest first, by their numbers;
//! - the tables of a sub-level are sorted by key and disjoint;
//! - of two sub-levels of one level that hold versions of one key, the first holds the newer ones, and of two
//!   levels the upper.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use varve_format::edit::TableMeta;
use varve_format::filter::SubLevel;
use varve_types::{FileNo, SublevelId};

use crate::compaction::policy::Run;
use crate::compaction::policy::cleaning::SegmentUse;
use crate::place::{LEVELS, Place};
use crate::segment::Segment;
use crate::sublevel_map::map::SublevelMap;
use crate::sublevel_map::number::MapNumber;
use crate::table::file::Table;

/// A sorted run of disjoint tables.
#[derive(Clone, Debug)]
pub(crate) struct Sublevel {
    id: SublevelId,
    tables: Vec<Arc<Table>>,
}

impl Sublevel {
    pub(crate) fn id(&self) -> SublevelId {
        self.id
    }

    /// Its tables, by key; never none.
    pub(crate) fn tables(&self) -> &[Arc<Table>] {
        &self.tables
    }

    fn run(&self) -> Run<'_> {
        Run::new(self.id, self.tables.iter().map(|table| table.meta()).collect())
    }

    /// The table that may hold `key`.
    pub(crate) fn find(&self, key: &[u8]) -> Option<&Arc<Table>> {
        let index = self.tables.partition_point(|table| *table.meta().largest_key < *key);
        self.tables.get(index).filter(|table| table.covers(key))
    }
}

/// See the module's comment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Version {
    levels: [Vec<Sublevel>; LEVELS],
    map: Option<Arc<SublevelMap>>,
}

impl Version {
    /// The map of the upper sub-levels, if there is one.
    pub(crate) fn map(&self) -> Option<&Arc<SublevelMap>> {
        self.map.as_ref()
    }

    pub(crate) fn set_map(&mut self, map: Option<Arc<SublevelMap>>) {
        self.map = map;
    }

    /// The number of a table in the map.
    pub(crate) fn number(&self, table: &Table) -> Option<SubLevel> {
        let map = self.map.as_ref()?;
        table.map_number().filter(|number| number.map == map.id()).map(|at| at.number)
    }

    /// Gives the table `file` at `place` another number.
    pub(crate) fn set_number(&mut self, place: Place, file: FileNo, number: Option<MapNumber>) {
        let tables = self.sublevel_mut(place).into_iter().flat_map(|run| &mut run.tables);
        for table in tables.filter(|table| table.file_no() == file) {
            *table = Arc::new(table.numbered(number));
        }
    }

    /// The sub-levels of `level`, newest first.
    pub(crate) fn level(&self, level: usize) -> &[Sublevel] {
        &self.levels[level]
    }

    /// All sub-levels with their levels, newest first.
    pub(crate) fn sublevels(&self) -> impl Iterator<Item = (usize, &Sublevel)> {
        let numbered = self.levels.iter().enumerate();
        numbered.flat_map(|(level, list)| list.iter().map(move |sublevel| (level, sublevel)))
    }

    /// All tables with their places.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (Place, &Arc<Table>)> {
        self.sublevels().flat_map(|(level, sublevel)| {
            let place = Place { level, sublevel: sublevel.id };
            sublevel.tables.iter().map(move |table| (place, table))
        })
    }

    /// The descriptions of the tables, for the compaction policy.
    pub(crate) fn runs(&self) -> Vec<Vec<Run<'_>>> {
        self.levels.iter().map(|level| level.iter().map(Sublevel::run).collect()).collect()
    }

    /// The files that serve the tables.
    pub(crate) fn files(&self) -> HashSet<FileNo> {
        self.tables().flat_map(|(_, table)| table.files().map(|file| file.no())).collect()
    }

    /// The segments that its tables point into, with how many bytes of their records.
    pub(crate) fn segments(&self) -> BTreeMap<FileNo, (&Arc<Segment>, u64)> {
        let mut all = BTreeMap::new();
        for (_, table) in self.tables() {
            for (segment, share) in table.segments().iter().zip(&table.meta().segments) {
                all.entry(segment.file_no()).or_insert((segment, 0)).1 += share.bytes;
            }
        }
        all
    }

    /// How the segments are used, for the cleaning policy.
    pub(crate) fn segment_uses(&self) -> Vec<SegmentUse> {
        let used = |(file, (segment, used_bytes)): (FileNo, (&Arc<Segment>, u64))| SegmentUse {
            file,
            record_bytes: segment.record_bytes(),
            used_bytes,
        };
        self.segments().into_iter().map(used).collect()
    }

    /// True if there are no tables.
    pub(crate) fn is_empty(&self) -> bool {
        self.levels.iter().all(Vec::is_empty)
    }

    /// Whether `file` is one of the tables at `place`.
    pub(crate) fn holds(&self, place: Place, file: FileNo) -> bool {
        let mut tables = self.tables();
        tables.any(|(there, table)| there == place && table.file_no() == file)
    }

    /// The tables older than the sub-level at `place` that may hold `key`, by their ranges.
    pub(crate) fn older_tables<'a>(
        &'a self,
        place: Place,
        key: &'a [u8],
    ) -> impl Iterator<Item = &'a Arc<Table>> {
        let older = move |other: &&Sublevel| other.id < place.sublevel;
        let beside = self.levels[place.level].iter().filter(older);
        let below = self.levels[place.level + 1..].iter().flatten();
        beside.chain(below).filter_map(|sublevel| sublevel.find(key))
    }

    /// The tables newer than the one at `place` that `meta` describes, and that may hold its keys, by their ranges.
    pub(crate) fn newer_tables<'a>(
        &'a self,
        place: Place,
        meta: &'a TableMeta,
    ) -> impl Iterator<Item = &'a Arc<Table>> {
        let above = self.levels[..place.level].iter().flatten();
        let newer = move |other: &&Sublevel| other.id > place.sublevel;
        let beside = self.levels[place.level].iter().filter(newer);
        above.chain(beside).flat_map(move |sublevel| {
            let first = |table: &Arc<Table>| table.meta().largest_key < meta.smallest_key;
            let tables = &sublevel.tables[sublevel.tables.partition_point(first)..];
            tables.iter().take_while(move |table| table.meta().smallest_key <= meta.largest_key)
        })
    }

    /// This version without the tables `removed` and with those `added`.
    pub(crate) fn changed(
        &self,
        removed: &[(Place, FileNo)],
        added: &[(Place, Arc<Table>)],
    ) -> Version {
        let mut next = self.clone();
        for (place, file) in removed {
            if let Some(sublevel) = next.sublevel_mut(*place) {
                sublevel.tables.retain(|table| table.file_no() != *file);
            }
        }
        for (place, table) in added {
            match next.sublevel_mut(*place) {
                Some(sublevel) => sublevel.tables.push(Arc::clone(table)),
                None => {
                    let tables = vec![Arc::clone(table)];
                    next.levels[place.level].push(Sublevel { id: place.sublevel, tables });
                }
            }
        }
        for level in &mut next.levels {
            level.retain(|sublevel| !sublevel.tables.is_empty());
            level.sort_by_key(|sublevel| std::cmp::Reverse(sublevel.id));
            for sublevel in level {
                sublevel.tables.sort_by(|a, b| a.meta().smallest_key.cmp(&b.meta().smallest_key));
            }
        }
        next
    }

    fn sublevel_mut(&mut self, place: Place) -> Option<&mut Sublevel> {
        self.levels[place.level].iter_mut().find(|sublevel| sublevel.id == place.sublevel)
    }

    /// The first invariant that does not hold, if any.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (level, sublevel) in self.sublevels() {
            for pair in sublevel.tables.windows(2) {
                let [above, below] = [pair[0].meta(), pair[1].meta()];
                if above.largest_key >= below.smallest_key {
                    return Err(format!(
                        "level {level}.{}: tables {} and {} overlap",
                        sublevel.id, above.file, below.file
                    ));
                }
            }
        }
        let newest = |sublevel: &Sublevel| {
            sublevel.tables.iter().map(|table| table.meta().largest_seq).max()
        };
        for pair in self.levels[0].windows(2) {
            if newest(&pair[0]) < newest(&pair[1]) {
                return Err(format!(
                    "level 0: sub-level {} stands before the newer sub-level {}",
                    pair[0].id, pair[1].id
                ));
            }
        }
        Ok(())
    }
}
