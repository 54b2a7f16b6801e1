//! Which states of the store somebody still looks at.
//!
//! A snapshot is a sequence number: it sees, of each key, the newest version not above it. While it is
//! pinned, memtables do not overwrite versions it sees and compactions do not drop them.
//!
//! Invariant: a batch is applied to the memtable and published as the newest state within one
//! [`Snapshots::publish`], so a snapshot is pinned either before or after the whole of it and never
//! loses a version in between. So are tables that bring rows of their own number.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use varve_types::SeqNo;

use crate::memtable::IsSeen;

#[derive(Debug)]
struct State {
    last_seq: SeqNo,
    /// Pinned sequence numbers and how often each is.
    live: BTreeMap<SeqNo, usize>,
}

/// The newest state and the pinned ones.
#[derive(Debug)]
pub(crate) struct Snapshots {
    state: Mutex<State>,
    /// How often the pinned states were listed.
    #[cfg(test)]
    pub(crate) lists: std::sync::atomic::AtomicUsize,
}

impl Snapshots {
    /// No snapshots; the newest state is that of `last_seq`.
    pub(crate) fn new(last_seq: SeqNo) -> Snapshots {
        Snapshots {
            state: Mutex::new(State { last_seq, live: BTreeMap::new() }),
            #[cfg(test)]
            lists: Default::default(),
        }
    }

    /// Runs `apply` with what tells whether a pinned state sees a version, then makes `last_seq` the newest state.
    pub(crate) fn publish<T>(&self, last_seq: SeqNo, apply: impl FnOnce(&IsSeen<'_>) -> T) -> T {
        let mut state = self.state.lock();
        let live = &state.live;
        let newest = live.last_key_value().map(|(seq, _)| *seq);
        let result = apply(&|seq, next| {
            newest.is_some_and(|newest| newest >= seq) && live.range(seq..next).next().is_some()
        });
        state.last_seq = last_seq;
        result
    }

    /// The newest state's sequence number.
    pub(crate) fn last_seq(&self) -> SeqNo {
        self.state.lock().last_seq
    }

    /// Pins the newest state and runs `with`, before any further batch is applied.
    pub(crate) fn pin<T>(self: &Arc<Snapshots>, with: impl FnOnce() -> T) -> (Pin, T) {
        let mut state = self.state.lock();
        let seq = state.last_seq;
        *state.live.entry(seq).or_insert(0) += 1;
        let result = with();
        drop(state);
        (Pin { snapshots: Arc::clone(self), seq }, result)
    }

    /// Pins the state of `seq`, or the newest if that is older.
    ///
    /// REQUIRES: the state is pinned already, or was when the store was closed.
    pub(crate) fn pin_at(self: &Arc<Snapshots>, seq: SeqNo) -> Pin {
        let mut state = self.state.lock();
        let seq = seq.min(state.last_seq);
        *state.live.entry(seq).or_insert(0) += 1;
        Pin { snapshots: Arc::clone(self), seq }
    }

    /// Pinned sequence numbers, ascending.
    pub(crate) fn live(&self) -> Vec<SeqNo> {
        #[cfg(test)]
        self.lists.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.state.lock().live.keys().copied().collect()
    }
}

/// Keeps one state visible; dropping it lets go.
#[derive(Debug)]
pub(crate) struct Pin {
    snapshots: Arc<Snapshots>,
    seq: SeqNo,
}

impl Pin {
    /// The state's sequence number.
    pub(crate) fn seq(&self) -> SeqNo {
        self.seq
    }
}

impl Clone for Pin {
    fn clone(&self) -> Pin {
        *self.snapshots.state.lock().live.entry(self.seq).or_insert(0) += 1;
        Pin { snapshots: Arc::clone(&self.snapshots), seq: self.seq }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut state = self.snapshots.state.lock();
        if let Some(count) = state.live.get_mut(&self.seq) {
            *count -= 1;
            if *count == 0 {
                state.live.remove(&self.seq);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_count() {
        let snapshots = Arc::new(Snapshots::new(SeqNo::new(5)));
        let (one, ()) = snapshots.pin(|| ());
        let two = one.clone();
        drop(one);
        assert_eq!(snapshots.live(), [SeqNo::new(5)]);
        snapshots.publish(SeqNo::new(6), |is_seen| {
            let is_seen = |seq, next| is_seen(SeqNo::new(seq), SeqNo::new(next));
            assert!(is_seen(5, 6) && is_seen(3, 7) && !is_seen(3, 5) && !is_seen(6, 7));
        });
        assert_eq!(two.seq(), SeqNo::new(5));
        drop(two);
        assert_eq!(snapshots.live(), []);
        assert_eq!(snapshots.last_seq(), SeqNo::new(6));
    }
}
