//! POSIX access control lists: their bytes, and the rules by which they grant rights, follow a mode and are
//! inherited.
//!
//! 1. [`Acl::decode`] reads a list that a program sets; [`Acl::encode`] writes it.
//! 2. [`Acl::grants`] checks a caller's rights.
//! 3. A change of the mode changes the list, and a new object inherits the default list of its directory.
//!
//! A list is stored as the extended attribute [`ACL_ACCESS`] or [`ACL_DEFAULT`], in the form in which the
//! kernel and the tools exchange it:
//!
//! ```text
//! | version u32 = 2 | entries * ( tag u16 | perm u16 | id u32 ) |
//! tag: 1 owner, 2 user id, 4 owning group, 8 group id, 16 mask, 32 others
//! id:  of tags 2 and 8 only; else 2^32 - 1
//! ```
//!
//! Invariants: the tags are in this order. Owner, owning group and others are there once, the mask at most once, and
//! always if the list names a user or a group. A list of just the first three says the same as a mode and is stored
//! as the mode ([`Acl::is_minimal`]). Any other list is stored beside a mode whose group bits are its mask.
//!
//! Source: POSIX.1e draft 17, 23.1; the algorithms as acl(5) states them.

use crate::DecodeError;

/// The attribute that holds the list for access to an inode.
pub const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute of a directory that holds the list for new objects in it.
pub const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";
/// The most entries of a list. The kernel cannot read a longer list, because its buffer is one page.
pub const ACL_ENTRIES_MAX: usize = (4096 - HEADER_BYTES) / ENTRY_BYTES;

const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
const NO_ID: u32 = u32::MAX;

/// To whom an entry grants rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclTag {
    /// The owner of the inode.
    Owner,
    /// The user with this id.
    User(u32),
    /// The group of the inode.
    OwningGroup,
    /// The group with this id.
    Group(u32),
    /// The most rights of all except the owner and others.
    Mask,
    /// All other users.
    Others,
}

impl AclTag {
    fn number(self) -> u16 {
        match self {
            AclTag::Owner => 1,
            AclTag::User(_) => 2,
            AclTag::OwningGroup => 4,
            AclTag::Group(_) => 8,
            AclTag::Mask => 16,
            AclTag::Others => 32,
        }
    }

    fn id(self) -> u32 {
        match self {
            AclTag::User(id) | AclTag::Group(id) => id,
            _ => NO_ID,
        }
    }

    fn new(number: u16, id: u32) -> Option<AclTag> {
        match number {
            1 => Some(AclTag::Owner),
            2 if id != NO_ID => Some(AclTag::User(id)),
            4 => Some(AclTag::OwningGroup),
            8 if id != NO_ID => Some(AclTag::Group(id)),
            16 => Some(AclTag::Mask),
            32 => Some(AclTag::Others),
            _ => None,
        }
    }
}

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclEntry {
    /// To whom it grants rights.
    pub tag: AclTag,
    /// 4 to read, 2 to write, 1 to execute or search.
    pub perm: u16,
}

/// An access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<AclEntry>,
}

/// The user whose rights are checked.
#[derive(Clone, Copy, Debug)]
pub struct AclCaller<'a> {
    /// The user.
    pub uid: u32,
    /// The user's first group.
    pub gid: u32,
    /// The user's other groups.
    pub groups: &'a [u32],
}

impl AclCaller<'_> {
    /// Returns whether the caller is in `group`.
    pub fn is_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }
}

impl Acl {
    /// Makes a list of these entries. The error says which rule they break and at which entry (as an offset in the
    /// encoding).
    pub fn new(entries: impl IntoIterator<Item = AclEntry>) -> Result<Acl, DecodeError> {
        let acl = Acl { entries: entries.into_iter().collect() };
        acl.check()?;
        Ok(acl)
    }

    /// Decodes a list; `None` if it has no entries, which stands for the removal of the list.
    pub fn decode(bytes: &[u8]) -> Result<Option<Acl>, DecodeError> {
        let error = |what, offset| DecodeError { what, offset };
        let Some((version, rest)) = bytes.split_first_chunk() else {
            return Err(error("an access control list without a version", 0));
        };
        if u32::from_le_bytes(*version) != VERSION {
            return Err(error("an unknown version of access control lists", 0));
        }
        let (raw, left) = rest.as_chunks::<ENTRY_BYTES>();
        if !left.is_empty() {
            return Err(error("an access control list that ends within an entry", bytes.len()));
        }
        if raw.len() > ACL_ENTRIES_MAX {
            return Err(error("too many entries in an access control list", HEADER_BYTES));
        }
        let mut acl = Acl { entries: Vec::with_capacity(raw.len()) };
        for (index, [t0, t1, p0, p1, id @ ..]) in raw.iter().enumerate() {
            let number = u16::from_le_bytes([*t0, *t1]);
            let tag = AclTag::new(number, u32::from_le_bytes(*id)).ok_or_else(|| {
                error("an unknown tag or id in an access control list", offset_of(index))
            })?;
            acl.entries.push(AclEntry { tag, perm: u16::from_le_bytes([*p0, *p1]) });
        }
        if acl.entries.is_empty() {
            return Ok(None);
        }
        acl.check()?;
        Ok(Some(acl))
    }

