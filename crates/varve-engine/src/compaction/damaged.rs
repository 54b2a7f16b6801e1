//! Passes by files that are damaged, where nobody asked for what stands there: the others get their turn.

use std::collections::HashSet;

use varve_types::FileNo;

use super::execute::Purpose;
use crate::files::StoreFile;
use crate::{StoreError, StoreResult};

/// Whether a file is damaged.
pub(crate) fn is_damage(error: &StoreError) -> bool {
    matches!(error, StoreError::Damaged { .. })
}

/// What was done, or `None` if a file is damaged, which `note` is to remember.
pub(crate) fn unless_damaged(
    done: StoreResult<bool>,
    note: impl FnOnce(&StoreError),
) -> StoreResult<Option<bool>> {
    match done {
        Err(error) if is_damage(&error) => {
            log::warn!("room is not got back where a file is damaged: {error}");
            note(&error);
            Ok(None)
        }
        other => other.map(Some),
    }
}

/// Notes in `known` which segment the next merge is to leave alone, as `error` says of one for `purpose`: that in which a value
/// is damaged, or else the one that was to be emptied. False if these are known.
pub(crate) fn note_segment(
    error: &StoreError,
    purpose: Purpose,
    known: &mut HashSet<FileNo>,
) -> bool {
    let named = match file_of(error) {
        Some(StoreFile::Segment(segment)) => Some(segment),
        _ => None,
    };
    named.into_iter().chain(purpose.emptied()).any(|segment| known.insert(segment))
}

/// The file of the store that `error` is about.
fn file_of(error: &StoreError) -> Option<StoreFile> {
    let (StoreError::Damaged { path, .. } | StoreError::Io { path, .. }) = error else {
        return None;
    };
    StoreFile::parse(path.file_name()?)
}
