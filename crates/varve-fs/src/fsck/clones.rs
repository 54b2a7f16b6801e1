//! What clones have not copied yet ([`crate::clones`]): each folded directory and each file that borrows its bytes against
//! its loan row, and that against the sources that there are.

use bytes::Bytes;
use varve_schema::{FileKind, Loan, RowKey};
use varve_types::InodeId;
use varve_vfs::FsResult;

use super::fact::{Seen, What};
use super::inodes::CountedInode;
use super::{At, Check, Finding};

/// What rows say of the loans and twins of one inode.
#[derive(Default)]
pub(super) struct Lent {
    /// The sources of its loans, and whether the loan is that of a directory.
    loans: Vec<(u64, bool)>,
    /// Keys of its twin rows: the clone, and what it is a twin of.
    twins: Vec<(u64, u64)>,
    /// Names that are yet to come.
    pub(super) names: u64,
}

impl What {
    /// A loan from the source of the epoch `source`.
    pub(super) fn loan(source: InodeId, loan: Loan) -> What {
        What::Loan { source: source.get(), folded: matches!(loan, Loan::Directory(_)) }
    }
}

impl Lent {
    /// Notes a loan or a twin.
    pub(super) fn note(&mut self, what: What) {
        match what {
            What::Loan { source, folded } => self.loans.push((source, folded)),
            What::Twin { clone, old, left } => {
                self.names = self.names.saturating_add(left);
                self.twins.push((clone, old));
            }
            _ => {}
        }
    }
}

impl Check<'_> {
    /// Compares the loans and twins of an inode with its row.
    pub(super) fn check_lent(&mut self, known: &CountedInode) -> FsResult<()> {
        let (ino, seen) = (known.ino.get(), known.seen());
        let is_dir = |seen: Seen| seen.kind == FileKind::Directory;
        let wanted = seen.and_then(|seen| Some((seen.source?, is_dir(seen))));
        for (source, folded) in &known.lent.loans {
            if wanted != Some((*source, *folded)) {
                let key = RowKey::loan(InodeId::new(*source), known.ino);
                self.found(Finding::StrayLoan { ino, state: *source }, row(key))?;
            }
        }
        if let Some((source, _)) = wanted {
            let sources = self.volume.sources.as_ref();
            if sources.is_some_and(|all| !all.contains(&InodeId::new(source))) {
                self.found(Finding::SourceGone { ino, state: source }, known.at())?;
            } else if wanted.is_some_and(|wanted| !known.lent.loans.contains(&wanted)) {
                self.found(Finding::MissingLoan { ino, state: source }, known.at())?;
            }
        }
        if !known.has_row() || seen.is_none_or(is_dir) {
            for (clone, old) in &known.lent.twins {
                let key = RowKey::twin(InodeId::new(*clone), InodeId::new(*old));
                self.found(Finding::StrayTwin { ino }, row(key))?;
            }
        }
        Ok(())
    }
}

fn row(key: RowKey) -> At {
    At::Row(Bytes::copy_from_slice(&key.to_bytes()))
}