    /// Returns the bytes of the list.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + self.entries.len() * ENTRY_BYTES);
        out.extend_from_slice(&VERSION.to_le_bytes());
        for entry in &self.entries {
            out.extend_from_slice(&entry.tag.number().to_le_bytes());
            out.extend_from_slice(&entry.perm.to_le_bytes());
            out.extend_from_slice(&entry.tag.id().to_le_bytes());
        }
        out
    }

    /// Returns the entries in order.
    pub fn entries(&self) -> &[AclEntry] {
        &self.entries
    }

    fn check(&self) -> Result<(), DecodeError> {
        let (mut last, mut named) = (0, false);
        let wrong = |what, index| Err(DecodeError { what, offset: offset_of(index) });
        for (index, AclEntry { tag, perm }) in self.entries.iter().enumerate() {
            if perm & !0o7 != 0 {
                return wrong("a permission that is none of read, write and execute", index);
            }
            let is_named = matches!(tag, AclTag::User(_) | AclTag::Group(_));
            named |= is_named;
            // Owner and owning group come before all entries that sort after them.
            let number = tag.number();
            let in_order = number > last || (is_named && number == last);
            let (owner_due, group_due) = (last == 0, last < 4 && number > 4);
            if !in_order || (owner_due && number != 1) || group_due {
                return wrong("entries out of order or missing in an access control list", index);
            }
            if *tag == AclTag::Others && named && last != AclTag::Mask.number() {
                return wrong("named users or groups without a mask", index);
            }
            last = number;
        }
        match last {
            32 => Ok(()),
            _ => wrong("an access control list without an entry for others", self.entries.len()),
        }
    }

    fn perm_of(&self, tag: AclTag) -> Option<u16> {
        self.entries.iter().find(|entry| entry.tag == tag).map(|entry| entry.perm)
    }

    /// Calls `change` with the entry of the owner, the entry of the group bits of a mode (the mask if there is one),
    /// and the entry of others.
    fn for_each_class(&mut self, mut change: impl FnMut(&mut AclEntry, u32)) {
        let group = match self.perm_of(AclTag::Mask) {
            Some(_) => AclTag::Mask,
            None => AclTag::OwningGroup,
        };
        for entry in &mut self.entries {
            match entry.tag {
                AclTag::Owner => change(entry, 6),
                AclTag::Others => change(entry, 0),
                tag if tag == group => change(entry, 3),
                _ => {}
            }
        }
    }

    /// Returns whether a mode can say the same as the list.
    pub fn is_minimal(&self) -> bool {
        self.entries.len() == 3
    }

    /// Returns the mode bits (`0o777`) that belong to this list.
    pub fn mode(&self) -> u16 {
        let of = |tag| self.perm_of(tag).unwrap_or(0);
        let group = self.perm_of(AclTag::Mask).unwrap_or(of(AclTag::OwningGroup));
        of(AclTag::Owner) << 6 | group << 3 | of(AclTag::Others)
    }

    /// Follows a change of the mode: takes the bits of the owner, of the group (the mask) and of others from `mode`.
    pub fn follow_mode(&mut self, mode: u16) {
        self.for_each_class(|entry, shift| entry.perm = (mode >> shift) & 0o7);
    }

    /// Returns the access list and the mode of an object that is made with `mode` in a directory with this default
    /// list. The umask does not matter.
    pub fn inherit(&self, mode: u16) -> (Acl, u16) {
        let mut access = self.clone();
        access.for_each_class(|entry, shift| entry.perm &= mode >> shift);
        let mode = mode & !0o777 | access.mode();
        (access, mode)
    }

    /// Returns whether `caller` has all rights in `wanted` (as in [`AclEntry::perm`]) to an inode of `owner` and
    /// `group`. REQUIRES: the caller is not privileged.
    pub fn grants(&self, caller: AclCaller<'_>, owner: u32, group: u32, wanted: u16) -> bool {
        let mask = self.perm_of(AclTag::Mask).unwrap_or(0o7);
        let enough = |perm: u16| wanted & !perm == 0;
        let mut in_a_group = false;
        for AclEntry { tag, perm } in &self.entries {
            match *tag {
                AclTag::Owner if caller.uid == owner => return enough(*perm),
                AclTag::User(id) if caller.uid == id => return enough(perm & mask),
                AclTag::OwningGroup if caller.is_in(group) => in_a_group = true,
                AclTag::Group(id) if caller.is_in(id) => in_a_group = true,
                AclTag::Others => return !in_a_group && enough(*perm),
                _ => continue,
            }
            // The first sufficient entry for one of the caller's groups decides.
            if enough(*perm) {
                return enough(perm & mask);
            }
        }
        false
    }
}

fn offset_of(entry: usize) -> usize {
    HEADER_BYTES + entry * ENTRY_BYTES
}

#[cfg(test)]
#[path = "acl/tests.rs"]
mod tests;
