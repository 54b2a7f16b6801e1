//! Names: finding, making, removing, moving, linking and listing them.

mod create;
mod link;
mod lookup;
mod readdir;
mod remove;
mod rename;

pub(crate) use create::NewInode;
pub(crate) use remove::Remove;
