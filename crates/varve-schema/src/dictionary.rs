//! The row that says where the pairs of a dictionary are. Its key in [`DICTIONARIES`] is the dictionary's name, which
//! follows the rules for file names.
//!
//! ```text
//! | version u8 | state u8: 1 in use, 2 going; 3, 4 the same with | number varint | made varint, of 3 and 4 |
//! ```
//!
//! The pairs are the rows of the key space that [`DictionaryRow::keyspace`] names, keys and values as they were given.
//! A dictionary that is going has been dropped; its row stays until its pairs are gone.
//! `made` is an id that was handed out when it was made and that no inode has. So it tells a dictionary from an earlier one
//! of the same name and number, and whether it was there when a view began.

use bytes::Bytes;
use varve_types::InodeId;

use crate::{DecodeError, ROW_VERSION, Reader, put_varint};

/// Name of the key space for these rows.
pub const DICTIONARIES: &str = "dictionaries";
/// The most dictionaries of a store; their numbers are below it.
pub const DICTIONARIES_MAX: u32 = 1000;

/// What the names of key spaces for pairs begin with.
const PAIRS_PREFIX: &str = "dictionary-";

const IN_USE: u8 = 1;
const GOING: u8 = 2;
const IN_USE_MADE: u8 = 3;
const GOING_MADE: u8 = 4;

/// See the module's comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DictionaryRow {
    /// Which of the key spaces for pairs it has.
    pub number: u32,
    /// It was dropped.
    pub going: bool,
    /// When it was made, as an id that no inode has; 0 if it was loaded or recovered.
    pub made: InodeId,
}

impl DictionaryRow {
    /// Of a dictionary in use of which nobody knows when it was made.
    pub fn found(number: u32) -> DictionaryRow {
        DictionaryRow { number, going: false, made: InodeId::new(0) }
    }

    /// The name of the key space that holds the pairs.
    pub fn keyspace(self) -> String {
        format!("{PAIRS_PREFIX}{}", self.number)
    }

    /// Whether a key space of this name holds the pairs of a dictionary.
    pub fn is_keyspace(name: &str) -> bool {
        name.strip_prefix(PAIRS_PREFIX).is_some_and(|number| number.parse::<u32>().is_ok())
    }

    /// The row's value.
    pub fn encode(self) -> Vec<u8> {
        let knows_made = self.made.get() != 0;
        let state = match (self.going, knows_made) {
            (false, false) => IN_USE,
            (true, false) => GOING,
            (false, true) => IN_USE_MADE,
            (true, true) => GOING_MADE,
        };
        let mut out = vec![ROW_VERSION, state];
        put_varint(&mut out, self.number.into());
        if knows_made {
            put_varint(&mut out, self.made.get());
        }
        out
    }

    /// Reads a row's value.
    pub fn decode(bytes: &Bytes) -> Result<DictionaryRow, DecodeError> {
        let mut reader = Reader::new(bytes);
        reader.version()?;
        let (going, knows_made) = match reader.u8()? {
            IN_USE => (false, false),
            GOING => (true, false),
            IN_USE_MADE => (false, true),
            GOING_MADE => (true, true),
            _ => return Err(reader.error("an unknown state of a dictionary")),
        };
        let number = reader.varint32()?;
        if number >= DICTIONARIES_MAX {
            return Err(reader.error("a number that no dictionary has"));
        }
        let made = if knows_made { reader.varint()? } else { 0 };
        if knows_made && made == 0 {
            return Err(reader.error("a dictionary that was made at no time"));
        }
        reader.end()?;
        Ok(DictionaryRow { number, going, made: InodeId::new(made) })
    }
}
