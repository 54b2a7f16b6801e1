//! The targets of links in `.varve/snapshots`, by numbers.
//!
//! The kernel keeps the target of a link as long as it knows the inode. So another target is another inode: links are numbered, and the
//! [`LINKS_MAX`] links that were looked up last are known.

use std::collections::VecDeque;

use bytes::Bytes;
use parking_lot::Mutex;

use super::id::NUMBER_MAX;

/// Links that are known at a time. A link that is not known any more is looked up again.
const LINKS_MAX: usize = 1024;

/// The links that were looked up last, the newest at the end.
#[derive(Debug)]
pub(crate) struct Links {
    known: Mutex<(u64, VecDeque<(u64, Bytes)>)>,
}

impl Links {
    /// None yet. They are numbered from `first` on, which is not what an earlier process has told the kernel if it is drawn
    /// at random.
    pub(crate) fn new(first: u64) -> Links {
        Links { known: Mutex::new((first & NUMBER_MAX, VecDeque::new())) }
    }

    /// The number of the link to `target`.
    pub(super) fn number(&self, target: Vec<u8>) -> u64 {
        let (next, links) = &mut *self.known.lock();
        if let Some((number, _)) = links.iter().find(|(_, known)| *known == target) {
            return *number;
        }
        if links.len() >= LINKS_MAX {
            links.pop_front();
        }
        let number = *next;
        links.push_back((number, target.into()));
        *next = (number + 1) & NUMBER_MAX;
        number
    }

    /// Where the link with this number leads.
    pub(crate) fn target(&self, number: u64) -> Option<Bytes> {
        let known = self.known.lock();
        known.1.iter().find(|link| link.0 == number).map(|(_, target)| target.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stands_for_one_target_only() {
        let links = Links::new(u64::MAX - 1);
        let target = |n: usize| format!("../{n}").into_bytes();
        let first = links.number(target(0));
        assert_eq!(first, NUMBER_MAX - 1);
        assert_eq!(links.number(target(0)), first);
        let numbers: Vec<u64> = (1..LINKS_MAX).map(|n| links.number(target(n))).collect();
        assert_eq!(links.target(first).unwrap(), target(0));
        assert_eq!(numbers[1], 0);
        let last = links.number(target(LINKS_MAX));
        assert_eq!(links.target(first), None);
        assert_eq!(links.target(last).unwrap(), target(LINKS_MAX));
        assert_eq!(links.target(numbers[0]).unwrap(), target(1));
        assert_eq!(links.number(target(0)), last + 1);
    }
}
