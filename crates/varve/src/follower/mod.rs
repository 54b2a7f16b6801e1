//! A file system that moves on as its owner, on another machine, changes the store.
//!
//! A [`Follower`] shows one state of the store at a time, the newest one when it last looked. A state is a [`VarveFs`] of its own,
//! which never changes.
//!
//! 1. A thread looks at each interval whether there is a later state, by one request ([`Follower::step`]). If there is one, it opens it
//!    and makes it the present one. The front end is told to forget names, attributes and listings.
//! 2. Inodes keep their numbers, and numbers are used once. An inode that the front end knows is looked up in the present state
//!    when a call first needs it there, by its number and its last place.
//! 3. An inode that is open stays in the state in which it was opened, until its last handle is released: its bytes, its
//!    attributes and further opens. So the front end never has pages of two states of one inode. When it is opened in a later state
//!    and has changed, the front end drops its pages.
//! 4. An old state is closed when nothing is open in it. Owners remove what a state needs once it is old for the
//!    age of the oldest reader ([`RemoteEnv::reader_age`]); what is open in it then gets `Stale`.
//!
//! Invariants:
//! - Each call goes to one state, and a call that begins after another has ended goes to the same or a later one, unless its inode is open.
//! - It knows an inode for as long as the front end has lookups of it that it has not taken back, or it is open, and no longer. So what it
//!   knows is bounded by what the front end keeps, not by the store: a kernel takes its lookups back when it drops an inode from its cache, as
//!   it does when memory is short, and its own inode takes several times the [`KNOWN_BYTES_MAX`] of an entry. A move sends one notice for each.
//! - At most [`OLD_STATES_MAX`] old states are open. With so many, it moves on when one of them is closed.
//! - The lock of `known` is taken before that of `now`, and no call of a state is made under either, except [`Vfs::place`].

mod calls;
mod follow;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, RwLock};
use varve_env::{Env, ShadowEnv};
use varve_fs::VarveFs;
use varve_storage::RemoteEnv;
use varve_types::{InodeId, Timestamp};
use varve_vfs::{Attr, Entry, FileType, FsError, FsResult, Handle, Place, Vfs};

use crate::Result;

/// Old states that may be open at a time.
const OLD_STATES_MAX: usize = 4;
/// States that are open at a time: old ones, the present one, and one that is being opened.
pub(crate) const STATES_MAX: usize = OLD_STATES_MAX + 2;

/// The most that a known inode may take, in bytes, besides the room that a hash map leaves free.
const KNOWN_BYTES_MAX: usize = 112;
const _: () = assert!(size_of::<(InodeId, Known)>() <= KNOWN_BYTES_MAX);

/// What keeps answers of a [`Follower`] and can be told to forget them.
pub trait Front: Send + Sync {
    /// Forgets all names.
    fn names_changed(&self);

    /// Forgets the attributes of `ino`, at once. A thread that serves requests calls this.
    fn attributes_changed(&self, ino: InodeId);

    /// Forgets the attributes and the listing of the directory `dir`.
    fn listing_changed(&self, dir: InodeId);
}

/// Opens the file system of a state on a machine.
type Open = dyn Fn(Arc<dyn Env>) -> Result<VarveFs> + Send + Sync;

/// The file system of a store that another machine changes.
pub struct Follower {
    open: Box<Open>,
    now: RwLock<Arc<State>>,
    /// Inodes that the front end has looked up and not forgotten, and open ones.
    known: Mutex<HashMap<InodeId, Known>>,
    handles: RwLock<HashMap<Handle, Option<Opened>>>,
    next_handle: AtomicU64,
    /// States that are not the present one and perhaps in use.
    old: Mutex<Vec<Arc<State>>>,
    front: RwLock<Option<Arc<dyn Front>>>,
    thread: follow::Thread,
}

/// A state of the store.
struct State {
    /// States are numbered in the order in which they were the present one.
    number: u64,
    fs: Arc<VarveFs>,
    remote: Arc<RemoteEnv>,
    /// When it was known last that there was no later state.
    newest_at: Mutex<Moment>,
}

/// A moment by both clocks.
#[derive(Clone, Copy)]
struct Moment {
    monotonic: Duration,
    wall: i64,
}

/// An open file.
#[derive(Clone)]
struct Opened {
    state: Arc<State>,
    handle: Handle,
}

/// An inode that the front end knows.
#[derive(Default)]
struct Known {
    /// Lookups that the front end has not taken back.
    lookups: u64,
    /// The last state that looked it up, and how often it did.
    state: u64,
    state_lookups: u64,
    /// Where it is in that state.
    place: Option<Place>,
    /// It has no name any more.
    is_gone: bool,
    is_dir: bool,
    /// The time of change of the inode whose bytes the front end may have.
    pages_of: Option<Timestamp>,
    /// The state in which it is open, and by how many handles.
    open_in: Option<(Arc<State>, u64)>,
}

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follower").field("state", &self.now().number).finish_non_exhaustive()
    }
}

impl State {
    fn moment(&self) -> Moment {
        Moment { monotonic: self.remote.monotonic(), wall: self.remote.now().secs() }
    }
}

impl Follower {
    /// Shows the state of `remote`, and opens it and later ones by `open`. It moves on once it has a front end ([`Follower::start`]).
    pub(crate) fn new(remote: Arc<RemoteEnv>, open: Box<Open>) -> Result<Follower> {
        let begun = Moment { monotonic: remote.monotonic(), wall: remote.now().secs() };
        let first = open_state(&*open, remote, 1, begun)?;
        Ok(Follower {
            open,
            now: RwLock::new(Arc::new(first)),
            known: Mutex::default(),
            handles: RwLock::default(),
            next_handle: AtomicU64::new(1),
            old: Mutex::default(),
            front: RwLock::new(None),
            thread: follow::Thread::default(),
        })
    }

