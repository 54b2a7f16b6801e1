//! Which directories the root leads to.
//!
//! Each directory points to the one that holds its name. All pointers are followed at once, as far again in
//! each round as in all rounds before (pointer jumping):
//!
//! 1. Sort the pointers by where they point to, and walk them beside the same pointers sorted by where they
//!    begin. Each takes over where its target points to, in two sorts and no table of directories.
//! 2. Pointers to the root and to nowhere stay. When none else is left, all is known. It takes as many
//!    rounds as the depth of the tree has binary digits.
//! 3. What still points somewhere after more steps than there are directories is in a loop or below one.
//!    Then the targets are just the members of loops; the least of each loop stands for it.

use varve_schema::{DecodeError, Reader, put_varint};
use varve_types::InodeId;
use varve_vfs::FsResult;

use super::sorter::{Record, Sorted, Sorter};
use super::{At, Check, Finding};

const PHASE: &str = "directories";
/// Where a directory points to that has no name or whose parent does not exist.
pub(super) const NOWHERE: u64 = 0;
const ROOT: u64 = InodeId::ROOT.get();

/// A pointer from a directory to one above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Jump {
    pub(super) from: u64,
    pub(super) to: u64,
    /// The smallest id on the way, `from` included, `to` not.
    pub(super) least: u64,
}

/// The same, sorted by its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ByEnd {
    to: u64,
    from: u64,
    least: u64,
}

fn put3(out: &mut Vec<u8>, numbers: [u64; 3]) {
    numbers.into_iter().for_each(|number| put_varint(out, number));
}

impl Record for Jump {
    fn encode(&self, out: &mut Vec<u8>) {
        put3(out, [self.from, self.to, self.least]);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Jump, DecodeError> {
        Ok(Jump { from: reader.varint()?, to: reader.varint()?, least: reader.varint()? })
    }
}

impl Record for ByEnd {
    fn encode(&self, out: &mut Vec<u8>) {
        put3(out, [self.to, self.from, self.least]);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<ByEnd, DecodeError> {
        Ok(ByEnd { to: reader.varint()?, from: reader.varint()?, least: reader.varint()? })
    }
}

impl Check<'_> {
    /// Finds the directories that the root does not lead to; `parents` has the first pointer of each.
    pub(super) fn check_tree(&mut self, parents: Sorted<Jump>) -> FsResult<()> {
        self.begin(PHASE);
        let mut jumps: Option<Sorted<Jump>> = None;
        let mut steps = 1_u64;
        loop {
            let now = jumps.as_ref().unwrap_or(&parents);
            let open = self.open_ends(now)?;
            self.report.spilled_bytes += open.spilled_bytes();
            if open.len() == 0 || steps > parents.len() {
                break;
            }
            let next = self.jump(now, &open)?;
            self.report.spilled_bytes += next.spilled_bytes();
            jumps = Some(next);
            steps = steps.saturating_mul(2);
        }
        self.report_unreachable(&parents, jumps.as_ref().unwrap_or(&parents))
    }

    /// The pointers that point neither to the root nor nowhere, by their ends.
    fn open_ends(&mut self, jumps: &Sorted<Jump>) -> FsResult<Sorted<ByEnd>> {
        let mut open: Sorter<ByEnd> = self.next_sorter();
        for jump in jumps.iter()? {
            let Jump { from, to, least } = jump?;
            self.step(PHASE);
            if to != NOWHERE && to != ROOT {
                open.push(ByEnd { to, from, least })?;
            }
        }
        open.finish()
    }

    /// One round.
    fn jump(&mut self, jumps: &Sorted<Jump>, open: &Sorted<ByEnd>) -> FsResult<Sorted<Jump>> {
        let mut next: Sorter<Jump> = self.next_sorter();
        for jump in jumps.iter()? {
            let jump = jump?;
            if jump.to == NOWHERE || jump.to == ROOT {
                next.push(jump)?;
            }
        }
        let mut targets = jumps.iter()?;
        let mut target: Option<Jump> = targets.next().transpose()?;
        for end in open.iter()? {
            let ByEnd { to, from, least } = end?;
            self.step(PHASE);
            while target.is_some_and(|target| target.from < to) {
                target = targets.next().transpose()?;
            }
            next.push(match target.filter(|target| target.from == to) {
                Some(target) => Jump { from, to: target.to, least: least.min(target.least) },
                None => Jump { from, to: NOWHERE, least },
            })?;
        }
        next.finish()
    }

    /// Names loops by their least member, and what hangs on them or on nothing. A directory without a name
    /// was named as such.
    fn report_unreachable(&mut self, first: &Sorted<Jump>, last: &Sorted<Jump>) -> FsResult<()> {
        let members = self.open_ends(last)?;
        let mut members = members.iter()?;
        let mut member = members.next().transpose()?;
        for (first, last) in first.iter()?.zip(last.iter()?) {
            let (first, last) = (first?, last?);
            let dir = first.from;
            while member.is_some_and(|member| member.to < dir) {
                member = members.next().transpose()?;
            }
            if last.to == ROOT || first.to == NOWHERE {
                continue;
            }
            let in_loop = member.is_some_and(|member| member.to == dir);
            let finding = if last.to != NOWHERE && in_loop && last.least == dir {
                Finding::DirectoryLoop { dir }
            } else {
                Finding::UnreachableDirectory { dir }
            };
            self.found(finding, At::Own)?;
        }
        Ok(())
    }
}
