//! Dictionary rows: each says where the pairs of a dictionary are. Its key in [`DICTIONARIES`] is the name of the
//! dictionary, which follows the rules for file names.
//!
//! ```text
//! | version u8 | state u8: 1 in use, 2 dropped; 3, 4 the same with `made` | number varint | made varint, of 3 and 4 |
//! ```
//!
//! The pairs are the rows of the key space that [`DictionaryRow::keyspace`] names, with keys and values as the user
//! gave them. The row of a dropped dictionary stays until its pairs are removed. `made` is an id from the time when
//! the dictionary was made, which no inode has. So it distinguishes a dictionary from an earlier one of the same name
//! and number, and shows whether the dictionary existed when a view began.

use bytes::Bytes;
use varve_types::InodeId;

use crate::{DecodeError, ROW_VERSION, Reader, put_varint};

/// Name of the key space for these rows.
pub const DICTIONARIES: &str = "dictionaries";
/// The most dictionaries of a store; all their numbers are smaller.
pub const DICTIONARIES_MAX: u32 = 1000;

/// The prefix of the names of key spaces for pairs.
const PAIRS_PREFIX: &str = "dictionary-";

const IN_USE: u8 = 1;
const GOING: u8 = 2;
const IN_USE_MADE: u8 = 3;
const GOING_MADE: u8 = 4;

/// A dictionary row; see the module's comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DictionaryRow {
    /// The number of its key space for pairs.
    pub number: u32,
    /// The dictionary was dropped.
    pub going: bool,
    /// When it was made, as an id that no inode has; 0 if it was loaded or recovered.
    pub made: InodeId,
}

impl DictionaryRow {
    /// Returns the row of a dictionary in use without a known time of its making.
    pub fn found(number: u32) -> DictionaryRow {
        DictionaryRow { number, going: false, made: InodeId::new(0) }
    }

    /// Returns the name of the key space that holds the pairs.
    pub fn keyspace(self) -> String {
        format!("{PAIRS_PREFIX}{}", self.number)
    }

    /// Returns whether a key space of this name holds the pairs of a dictionary.
    pub fn is_keyspace(name: &str) -> bool {
        name.strip_prefix(PAIRS_PREFIX).is_some_and(|number| number.parse::<u32>().is_ok())
    }

    /// Returns the row's value.
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

    /// Decodes a row's value.
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
