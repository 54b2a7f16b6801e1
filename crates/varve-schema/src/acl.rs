//! POSIX access control lists: their bytes, and the rules by which they grant, follow a mode and are
//! inherited.
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
//! Invariants: the tags are in this order; owner, owning group and others are there once, the mask at most
//! once, and exactly then if it must be that a user or group is named. A list of just the three says what a mode
//! says and is kept as the mode instead ([`Acl::is_minimal`]); any other stands beside a mode whose bits for
//! the group are its mask.
//!
//! Source: POSIX.1e draft 17, 23.1; the algorithms as acl(5) states them.

use crate::DecodeError;

/// The attribute that holds the list by which an inode is accessed.
pub const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute of a directory that holds the list for what is made in it.
pub const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";
/// The most entries of a list: with more the kernel could not read it, whose buffer is one page.
pub const ACL_ENTRIES_MAX: usize = (4096 - HEADER_BYTES) / ENTRY_BYTES;

const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
const NO_ID: u32 = u32::MAX;

/// Whom an entry is about.
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
    /// The most that all but the owner and others can have.
    Mask,
    /// Everybody else.
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
    /// Whom it is about.
    pub tag: AclTag,
    /// 4 to read, 2 to write, 1 to execute or search.
    pub perm: u16,
}

/// An access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<AclEntry>,
}

/// Who asks a list.
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
    /// Whether the caller is in `group`.
    pub fn is_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }
}

impl Acl {
    /// The list of these entries. The error says which rule they break, at which of them (as an offset of
    /// the encoding).
    pub fn new(entries: impl IntoIterator<Item = AclEntry>) -> Result<Acl, DecodeError> {
        let acl = Acl { entries: entries.into_iter().collect() };
        acl.check()?;
        Ok(acl)
    }

    /// Reads a list; `None` if it has no entries, which means that there is to be no list.
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

    /// The list's bytes.
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

    /// The entries, in order.
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
            // Owner and owning group must have been passed before anything that sorts after them.
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

    /// Calls `change` with the owner's entry, the one that stands for the group in a mode (the mask if
    /// there is one), and the others'.
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

    /// Whether the list says no more than a mode can.
    pub fn is_minimal(&self) -> bool {
        self.entries.len() == 3
    }

    /// The mode bits (`0o777`) that stand beside this list.
    pub fn mode(&self) -> u16 {
        let of = |tag| self.perm_of(tag).unwrap_or(0);
        let group = self.perm_of(AclTag::Mask).unwrap_or(of(AclTag::OwningGroup));
        of(AclTag::Owner) << 6 | group << 3 | of(AclTag::Others)
    }

    /// Follows a change of the mode: the owner's, the group's (the mask's) and the others' bits become those
    /// of `mode`.
    pub fn follow_mode(&mut self, mode: u16) {
        self.for_each_class(|entry, shift| entry.perm = (mode >> shift) & 0o7);
    }

    /// What something made with `mode` gets in a directory whose default list this is: its access list, and
    /// its mode. The umask takes no part.
    pub fn inherit(&self, mode: u16) -> (Acl, u16) {
        let mut access = self.clone();
        access.for_each_class(|entry, shift| entry.perm &= mode >> shift);
        let mode = mode & !0o777 | access.mode();
        (access, mode)
    }

    /// Whether `caller` may do all of `wanted` (as [`AclEntry::perm`]) with an inode of `owner` and `group`.
    /// A privileged caller does not ask.
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
            // The first entry of one of the caller's groups that is enough decides.
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
