//! The client that mounts have, called by threads.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::Mutex;
use varve_client::{Client, Forgetful, Options};
use varve_types::{FileName, InodeId};
use varve_vfs::{Caller, FsResult, OpenFlags, RenameMode, SetAttr, Vfs};
use varve_wire::Node;

use super::Counts;
use super::work::{Call, Files};
use crate::Failure;
use crate::meter::{check_interrupt, cpu_of_this_thread};

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0 };

/// A client.
pub(super) struct Library {
    client: Client,
}

/// A front end that keeps nothing and obeys at once.
struct Forgets;

impl Forgetful for Forgets {
    fn inode_changed(&self, _ino: InodeId) {}

    fn names_changed(&self) -> bool {
        true
    }
}

impl Library {
    /// Connects to a server as `client`.
    pub(super) fn connect(address: SocketAddr, client: [u64; 2]) -> Result<Library, Failure> {
        let client = Client::connect(Options {
            address: address.to_string(),
            path: Vec::new(),
            name: "varve-bench".to_owned(),
            client,
            token: Vec::new(),
            read_only: false,
            wait_max: None,
        })?;
        client.set_front_end(std::sync::Arc::new(Forgets));
        Ok(Library { client })
    }

    /// Makes a directory, unless another client has made it.
    pub(super) fn mkdir(&self, name: &[u8], is_new: bool) -> Result<Node, Failure> {
        let (root, name) = (self.client.root(), FileName::new(name)?);
        let entry = match is_new {
            true => self.client.mkdir(CALLER, root, name, 0o755),
            false => self.client.lookup(root, name),
        }?;
        Ok(Node { ino: entry.attr.ino.get(), place: None })
    }

    /// Makes all calls of a phase by `depth` threads.
    pub(super) fn run(&self, call: Call, files: &mut Files, depth: u32) -> Result<Counts, Failure> {
        let next = AtomicUsize::new(0);
        let made = Mutex::new(Vec::new());
        let tasks = files.tasks(call);
        let work = || -> Result<Counts, Failure> {
            let (mut counts, cpu) = (Counts::default(), cpu_of_this_thread());
            let mut nodes = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= tasks {
                    break;
                }
                check_interrupt()?;
                let done = self.one(call, files, at, &mut nodes);
                counts.done += done.map_err(|error| format!("{call:?} of file {at}: {error}"))?;
            }
            made.lock().extend(nodes);
            counts.cpu = cpu_of_this_thread().saturating_sub(cpu);
            Ok(counts)
        };
        let counts = thread::scope(|scope| {
            let threads: Vec<_> = (0..depth).map(|_| scope.spawn(work)).collect();
            let ended: Vec<_> = threads.into_iter().map(thread::ScopedJoinHandle::join).collect();
            let mut all = Counts::default();
            for ended in ended {
                all.add(ended.unwrap_or_else(|_| Err("a thread panicked".into()))?);
            }
            Ok::<_, Failure>(all)
        })?;
        for (at, node) in made.into_inner() {
            files.nodes[at] = node;
        }
        Ok(counts)
    }

    /// Makes a call about one file, and says when it is handed on, as a mount does. Returns how much was done.
    fn one(
        &self,
        call: Call,
        files: &Files,
        at: usize,
        made: &mut Vec<(usize, Node)>,
    ) -> FsResult<u64> {
        let (vfs, dir) = (&self.client, InodeId::new(files.dir.ino));
        let ino = InodeId::new(files.nodes[at].ino);
        let name = files.name(call, at);
        let name = FileName::new(&name)?;
        let mut done = 1;
        match call {
            Call::Create => {
                let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
                let (entry, opened) = vfs.create(CALLER, dir, name, 0o644, flags)?;
                made.push((at, Node { ino: entry.attr.ino.get(), place: None }));
                vfs.release(entry.attr.ino, opened.handle)?;
            }
            Call::Mknod => drop(vfs.mknod(CALLER, dir, name, 0o100_644, 0)?),
            Call::Lookup => {
                let found = vfs.lookup(dir, name)?;
                vfs.forget(found.attr.ino, 1);
            }
            Call::Stat => drop(vfs.getattr(ino)?),
            Call::Chmod => {
                let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
                vfs.setattr(CALLER, ino, set)?;
            }
            Call::Readdir => {
                done = 0;
                let mut found = Vec::new();
                vfs.readdir(dir, 0, true, &mut |entry| {
                    done += 1;
                    found.extend(entry.attr.map(|attr| attr.ino));
                    true
                })?;
                found.into_iter().for_each(|ino| vfs.forget(ino, 1));
            }
            Call::Rename => {
                let new_name = files.new_name(at);
                vfs.rename(dir, name, dir, FileName::new(&new_name)?, RenameMode::Replace)?;
            }
            Call::Unlink => vfs.unlink(dir, name)?,
        }
        vfs.delivered();
        Ok(done)
    }
}
