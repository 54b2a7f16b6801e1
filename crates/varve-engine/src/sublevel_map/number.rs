//! How a table is known in a map of the sub-levels.

use varve_format::filter::SubLevel;

/// A map, as told from all others of the store since it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapId(pub(crate) u64);

/// The number of a table in a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapNumber {
    pub(crate) map: MapId,
    pub(crate) number: SubLevel,
}
