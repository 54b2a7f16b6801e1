//! The row that says where the pairs of a dictionary are. Its key in [`DICTIONARIES`] is the dictionary's name, which
//! follows the rules for file names.
//!
//! ```text
//! | version u8 | state u8: 1 in use, 2 going | number varint |
//! ```
//!
//! The pairs are the rows of the key space that [`DictionaryRow::keyspace`] names, keys and values as they were given.
//! A dictionary that is going has been dropped; its row stays until its pairs are gone.

use bytes::Bytes;

use crate::{DecodeError, ROW_VERSION, Reader, put_varint};

/// Name of the key space for these rows.
pub const DICTIONARIES: &str = "dictionaries";
/// The most dictionaries of a store; their numbers are below it.
pub const DICTIONARIES_MAX: u32 = 1000;

const IN_USE: u8 = 1;
const GOING: u8 = 2;

/// See the module's comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DictionaryRow {
    /// Which of the key spaces for pairs it has.
    pub number: u32,
    /// It was dropped.
    pub going: bool,
}

impl DictionaryRow {
    /// The name of the key space that holds the pairs.
    pub fn keyspace(self) -> String {
        format!("dictionary-{}", self.number)
    }

    /// The row's value.
    pub fn encode(self) -> Vec<u8> {
        let mut out = vec![ROW_VERSION, if self.going { GOING } else { IN_USE }];
        put_varint(&mut out, self.number.into());
        out
    }

    /// Reads a row's value.
    pub fn decode(bytes: &Bytes) -> Result<DictionaryRow, DecodeError> {
        let mut reader = Reader::new(bytes);
        reader.version()?;
        let going = match reader.u8()? {
            IN_USE => false,
            GOING => true,
            _ => return Err(reader.error("an unknown state of a dictionary")),
        };
        let number = reader.varint32()?;
        if number >= DICTIONARIES_MAX {
            return Err(reader.error("a number that no dictionary has"));
        }
        reader.end()?;
        Ok(DictionaryRow { number, going })
    }
}
