//! Traces of what file systems were asked.
//!
//! 1. A trace comes from a recorder, from a log of another system ([`import`]), or from a generator (`varve-bench trace generate`).
//! 2. It is kept as a compact file ([`Writer`], [`Reader`]; docs/format/trace.md), which names objects by numbers.
//! 3. [`Tree`] finds out from it which directories and files there must have been, and [`Analysis`] what was asked of them.
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
