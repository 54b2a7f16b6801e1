//! The name by which the engine knows a snapshot: its epoch, its id in all stores that have it, and the name that users see.
//!
//! ```text
//! EPOCH:ID@NAME
//! EPOCH@NAME      a snapshot of an earlier version of this program, and one that only clones read from
//! ```

use varve_vfs::{FsError, FsResult};

use crate::epoch::Epoch;

/// The longest name of a snapshot, in bytes.
const NAME_BYTES_MAX: usize = 200;

/// The name of a snapshot that only clones read from. Users see no name that begins with a dot.
pub(crate) const HIDDEN_NAME: &str = ".clone";

/// Splits the name by which the engine knows a snapshot into epoch and name.
pub(crate) fn parse_name(stored: &str) -> Option<(Epoch, &str)> {
    let (epoch, name) = stored.split_once('@')?;
    let epoch = epoch.split_once(':').map_or(epoch, |(epoch, _)| epoch);
    Some((Epoch::parse(epoch)?, name))
}

/// The name by which the engine knows a snapshot.
pub(crate) fn stored_name(epoch: Epoch, id: &str, name: &str) -> String {
    format!("{}:{id}@{name}", epoch.get())
}

/// The name by which the engine knows a snapshot that only clones read from.
pub(crate) fn hidden_name(epoch: Epoch) -> String {
    format!("{}@{HIDDEN_NAME}", epoch.get())
}

/// The id that all stores give to the snapshot that this store, with this uuid, knows as `stored`.
pub(crate) fn stored_id(stored: &str, uuid: &str) -> String {
    let epoch = stored.split_once('@').map_or(stored, |(epoch, _)| epoch);
    match epoch.split_once(':') {
        Some((_, id)) => id.to_owned(),
        None => format!("{uuid}-{epoch}"),
    }
}

/// Refuses what cannot be the name of a snapshot.
pub(crate) fn check_name(name: &str) -> FsResult<()> {
    let wrong = name.is_empty()
        || name.len() > NAME_BYTES_MAX
        || name.starts_with('.')
        || name.contains(|letter: char| letter == '/' || letter.is_control());
    match wrong {
        true => Err(FsError::Invalid(
            "a snapshot's name has 1 to 200 bytes, no slash, no control character, and begins with no dot",
        )),
        false => Ok(()),
    }
}
