//! The calls that are measured, and the files that they are about.

use clap::ValueEnum;
use serde::Serialize;
use varve_wire::attr::{Caller, OpenFlags, RenameMode, SetAttr};
use varve_wire::{Answer, Node, Request};

use crate::Failure;

/// The most bytes of a listing that one request asks for, as of a mount's client.
const LISTING_BYTES: u32 = 64 << 10;
/// Read and write, as bits of the message.
const READ_WRITE: OpenFlags = OpenFlags(3);

/// A call. Each is made for every file, but a listing, which is made of the whole directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Call {
    /// Make a file and open it, and close it: two requests
    Create,
    /// Find a file by its name
    Lookup,
    /// Its attributes
    Stat,
    /// Change its permissions
    Chmod,
    /// List the directory with attributes; counted by names
    Readdir,
    /// Give it another name
    Rename,
    /// Remove it
    Unlink,
    /// Make a file without opening it
    Mknod,
}

impl Call {
    pub(super) const ALL: [Call; 8] = [
        Call::Create,
        Call::Lookup,
        Call::Stat,
        Call::Chmod,
        Call::Readdir,
        Call::Rename,
        Call::Unlink,
        Call::Mknod,
    ];
}

/// The files of one client.
pub(super) struct Files {
    /// Which client it is.
    client: u32,
    /// The directory.
    pub(super) dir: Node,
    /// What the server has said of each file that was made.
    pub(super) nodes: Vec<Node>,
}

pub(super) fn caller() -> Caller {
    Caller { uid: 0, gid: 0, umask: 0 }
}

impl Files {
    pub(super) fn new(client: u32, count: u32) -> Files {
        let none = Node { ino: 1, place: None };
        Files { client, dir: none, nodes: vec![none; count as usize] }
    }

    /// How many tasks a call has.
    pub(super) fn tasks(&self, call: Call) -> usize {
        match call {
            // As many names as there are files, if no other client works here.
            Call::Readdir => 1,
            _ => self.nodes.len(),
        }
    }

    /// The name that a call finds or gives a file.
    pub(super) fn name(&self, call: Call, at: usize) -> Vec<u8> {
        let letter = match call {
            Call::Unlink => 'r',
            Call::Mknod => 'm',
            _ => 'f',
        };
        format!("{letter}{}-{at}", self.client).into_bytes()
    }

    /// The name that a rename gives a file.
    pub(super) fn new_name(&self, at: usize) -> Vec<u8> {
        self.name(Call::Unlink, at)
    }
}

/// One task of a call, which may take several requests.
pub(super) struct Task {
    call: Call,
    at: usize,
    step: u32,
    cookie: u64,
    file: u64,
    names: [Vec<u8>; 2],
}

impl Task {
    /// Begins a task; `file` is a number for an open file that no other task has.
    pub(super) fn new(call: Call, at: usize, file: u64, files: &Files) -> Task {
        let new_name = if call == Call::Rename { files.new_name(at) } else { Vec::new() };
        let names = [files.name(call, at), new_name];
        Task { call, at, step: 0, cookie: 0, file, names }
    }

    /// The next request.
    pub(super) fn request(&self, files: &Files) -> Request<'_> {
        let (parent, node, name) = (files.dir, files.nodes[self.at], &self.names[0][..]);
        match self.call {
            Call::Create if self.step > 0 => Request::Release { node, file: self.file },
            Call::Create => Request::Create {
                caller: caller(),
                parent,
                name,
                perm: 0o644,
                flags: READ_WRITE,
                file: self.file,
            },
            Call::Mknod => {
                Request::Mknod { caller: caller(), parent, name, mode: 0o100_644, rdev: 0 }
            }
            Call::Lookup => Request::Lookup { parent, name },
            Call::Stat => Request::Getattr { node },
            Call::Chmod => {
                let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
                Request::Setattr { caller: caller(), node, set }
            }
            Call::Readdir => Request::Readdir {
                node: parent,
                cookie: self.cookie,
                with_attr: true,
                bytes: LISTING_BYTES,
            },
            Call::Rename => Request::Rename {
                parent,
                name,
                new_parent: parent,
                new_name: &self.names[1],
                mode: RenameMode::Replace,
            },
            Call::Unlink => Request::Unlink { parent, name },
        }
    }

    /// Takes an answer. Returns how much is done by it, and whether the task has another request.
    pub(super) fn answered(
        &mut self,
        answer: &Answer,
        data: &[u8],
        files: &mut Files,
    ) -> Result<(u64, bool), Failure> {
        match (self.call, answer) {
            (Call::Create, Answer::Created(entry, _)) if self.step == 0 => {
                files.nodes[self.at] = Node { ino: entry.attr.ino, place: entry.place };
                self.step = 1;
                Ok((0, true))
            }
            (Call::Readdir, Answer::Listed { names, is_end }) => {
                self.cookie = last_cookie(data, *names)?.unwrap_or(self.cookie);
                Ok(((*names).into(), !is_end))
            }
            (Call::Lookup | Call::Mknod, Answer::Entry(_))
            | (Call::Stat | Call::Chmod, Answer::Attr(_))
            | (Call::Create | Call::Rename | Call::Unlink, Answer::Done) => Ok((1, false)),
            _ => Err(format!("{:?} of file {}: {answer:?}", self.call, self.at).into()),
        }
    }
}

/// The cookie of the last name of a listing.
fn last_cookie(mut data: &[u8], names: u32) -> Result<Option<u64>, Failure> {
    let mut cookie = None;
    for _ in 0..names {
        let (listed, rest) = postcard::take_from_bytes::<varve_wire::answer::Listed<'_>>(data)?;
        (cookie, data) = (Some(listed.cookie), rest);
    }
    Ok(cookie)
}
