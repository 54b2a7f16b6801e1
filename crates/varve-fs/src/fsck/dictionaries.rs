//! Compares the names of dictionaries with the key spaces that hold pairs.

use std::collections::BTreeMap;

use varve_engine::{Direction, KeyRange};
use varve_schema::{DICTIONARIES_MAX, DictionaryRow};
use varve_types::FileName;
use varve_vfs::FsResult;

use super::Check;
use super::finding::{At, Finding};
use crate::dictionaries::pairs_options;
use crate::error;

impl Check<'_> {
    pub(super) fn check_dictionaries(&mut self) -> FsResult<()> {
        self.begin("dictionaries");
        let rows =
            self.snapshot.scan(self.volume.dictionaries, KeyRange::all(), Direction::Forward);
        let mut numbers: BTreeMap<u32, String> = BTreeMap::new();
        for row in rows.map_err(error::store)? {
            let (key, value) = row.map_err(error::store)?;
            self.step("dictionaries");
            let name = key.escape_ascii().to_string();
            let read = FileName::new(&key)
                .map_err(|error| error.to_string())
                .and_then(|_| DictionaryRow::decode(&value).map_err(|error| error.to_string()));
            let at = At::Row(key);
            match read {
                Err(detail) => self.found(Finding::UnreadableDictionary { name, detail }, at)?,
                Ok(row) => {
                    let (mark, largest) = (self.mark, row.made.get());
                    if largest > 0 && largest >= mark {
                        self.found(Finding::IdBeyondMark { mark, largest }, At::Own)?;
                    }
                    match numbers.insert(row.number, name.clone()) {
                        Some(other) => self.found(Finding::SharedDictionary { name, other }, at)?,
                        None if row.going => self.found(Finding::DictionaryGoing { name }, at)?,
                        None => self.report.dictionaries += 1,
                    }
                }
            }
        }
        self.check_unnamed(&numbers)
    }

    /// Pairs in key spaces that no name leads to.
    fn check_unnamed(&mut self, numbers: &BTreeMap<u32, String>) -> FsResult<()> {
        let store = &self.volume.store;
        let there = store.keyspace_names().map_err(error::store)?;
        for number in (0..DICTIONARIES_MAX).filter(|number| !numbers.contains_key(number)) {
            let keyspace = DictionaryRow::found(number).keyspace();
            if !there.contains(&keyspace) {
                continue;
            }
            // It is there, so nothing is made and its options stay.
            let pairs = store.keyspace(&keyspace, pairs_options(false)).map_err(error::store)?;
            let first = self.snapshot.scan(pairs, KeyRange::all(), Direction::Forward);
            if first.map_err(error::store)?.next().transpose().map_err(error::store)?.is_some() {
                self.found(Finding::PairsWithoutDictionary { number }, At::Own)?;
            }
        }
        Ok(())
    }
}
