//! Names: finding, making, removing, moving, linking and listing them.

pub(crate) mod by_number;
mod change;
mod lookup;
mod orphans;
mod readdir;