    /// The file system of the present state. The state stays open for as long as somebody has it.
    pub(crate) fn fs(&self) -> Arc<VarveFs> {
        Arc::clone(&self.now().fs)
    }

    /// The storage.
    pub(crate) fn remote(&self) -> Arc<RemoteEnv> {
        Arc::clone(&self.now().remote)
    }

    fn now(&self) -> Arc<State> {
        Arc::clone(&self.now.read())
    }

    /// The state to which calls about `ino` go, in which it is looked up.
    fn at(&self, ino: InodeId) -> FsResult<Arc<State>> {
        if ino.is_synthetic() {
            return Err(FsError::Stale);
        }
        loop {
            let now = self.now();
            let place = {
                let known = self.known.lock();
                let Some(inode) = known.get(&ino).filter(|_| ino != InodeId::ROOT) else {
                    return Ok(now);
                };
                match &inode.open_in {
                    Some((state, _)) => return Ok(Arc::clone(state)),
                    None if inode.is_gone => return Err(FsError::Stale),
                    None if inode.state == now.number => return Ok(now),
                    // Another thread has seen a later state.
                    None if inode.state > now.number => continue,
                    None => inode.place,
                }
            };
            match now.fs.lookup_at(ino, place, true) {
                Ok(entry) => self.note(&now, &entry.attr, 0),
                Err(FsError::Stale) => {
                    if let Some(inode) = self.known.lock().get_mut(&ino) {
                        inode.is_gone = true;
                    }
                    return Err(FsError::Stale);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Notes that `state` has looked up an inode, `lookups` times for the front end.
    fn note(&self, state: &State, attr: &Attr, lookups: u64) {
        let mut known = self.known.lock();
        let inode = known.entry(attr.ino).or_default();
        inode.lookups += lookups;
        inode.is_dir = attr.kind == FileType::Directory;
        match inode.state.cmp(&state.number) {
            std::cmp::Ordering::Greater => return,
            std::cmp::Ordering::Equal => inode.state_lookups += 1,
            std::cmp::Ordering::Less => (inode.state, inode.state_lookups) = (state.number, 1),
        }
        inode.is_gone = false;
        // Without a place it is searched for.
        inode.place = state.fs.place(attr.ino).ok().flatten();
        if inode.lookups == 0 && inode.open_in.is_none() {
            // Forgotten meanwhile, by this state as well.
            let forgotten = known.remove(&attr.ino);
            drop(known);
            if let Some(inode) = forgotten {
                state.fs.forget(attr.ino, inode.state_lookups);
            }
        }
    }

    /// The attributes of an inode that `state` has looked up: those of the state in which it is open, if it is.
    fn attr(&self, state: &State, attr: Attr) -> FsResult<Attr> {
        let open_in = {
            let known = self.known.lock();
            let open_in = known.get(&attr.ino).and_then(|inode| inode.open_in.as_ref());
            open_in.map(|(state, _)| Arc::clone(state))
        };
        match open_in {
            Some(open_in) if open_in.number != state.number => open_in.fs.getattr(attr.ino),
            _ => Ok(attr),
        }
    }

    /// Notes what a call has looked up for the front end.
    fn found(&self, state: &State, entry: Entry) -> FsResult<Entry> {
        if entry.attr.ino.is_synthetic() {
            return Err(FsError::NotFound);
        }
        self.note(state, &entry.attr, 1);
        let attr = self.attr(state, entry.attr);
        Ok(Entry { attr: attr.inspect_err(|_| self.forgotten(entry.attr.ino, 1))?, ..entry })
    }

    fn forgotten(&self, ino: InodeId, lookups: u64) {
        let gone = {
            let mut known = self.known.lock();
            let Some(inode) = known.get_mut(&ino) else { return };
            inode.lookups = inode.lookups.saturating_sub(lookups);
            if inode.lookups > 0 || inode.open_in.is_some() {
                return;
            }
            known.remove(&ino)
        };
        let now = self.now();
        if let Some(inode) = gone.filter(|inode| inode.state == now.number) {
            now.fs.forget(ino, inode.state_lookups);
        }
    }

    /// The state and its own handle behind a handle.
    fn opened(&self, handle: Handle) -> FsResult<Opened> {
        match self.handles.read().get(&handle) {
            Some(Some(opened)) => Ok(opened.clone()),
            // Its state was too old.
            Some(None) => Err(FsError::Stale),
            None => Err(FsError::BadHandle),
        }
    }

    fn add_handle(&self, opened: Opened) -> Handle {
        let handle = Handle(self.next_handle.fetch_add(1, Ordering::Relaxed));
        self.handles.write().insert(handle, Some(opened));
        handle
    }
}

/// Opens the file system of the state of `remote`, of which the first byte was read after `begun`.
fn open_state(open: &Open, remote: Arc<RemoteEnv>, number: u64, begun: Moment) -> Result<State> {
    // What opening it writes goes to memory.
    let fs = open(ShadowEnv::new(Arc::<RemoteEnv>::clone(&remote)))?;
    if let Err(error) = fs.getattr(InodeId::ROOT) {
        drop(fs.close());
        return Err(error.into());
    }
    Ok(State { number, fs: Arc::new(fs), remote, newest_at: Mutex::new(begun) })
}
