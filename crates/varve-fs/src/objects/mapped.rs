//! The files that are noted as large files which programs may go on writing to ([`crate::mapped`]).

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use varve_types::InodeId;

/// Noted files beyond which those that are not mapped are forgotten.
pub(crate) const NOTED_MAX: usize = 256;

/// The files that are noted.
#[derive(Debug, Default)]
pub(crate) struct Mapped(Mutex<Noted>);

#[derive(Debug, Default)]
struct Noted {
    /// Each with the number of its last note.
    files: BTreeMap<InodeId, u64>,
    /// The files that a daemon left open when it died, until nobody has them open any more.
    left: BTreeSet<InodeId>,
    next: u64,
    /// With more files than this, and more than [`NOTED_MAX`], it is time to look which are still mapped.
    look_at: usize,
}

impl Mapped {
    /// Notes a file that is open for writing straight and about to be closed; true if those that are not mapped should be
    /// forgotten by now ([`VarveFs::forget_unmapped`](crate::VarveFs)).
    pub(crate) fn note(&self, ino: InodeId) -> bool {
        let mut noted = self.0.lock();
        noted.next += 1;
        let number = noted.next;
        noted.files.insert(ino, number);
        let many = noted.files.len() > noted.look_at.max(NOTED_MAX);
        if many {
            // Others need not look meanwhile.
            noted.look_at = 2 * noted.files.len();
        }
        many
    }

    /// Whether a file was open for writing straight when it was closed, and is not known to be unmapped.
    pub(crate) fn is_noted(&self, ino: InodeId) -> bool {
        self.0.lock().files.contains_key(&ino)
    }

    /// Whether a file counts as written to by programs that opened it before a daemon died.
    pub(crate) fn is_left(&self, ino: InodeId) -> bool {
        self.0.lock().left.contains(&ino)
    }

    /// One of those that were left open, if there is any.
    pub(crate) fn any_left(&self) -> Option<InodeId> {
        self.0.lock().left.first().copied()
    }

    /// Notes a file that was left open by the death of a daemon.
    pub(crate) fn note_left(&self, ino: InodeId) {
        self.note(ino);
        self.0.lock().left.insert(ino);
    }

    /// Nobody writes to this file any more that was left open.
    pub(crate) fn end_left(&self, ino: InodeId) {
        self.0.lock().left.remove(&ino);
    }

    /// The noted files, each with the number of its last note.
    pub(crate) fn noted(&self) -> Vec<(InodeId, u64)> {
        self.0.lock().files.iter().map(|(ino, number)| (*ino, *number)).collect()
    }

    /// Files that are not mapped have been forgotten: the next look is due when there are twice as many.
    pub(crate) fn end_look(&self) {
        let mut noted = self.0.lock();
        noted.look_at = 2 * noted.files.len();
    }

    /// Forgets a file unless it was noted again since it had this number.
    pub(crate) fn forget(&self, ino: InodeId, number: u64) {
        let mut noted = self.0.lock();
        if noted.files.get(&ino) == Some(&number) {
            noted.files.remove(&ino);
        }
    }
}
