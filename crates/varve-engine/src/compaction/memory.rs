//! What compactions remember of a key space between one and the next.

use super::damaged::Damaged;
use super::policy::States;
use super::reclaim::LookedAt;
use super::replaced::Shares;

/// What a redesign knows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableDesign {
    /// It is of the store's design.
    Fine,
    /// Its rows point at few enough bytes to bring them into rows at once.
    Small,
}

/// What is remembered of a key space between compactions; forgotten at close.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) states: States,
    /// Which part of the rows of tables replaces older ones.
    pub(crate) replacing: Shares,
    /// What of tables nobody sees any more.
    pub(crate) looked: LookedAt,
    /// What could not be read.
    pub(crate) damaged: Damaged,
}
