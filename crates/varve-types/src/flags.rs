//! The flags of files and directories that chattr(1) sets.

/// A set of flags of one file or directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileFlags(u8);

impl FileFlags {
    /// Nobody may change the bytes, the attributes or the names.
    pub const IMMUTABLE: FileFlags = FileFlags(1);
    /// Bytes can only be appended; in a directory, names can only be added.
    pub const APPEND_ONLY: FileFlags = FileFlags(1 << 1);
    /// A backup may leave the file out. Varve only stores this flag.
    pub const NO_DUMP: FileFlags = FileFlags(1 << 2);

    const ALL: u8 = 0b111;
    /// The letters of chattr(1), in the order of the bits.
    const LETTERS: [(char, FileFlags); 3] =
        [('i', FileFlags::IMMUTABLE), ('a', FileFlags::APPEND_ONLY), ('d', FileFlags::NO_DUMP)];

    /// Returns the set with these bits; `None` if a bit is unknown.
    pub const fn from_bits(bits: u8) -> Option<FileFlags> {
        if bits & !FileFlags::ALL == 0 { Some(FileFlags(bits)) } else { None }
    }

    /// Returns the bits.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Returns the union of both sets.
    #[must_use]
    pub const fn with(self, other: FileFlags) -> FileFlags {
        FileFlags(self.0 | other.0)
    }

    /// Returns the flags that are in both sets.
    #[must_use]
    pub const fn and(self, other: FileFlags) -> FileFlags {
        FileFlags(self.0 & other.0)
    }

    /// Returns the flags that are in this set and not in the other.
    #[must_use]
    pub const fn without(self, other: FileFlags) -> FileFlags {
        FileFlags(self.0 & !other.0)
    }

    /// Returns whether no flag is set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns whether the immutable flag is set.
    pub const fn immutable(self) -> bool {
        self.0 & FileFlags::IMMUTABLE.0 != 0
    }

    /// Returns whether the append-only flag is set.
    pub const fn append_only(self) -> bool {
        self.0 & FileFlags::APPEND_ONLY.0 != 0
    }

    /// Returns whether the immutable or the append-only flag is set: then the file keeps its names and most of its
    /// attributes.
    pub const fn fixed(self) -> bool {
        self.immutable() || self.append_only()
    }

    /// Returns the letters by which chattr(1) calls the flags.
    pub fn letters(self) -> String {
        let set = FileFlags::LETTERS.iter().filter(|(_, flag)| !self.and(*flag).is_empty());
        set.map(|(letter, _)| letter).collect()
    }

    /// Parses letters; `None` unless each stands there once and in the order of [`FileFlags::letters`].
    pub fn from_letters(letters: &str) -> Option<FileFlags> {
        let mut flags = FileFlags::default();
        for letter in letters.chars() {
            let (_, flag) = FileFlags::LETTERS.iter().find(|(known, _)| *known == letter)?;
            flags = flags.with(*flag);
        }
        (flags.letters() == letters).then_some(flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_has_its_letters_and_bits() {
        for bits in 0..=u8::MAX {
            let flags = FileFlags::from_bits(bits);
            assert_eq!(flags.is_some(), bits < 8, "{bits}");
            if let Some(flags) = flags {
                assert_eq!(FileFlags::from_letters(&flags.letters()), Some(flags));
                assert_eq!(flags.bits(), bits);
            }
        }
        for wrong in ["x", "ii", "ai", "i ", "A"] {
            assert_eq!(FileFlags::from_letters(wrong), None, "{wrong}");
        }
        assert_eq!(FileFlags::IMMUTABLE.with(FileFlags::NO_DUMP).letters(), "id");
    }
}
