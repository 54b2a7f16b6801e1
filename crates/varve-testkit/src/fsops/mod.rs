//! Random operations on file systems, and their comparison with the model.
//!
//! 1. [`Generator`] makes [`Op`]s from a seed.
//! 2. [`Session`] runs one on a file system and returns an [`Outcome`], which is equal for any two
//!    correct file systems.
//! 3. [`tree()`] reads a whole tree into a comparable [`TreeDump`].
//! 4. [`Lockstep`] does all this on a file system and on the model, and compares the usage of directories.

mod generate;
mod lockstep;
mod op;
mod outcome;
mod session;
mod tree;
mod usage;

pub use generate::{Generator, Universe};
pub use lockstep::{Lockstep, Mismatch};
pub use op::{Op, Slot, TreePath};
pub use outcome::{Answer, AttrView, Listed, Outcome, Touched};
pub(crate) use session::read_all;
pub use session::{Session, pattern};
pub use tree::{NodeDump, Times, TreeDump, tree, tree_but, tree_with};
