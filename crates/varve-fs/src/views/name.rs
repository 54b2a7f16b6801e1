//! The name of a view: of which kind it is, and how it is called among the views of that kind.
//!
//! In: a kind and a name, or a path below the mount point. Out: the other of the two. Never: knows whether there is such a view.

use std::path::{Path, PathBuf};

/// What a view is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ViewKind {
    /// A named snapshot.
    Snapshot,
    /// A transaction.
    Transaction,
}

impl ViewKind {
    /// The directory below the mount point of the main tree that shows all views of a kind.
    fn dir(self) -> &'static str {
        match self {
            ViewKind::Snapshot => ".varve/snapshots",
            ViewKind::Transaction => ".varve/txn",
        }
    }
}

/// The name of a view.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ViewName {
    /// What it is.
    pub kind: ViewKind,
    /// Its name among the views of this kind.
    pub name: String,
}

impl ViewName {
    /// The path below the mount point of the main tree at which the view is seen. If there is no view of this name
    /// ([`VarveFs::check_view`](crate::VarveFs::check_view)), anything may be there.
    pub fn path(&self) -> PathBuf {
        Path::new(self.kind.dir()).join(&self.name)
    }

    /// The name of the transaction `id`.
    pub fn transaction(id: impl Into<String>) -> ViewName {
        ViewName { kind: ViewKind::Transaction, name: id.into() }
    }

    /// The name of the view that is seen at `path` below the mount point of the main tree.
    pub fn at(path: &Path) -> Option<ViewName> {
        let kinds = [ViewKind::Snapshot, ViewKind::Transaction].into_iter();
        let (kind, name) =
            kinds.filter_map(|kind| Some((kind, path.strip_prefix(kind.dir()).ok()?))).next()?;
        Some(ViewName { kind, name: name.to_str()?.to_owned() })
    }
}
