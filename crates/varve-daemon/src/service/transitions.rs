//! Who attaches a view, and who ends it: one at a time.
//!
//! ```text
//! nobody --take(Attach)--> it is being attached --dropped--> nobody
//! nobody --try_let_go----> it is let go of      --dropped--> nobody
//! nobody --take(End)-----> it is being ended    --dropped--> nobody
//! ```
//!
//! Whoever comes while a view is being attached or let go of waits for that; whoever comes while it is being ended is sent away.
//! Other views have turns of their own: one that takes its time keeps nobody else waiting, and above all not those who walk
//! past it.

use std::collections::HashMap;

use parking_lot::{Condvar, Mutex};
use varve_fs::ViewName;

/// What somebody does with a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    /// Mounts it.
    Attach,
    /// Takes it away until somebody comes by.
    LetGo,
    /// Commits it or takes it away.
    End,
}

/// The views with which somebody does something.
#[derive(Debug, Default)]
pub(super) struct Turns {
    taken: Mutex<HashMap<ViewName, Deed>>,
    changed: Condvar,
}

/// A turn that is taken, until dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    name: ViewName,
}

impl Turns {
    /// Takes the turn with the view `name` to let go of it; `None` if somebody else has it.
    pub(super) fn try_let_go(&self, name: &ViewName) -> Option<Turn<'_>> {
        let mut taken = self.taken.lock();
        if taken.contains_key(name) {
            return None;
        }
        taken.insert(name.clone(), Deed::LetGo);
        Some(Turn { turns: self, name: name.clone() })
    }

    /// Takes the turn with the view `name`; `None` if it is being ended.
    pub(super) fn take(&self, name: &ViewName, deed: Deed) -> Option<Turn<'_>> {
        let mut taken = self.taken.lock();
        loop {
            match taken.get(name) {
                Some(Deed::End) => return None,
                Some(Deed::Attach | Deed::LetGo) => self.changed.wait(&mut taken),
                None => break,
            }
        }
        taken.insert(name.clone(), deed);
        Some(Turn { turns: self, name: name.clone() })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.taken.lock().remove(&self.name);
        self.turns.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn one_waits_for_who_attaches_the_same_view_only() {
        let turns = Arc::new(Turns::default());
        let [one, other] = ["1", "2"].map(ViewName::transaction);
        let first = turns.take(&one, Deed::Attach).unwrap();
        assert!(turns.try_let_go(&one).is_none() && turns.try_let_go(&other).is_some());
        drop(turns.take(&other, Deed::Attach).unwrap());
        let over = Arc::new(AtomicBool::new(false));
        let end = std::thread::spawn({
            let (turns, over, one) = (Arc::clone(&turns), Arc::clone(&over), one.clone());
            move || {
                let turn = turns.take(&one, Deed::End);
                assert!(over.load(Ordering::SeqCst) && turn.is_some());
                assert!(turns.take(&one, Deed::Attach).is_none(), "it is being ended");
            }
        });
        over.store(true, Ordering::SeqCst);
        drop(first);
        end.join().unwrap();
        assert!(turns.take(&one, Deed::Attach).is_some());
    }
}
