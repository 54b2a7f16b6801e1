//! Traces of the operations of file systems.
//!
//! 1. A trace comes from a recorder, from a log of another system ([`import`]), or from a generator (`varve-bench trace generate`).
//! 2. A compact file stores it ([`Writer`], [`Reader`]; docs/format/trace.md) and names objects by numbers.
//! 3. [`Tree`] derives the directories and files that must have existed, and [`Analysis`] counts the operations on
//!    them.
//!
//! Sources: Ren, thesis, chapter 3.3 and 3.4; Sinnamohideen, thesis, chapter 3.

pub mod analyze;
mod file;
pub mod import;
mod record;
mod tree;

pub use analyze::Analysis;
pub use file::{Reader, TraceError, Writer};
pub use record::{NAME_BYTES_MAX, OPS, Op, Record};
pub use tree::Tree;
