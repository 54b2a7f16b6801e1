//! What clones have not copied yet ([`crate::clones`]): each folded directory and each file that borrows its bytes against
//! its reference row, and that against the sources that there are.

use bytes::Bytes;
use varve_schema::{CloneReference, FileKind, RowKey};
use varve_types::InodeId;
use varve_vfs::FsResult;

use super::fact::{Seen, What};
use super::inodes::CountedInode;
use super::{At, Check, Finding};
use crate::epoch::Epoch;

/// What rows say of the references and remaps of one inode.
#[derive(Default)]
pub(super) struct Lent {
    /// The sources of its references, and whether the reference is that of a directory.
    loans: Vec<(u64, bool)>,
    /// Keys of its remap rows: the clone, and what it is a remap of.
    twins: Vec<(u64, u64)>,
    /// Names that are yet to come.
    pub(super) names: u64,
}

impl What {
    /// A reference from the source of the epoch `source`.
    pub(super) fn clone_reference(source: InodeId, loan: CloneReference) -> What {
        What::CloneReference {
            source: source.get(),
            folded: matches!(loan, CloneReference::Directory(_)),
        }
    }
}

impl Lent {
    /// Notes a reference or a remap.
    pub(super) fn note(&mut self, what: What) {
        match what {
            What::CloneReference { source, folded } => self.loans.push((source, folded)),
            What::CloneRemap { clone, old, left } => {
                self.names = self.names.saturating_add(left);
                self.twins.push((clone, old));
            }
            _ => {}
        }
    }
}

impl Check<'_> {
    /// Compares the references and remaps of an inode with its row.
    pub(super) fn check_lent(&mut self, known: &CountedInode) -> FsResult<()> {
        let (ino, seen) = (known.ino.get(), known.seen());
        let is_dir = |seen: Seen| seen.kind == FileKind::Directory;
        let wanted = seen.and_then(|seen| Some((seen.source?, is_dir(seen))));
        for (source, folded) in &known.lent.loans {
            if wanted != Some((*source, *folded)) {
                let key = RowKey::clone_reference(InodeId::new(*source), known.ino);
                self.found(Finding::StrayLoan { ino, state: *source }, row(key))?;
            }
        }
        if let Some((source, _)) = wanted {
            let sources = self.volume.sources.as_ref();
            if sources.is_some_and(|all| !all.contains(&Epoch::new(source))) {
                self.found(Finding::SourceGone { ino, state: source }, known.at())?;
            } else if wanted.is_some_and(|wanted| !known.lent.loans.contains(&wanted)) {
                self.found(Finding::MissingLoan { ino, state: source }, known.at())?;
            }
        }
        if !known.has_row() || seen.is_none_or(is_dir) {
            for (clone, old) in &known.lent.twins {
                let key = RowKey::clone_remap(InodeId::new(*clone), InodeId::new(*old));
                self.found(Finding::StrayTwin { ino }, row(key))?;
            }
        }
        Ok(())
    }
}

fn row(key: RowKey) -> At {
    At::Row(Bytes::copy_from_slice(&key.to_bytes()))
}
