//! Moves rows down the levels, so that lookups search few tables and space is given back.
//!
//! 1. [`policy::pick`] looks at the sizes of the levels and decides what to merge, if anything. A store may
//!    change its policy at every open: each copes with what another left.
//! 2. [`execute`] merges the tables of that job into new ones, or just moves a table that overlaps
//!    nothing below.
//! 3. Where the store is stitched, [`stitch`] leaves long runs of blocks where they are. Values that stand apart from
//!    their rows stay where they are too, until [`policy::cleaning`] says that too little is in use of their segment.
//! 4. One manifest edit removes the inputs and adds the outputs; the input files go when their last
//!    reader does.
//! 5. Stores that are written over and over merge earlier; [`replaced`] says which these are.
//! 6. Files of which merges left little are emptied by [`defragment`].
//! 7. On a device that is nearly full or small [`reclaim`] drops what nobody sees from one table at a time; [`pinned`] tells
//!    which states have to go for more.
//! 8. What is damaged is passed by where nobody asked for it ([`damaged`]).
//! 9. A change of design is waited for, or finished at once by [`redesign`].
//!
//! Source: TableFS 4.1.2 (LevelDB's leveled compaction), SlimDB 5.1.2 and 5.3.3 (stepped merge), KVFS 3.2
//! (stitching, defragmentation).

pub(crate) mod compactor;
pub(crate) mod damaged;
pub(crate) mod defragment;
pub(crate) mod execute;
pub(crate) mod memory;
pub(crate) mod outputs;
pub(crate) mod pinned;
pub(crate) mod policy;
pub(crate) mod purpose;
pub(crate) mod reclaim;
pub(crate) mod redesign;
pub(crate) mod replaced;
pub(crate) mod report;
pub(crate) mod retain;
pub(crate) mod stitch;

use crate::{StoreError, StoreResult};

/// What was done if there was room for it; for want of room nothing was.
pub(crate) fn done_if_room(outcome: StoreResult<bool>) -> StoreResult<bool> {
    match outcome {
        Err(StoreError::NoSpace { .. }) => Ok(false),
        other => other,
    }
}

/// What goes through versions asks whether the store closes each time it has seen so many.
const CLOSE_CHECK_VERSIONS: u64 = 4096;
