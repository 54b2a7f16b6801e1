//! Names: finding, making, removing, moving, linking and listing them.

pub(crate) mod by_number;
mod create;
mod link;
mod lookup;
mod readdir;
mod remove;
mod rename;

pub(crate) use create::{NewInode, adjust_dir, dir_info_mut};
pub(crate) use lookup::{dangling, row_full};
pub(crate) use remove::Remove;
