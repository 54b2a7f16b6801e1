//! Random operations on key-value stores, and the oracle that knows what a store must answer and which
//! states it may hold after a crash.
//!
//! 1. A test makes its store a [`KvStore`].
//! 2. [`KvLockstep::run`] runs random batches, reads and scans on it and compares every answer with
//!    ordered maps. It pauses when the test should reopen the store or let it do maintenance.
//! 3. After a crash, [`KvLockstep::check_recovered`] finds the prefix of the batches that the reopened
//!    store holds, and goes on from there. See [`Survived`] for which prefixes are right.
//!
//! ```no_run
//! # use varve_testkit::kvops::*;
//! # fn open() -> Box<dyn KvStore> { unimplemented!() }
//! let mut lockstep = KvLockstep::new(7, KvUniverse::default());
//! let mut store = open();
//! while let Pause::Reopen | Pause::Maintain = lockstep.run(&*store, 1000).unwrap() {
//!     drop(store);
//!     store = open();
//!     lockstep.check_recovered(&*store, Survived::Acknowledged).unwrap();
//! }
//! ```

mod generate;
mod history;
mod lockstep;

use std::fmt;
use std::ops::Bound;

pub use generate::{KeyShape, KvGenerator, KvOp, KvUniverse};
pub use history::{History, State, Survived};
pub use lockstep::{KvFailure, KvLockstep, Pause};

/// One row.
pub type Row = (Vec<u8>, Vec<u8>);

/// A key space, by its place in [`KvUniverse::spaces`].
pub type Space = usize;

/// One write; no value deletes.
#[derive(Clone, PartialEq, Eq)]
pub struct KvWrite {
    /// The key space.
    pub space: Space,
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Option<Vec<u8>>,
}

impl fmt::Debug for KvWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.space, self.key.escape_ascii())?;
        match &self.value {
            Some(value) => write!(f, "=[{} bytes]", value.len()),
            None => f.write_str(" deleted"),
        }
    }
}

/// Which rows a scan wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvRange {
    /// The lower end.
    pub start: Bound<Vec<u8>>,
    /// The upper end.
    pub end: Bound<Vec<u8>>,
    /// Largest key first.
    pub reverse: bool,
}

impl KvRange {
    /// Every row, smallest key first.
    pub fn all() -> KvRange {
        KvRange { start: Bound::Unbounded, end: Bound::Unbounded, reverse: false }
    }
}

/// Reading, from a store or from a snapshot. Errors are texts; the tests that want to know more keep
/// the error themselves.
pub trait KvRead {
    /// Returns the value of a key.
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>, String>;

    /// Returns the rows of a range.
    fn scan(&self, space: Space, range: &KvRange) -> Result<Vec<Row>, String>;
}

/// A store under test.
pub trait KvStore: KvRead {
    /// Applies all writes or none.
    fn write(&self, batch: &[KvWrite]) -> Result<(), String>;

    /// Makes everything written before durable.
    fn sync(&self) -> Result<(), String>;

    /// Pins the present state, then calls `inspect` with it.
    fn with_snapshot(&self, inspect: &mut dyn FnMut(&dyn KvRead)) -> Result<(), String>;
}
