//! Which versions a merge keeps: a pure function of their order and the live snapshots.
//!
//! The snapshots divide time into strata. Of the versions of a key within one stratum only the newest is
//! ever seen. A deletion in the oldest stratum is needed only while something below the output may hold
//! the key.

use varve_types::SeqNo;

/// Decides version by version, in internal order.
#[derive(Debug)]
pub(crate) struct Retention<'a> {
    /// Live snapshots, ascending.
    snapshots: &'a [SeqNo],
    key: Vec<u8>,
    /// The stratum of the version of `key` that came last; none before the first version of all.
    stratum: Option<usize>,
}

impl<'a> Retention<'a> {
    /// A decision for a merge that began when `snapshots`, ascending, were live.
    pub(crate) fn new(snapshots: &'a [SeqNo]) -> Retention<'a> {
        Retention { snapshots, key: Vec::new(), stratum: None }
    }

    /// True if `key` is not that of the version before.
    pub(crate) fn is_new_key(&self, key: &[u8]) -> bool {
        self.stratum.is_none() || self.key != key
    }

    /// Whether to keep a version; `hidden_below` says whether anything below may hold the key, and is
    /// asked only where it matters.
    pub(crate) fn keeps(
        &mut self,
        key: &[u8],
        seq: SeqNo,
        is_tombstone: bool,
        hidden_below: impl FnOnce() -> bool,
    ) -> bool {
        let stratum = self.snapshots.partition_point(|snapshot| *snapshot < seq);
        let seen = !self.is_new_key(key) && self.stratum == Some(stratum);
        if self.is_new_key(key) {
            self.key.clear();
            self.key.extend_from_slice(key);
        }
        self.stratum = Some(stratum);
        let needless = is_tombstone && stratum == 0 && !hidden_below();
        !seen && !needless
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The versions kept of (key, seq, is_tombstone) in internal order, nothing being below.
    fn kept(snapshots: &[u64], versions: &[(&str, u64, bool)], below: bool) -> Vec<(String, u64)> {
        let snapshots: Vec<SeqNo> = snapshots.iter().copied().map(SeqNo::new).collect();
        let mut retention = Retention::new(&snapshots);
        versions
            .iter()
            .filter(|(key, seq, tombstone)| {
                retention.keeps(key.as_bytes(), SeqNo::new(*seq), *tombstone, || below)
            })
            .map(|(key, seq, _)| ((*key).to_owned(), *seq))
            .collect()
    }

    fn rows(rows: &[(&str, u64)]) -> Vec<(String, u64)> {
        rows.iter().map(|(key, seq)| ((*key).to_owned(), *seq)).collect()
    }

    #[test]
    fn without_snapshots_the_newest_version_stays() {
        let versions = [("a", 9, false), ("a", 5, true), ("a", 1, false), ("b", 3, false)];
        assert_eq!(kept(&[], &versions, false), rows(&[("a", 9), ("b", 3)]));
    }

    #[test]
    fn each_snapshot_keeps_what_it_sees() {
        let versions = [("a", 9, false), ("a", 7, false), ("a", 5, false), ("a", 1, false)];
        assert_eq!(kept(&[5], &versions, false), rows(&[("a", 9), ("a", 5)]));
        assert_eq!(kept(&[4, 8], &versions, false), rows(&[("a", 9), ("a", 7), ("a", 1)]));
        assert_eq!(kept(&[9], &versions, false), rows(&[("a", 9)]));
    }

    #[test]
    fn a_deletion_goes_when_nothing_is_below_and_no_snapshot_is_older() {
        let versions = [("a", 9, true), ("a", 5, false)];
        assert_eq!(kept(&[], &versions, false), rows(&[]));
        assert_eq!(kept(&[], &versions, true), rows(&[("a", 9)]));
        assert_eq!(kept(&[6], &versions, false), rows(&[("a", 9), ("a", 5)]));
        assert_eq!(kept(&[9], &versions, false), rows(&[]));
    }
}
