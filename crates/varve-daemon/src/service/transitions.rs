//! One transition of a view at a time: attaching, detaching or ending it.
//!
//! ```text
//! none --take(Attach)--> attaching --dropped--> none
//! none --try_detach----> detaching --dropped--> none
//! none --take(End)-----> ending    --dropped--> none
//! ```
//!
//! While a view is attached or detached, others that come wait; while it is ended they are refused. Each view has its own state: a slow
//! one delays no other, above all not the programs that only walk past it.

use std::collections::HashMap;

use parking_lot::{Condvar, Mutex};
use varve::Error;
use varve_fs::ViewName;

/// Another request ends this view.
pub(crate) struct BeingEnded(ViewName);

impl From<BeingEnded> for Error {
    fn from(BeingEnded(name): BeingEnded) -> Error {
        Error::failed(format!("{} is being ended already", name.path().display()))
            .hint("try again: by then it has ended or is open again")
    }
}

/// What happens to a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransitionKind {
    /// It is mounted.
    Attach,
    /// It is unmounted until a program looks it up again.
    Detach,
    /// It is committed, aborted or deleted.
    End,
}

/// The transitions that are under way, by view.
#[derive(Debug, Default)]
pub(crate) struct Transitions {
    taken: Mutex<HashMap<ViewName, TransitionKind>>,
    changed: Condvar,
}

/// A transition that is under way, until it is dropped.
#[derive(Debug)]
pub(crate) struct Transition<'a> {
    transitions: &'a Transitions,
    name: ViewName,
}

impl Transitions {
    /// Begins to detach the view `name`; `None` if another transition of it is under way.
    pub(crate) fn try_detach(&self, name: &ViewName) -> Option<Transition<'_>> {
        let mut taken = self.taken.lock();
        if taken.contains_key(name) {
            return None;
        }
        taken.insert(name.clone(), TransitionKind::Detach);
        Some(Transition { transitions: self, name: name.clone() })
    }

    /// Does `work`, which ends the view `name` if it succeeds. Meanwhile no thread attaches the view. REQUIRES: `work` first checks
    /// that the view exists: `name` may be anything that a client sent, and so may the path where it would be mounted.
    pub(crate) fn ending<E: From<BeingEnded>>(
        &self,
        name: &ViewName,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let transition = self.take(name, TransitionKind::End);
        let _transition = transition.ok_or_else(|| BeingEnded(name.clone()))?;
        work()
    }

    /// Begins a transition of the view `name`, after others that attach or detach it; `None` if the view ends.
    pub(crate) fn take(&self, name: &ViewName, kind: TransitionKind) -> Option<Transition<'_>> {
        let mut taken = self.taken.lock();
        loop {
            match taken.get(name) {
                Some(TransitionKind::End) => return None,
                Some(TransitionKind::Attach | TransitionKind::Detach) => {
                    self.changed.wait(&mut taken)
                }
                None => break,
            }
        }
        taken.insert(name.clone(), kind);
        Some(Transition { transitions: self, name: name.clone() })
    }
}

impl Drop for Transition<'_> {
    fn drop(&mut self) {
        self.transitions.taken.lock().remove(&self.name);
        self.transitions.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn one_waits_for_who_attaches_the_same_view_only() {
        let transitions = Arc::new(Transitions::default());
        let [one, other] = ["1", "2"].map(ViewName::transaction);
        let first = transitions.take(&one, TransitionKind::Attach).unwrap();
        assert!(transitions.try_detach(&one).is_none() && transitions.try_detach(&other).is_some());
        drop(transitions.take(&other, TransitionKind::Attach).unwrap());
        let over = Arc::new(AtomicBool::new(false));
        let end = std::thread::spawn({
            let (transitions, over, one) =
                (Arc::clone(&transitions), Arc::clone(&over), one.clone());
            move || {
                let transition = transitions.take(&one, TransitionKind::End);
                assert!(over.load(Ordering::SeqCst) && transition.is_some());
                assert!(
                    transitions.take(&one, TransitionKind::Attach).is_none(),
                    "it is being ended"
                );
            }
        });
        over.store(true, Ordering::SeqCst);
        drop(first);
        end.join().unwrap();
        assert!(transitions.take(&one, TransitionKind::Attach).is_some());
    }
}
