//! Checks permissions again for a request that has waited for locks.
//!
//! The kernel checks permissions before it sends a request. A transaction that holds the locks may change the
//! permissions, and then the request must not be served by the old ones. So the attributes that decide are kept with
//! the request ([`Adapter::checked`]). If they differ when the locks have been released
//! ([`Adapter::is_still_allowed`]), the answer is ESTALE, and the kernel walks the path once more and checks anew.
//! Requests about open files need no such check, because a program may go on using a file that it has open.

use bytes::Bytes;
use varve_types::InodeId;
use varve_vfs::{Attr, FsError, FsResult};

use super::Adapter;
use crate::convert;
use crate::notify::Notifier;
use crate::protocol::constants::ACCESS_LIST_XATTR;
use crate::protocol::request::{Header, Rename, Request};
use crate::transport::Origin;

/// An object that the kernel has checked.
#[derive(Debug, PartialEq, Eq)]
enum Subject {
    Inode(InodeId),
    /// What a name in a directory stands for. In a sticky directory its owner decides who may remove the name.
    Name(InodeId, Vec<u8>),
}

/// The attributes that decide about permissions of an inode.
#[derive(Debug, PartialEq, Eq)]
struct Rights {
    ino: InodeId,
    perm: u32,
    uid: u32,
    gid: u32,
    list: Option<Bytes>,
}

/// The attributes of all objects that a request is about; `None` for an object that does not exist.
#[derive(Debug, Default)]
pub(crate) struct Checked(Vec<(Subject, Option<Rights>)>);

/// Returns the objects that the kernel checks before it sends `request` about `ino`.
fn subjects(ino: InodeId, request: &Request<'_>, inode: impl Fn(u64) -> InodeId) -> Vec<Subject> {
    let name = |dir: InodeId, name: &[u8]| Subject::Name(dir, name.to_vec());
    let own = Subject::Inode(ino);
    match *request {
        Request::Open { .. }
        | Request::Create(_)
        | Request::Tmpfile(_)
        | Request::Mknod(_)
        | Request::Mkdir { .. }
        | Request::Symlink { .. }
        | Request::Setxattr(_)
        | Request::Removexattr { .. } => vec![own],
        Request::Setattr(set) if !set.has_handle => vec![own],
        Request::Link { inode: linked, .. } => vec![own, Subject::Inode(inode(linked))],
        Request::Unlink { name: removed } | Request::Rmdir { name: removed } => {
            vec![own, name(ino, removed)]
        }
        Request::Rename(Rename { new_parent, name: old, new_name, .. }) => {
            let to = inode(new_parent);
            vec![own, Subject::Inode(to), name(ino, old), name(to, new_name)]
        }
        _ => Vec::new(),
    }
}

impl Adapter {
    /// Returns the current attributes of all objects that the kernel has checked for a request.
    pub(crate) fn checked(&self, header: &Header, body: &[u8]) -> Checked {
        let Ok(request) = Request::decode(header.opcode, body) else { return Checked::default() };
        if self.agreement.root_alone() {
            return Checked::default();
        }
        let subjects = subjects(self.inode(header.node), &request, |node| self.inode(node));
        let found = subjects.into_iter().map(|subject| {
            let rights = self.rights(&subject);
            (subject, rights)
        });
        Checked(found.collect())
    }

    /// Returns whether all these attributes are still the same. Has the kernel forget the attributes that differ.
    pub(crate) fn is_still_allowed(&self, origin: &Origin, checked: &Checked) -> bool {
        let mut is_allowed = true;
        for (subject, before) in &checked.0 {
            if self.rights(subject) == *before {
                continue;
            }
            is_allowed = false;
            if let Subject::Inode(ino) = subject {
                self.tell_of_attributes(origin, *ino);
            }
        }
        is_allowed
    }

    /// Makes the kernel ask for the attributes of `ino` again.
    pub(super) fn tell_of_attributes(&self, origin: &Origin, ino: InodeId) {
        if let Err(error) = self.notifier(origin).attributes_changed(ino) {
            log::warn!("the kernel may not see the mode of inode {ino}: {error}");
        }
    }

    /// Returns a notifier for the kernel connection of `origin`.
    pub(super) fn notifier(&self, origin: &Origin) -> Notifier {
        Notifier::new(origin.device().clone(), self.root())
    }

    fn rights(&self, subject: &Subject) -> Option<Rights> {
        let found = match subject {
            Subject::Inode(ino) => self.vfs.getattr(*ino),
            Subject::Name(dir, name) => self.named(*dir, name),
        };
        let Attr { ino, perm, uid, gid, .. } = self.unless_it_waits(found)?;
        let list = self.unless_it_waits(self.vfs.getxattr(ino, ACCESS_LIST_XATTR));
        Some(Rights { ino, perm, uid, gid, list })
    }

    fn named(&self, dir: InodeId, name: &[u8]) -> FsResult<Attr> {
        let found = self.vfs.lookup(dir, convert::name(name)?)?;
        self.vfs.forget(found.attr.ino, 1);
        Ok(found.attr)
    }

    /// Returns the result of a call that is not repeated, and ends its wait if locks block it.
    pub(super) fn unless_it_waits<T>(&self, found: FsResult<T>) -> Option<T> {
        if let Err(FsError::Blocked(blocked)) = &found {
            self.vfs.wait_is_over(blocked);
        }
        found.ok()
    }
}
