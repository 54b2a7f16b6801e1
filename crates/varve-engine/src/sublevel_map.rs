//! One filter over the upper sub-levels of a key space: which of them holds the newest row of a key, and which
//! hold rows of a directory (SlimDB, thesis 5.3.2 and 5.3.3, figure 5.8).
//!
//! 1. A table that the map knows has a *number* in it; tables of one number never overlap. A version has one map,
//!    which never changes: a flush or a merge makes the next from it, along with the next version.
//! 2. A flush puts in the keys of its memtable. Whether an equal fingerprint is the key's own is known from the
//!    lookup that came before the write ([`findings`]); nothing is read for it. A write that did not look costs an
//!    entry with the whole key, and when these are too many the filter degrades to what Bloom filters would do.
//! 3. A merge tells where it took each key from ([`moves`]) and so where it went, or that it left the map.
//! 4. [`map::SublevelMap::lookup`] names the one number that is to be read; tables without a number are asked through
//!    filters of their own.
//!
//! Invariant: of all tables with numbers that hold rows of a key, the map names that with the newest. What might
//! break it (tables that came or went otherwise, see [`next`]) makes the map end, and a new one begin.
//!
//! 5. At close and at rest the maps go to a file ([`saved`]), so that the next open goes on with them. Tables without
//!    numbers are asked through their own filters until merges have replaced them (ADR 2026-11-20-sublevel-map).

pub(crate) mod findings;
pub(crate) mod map;
pub(crate) mod moves;
pub(crate) mod next;
pub(crate) mod number;
pub(crate) mod saved;
