//! How a [`Follower`] moves on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::*;

/// The thread that moves a follower on.
#[derive(Default)]
pub(super) struct Thread {
    stop: Arc<Stop>,
    handle: Mutex<Option<JoinHandle<()>>>,
    /// It holds back moving on, and has said so.
    is_held_back: AtomicBool,
}

#[derive(Default)]
struct Stop {
    is_stopping: Mutex<bool>,
    stopping: Condvar,
}

impl Follower {
    /// Looks each `interval` whether there is a later state, and tells `front` what to forget. Ends with [`Follower::close`].
    pub(crate) fn start(
        self: &Arc<Self>,
        front: Arc<dyn Front>,
        interval: Duration,
    ) -> std::io::Result<()> {
        *self.front.write() = Some(front);
        let (follower, stop) = (Arc::downgrade(self), Arc::clone(&self.thread.stop));
        let body = move || {
            let mut is_failing = false;
            loop {
                let mut is_stopping = stop.is_stopping.lock();
                if !*is_stopping {
                    stop.stopping.wait_for(&mut is_stopping, interval);
                }
                if *is_stopping {
                    return;
                }
                drop(is_stopping);
                let Some(follower) = follower.upgrade() else { return };
                match follower.step() {
                    Ok(_) if is_failing => {
                        log::info!("{} is followed again", follower.remote().address());
                        is_failing = false;
                    }
                    Ok(_) => {}
                    Err(error) if !is_failing => {
                        log::warn!(
                            "the mount stays at its state of {}, and looks again each {} s: {}",
                            follower.remote().address(),
                            interval.as_secs_f64(),
                            error.message()
                        );
                        is_failing = true;
                    }
                    Err(_) => {}
                }
            }
        };
        let thread = std::thread::Builder::new().name("varve-follow".to_owned()).spawn(body)?;
        *self.thread.handle.lock() = Some(thread);
        Ok(())
    }

    /// Looks once, and moves on if there is a later state. Returns whether it has.
    pub(crate) fn step(&self) -> Result<bool> {
        self.close_old();
        let now = self.now();
        let (begun, newest_at) = (now.moment(), *now.newest_at.lock());
        let age = now.remote.reader_age();
        // After a longer time what says that there is a later state may be removed.
        let is_certain = begun.since(newest_at) < age / 2;
        let looked = |error: std::io::Error| {
            crate::Error::failed(format!("cannot look for later changes: {error}"))
        };
        if is_certain && !now.remote.is_behind().map_err(looked)? {
            *now.newest_at.lock() = begun;
            return Ok(false);
        }
        if self.old.lock().len() >= OLD_STATES_MAX {
            if !self.thread.is_held_back.swap(true, Ordering::Relaxed) {
                log::warn!(
                    "files are open in {OLD_STATES_MAX} older states of {}: the mount moves on when those of one are closed, or after {} s",
                    now.remote.address(),
                    age.as_secs()
                );
            }
            return Ok(false);
        }
        self.thread.is_held_back.store(false, Ordering::Relaxed);
        let remote = now.remote.read_again().map_err(looked)?;
        if remote.seq() == now.remote.seq() {
            *now.newest_at.lock() = begun;
            return Ok(false);
        }
        let next = Arc::new(open_state(&*self.open, remote, now.number + 1, begun)?);
        *self.now.write() = next;
        self.old.lock().push(now);
        self.tell();
        self.close_old();
        Ok(true)
    }

    /// Has the front end forget what it knows of the state before. It takes a notice for each inode that the front end knows, so as many as
    /// the kernel's cache has, however many files the store has.
    fn tell(&self) {
        let Some(front) = self.front.read().clone() else { return };
        front.names_changed();
        let known: Vec<(InodeId, bool)> =
            self.known.lock().iter().map(|(ino, inode)| (*ino, inode.is_dir)).collect();
        front.listing_changed(InodeId::ROOT);
        for (ino, is_dir) in known {
            if is_dir {
                front.listing_changed(ino);
            } else {
                front.attributes_changed(ino);
            }
        }
    }

    /// Closes old states that nobody needs, and ends what is open in those that are too old.
    fn close_old(&self) {
        let mut unused = Vec::new();
        {
            let mut old = self.old.lock();
            for state in old.iter() {
                // Without a later state its age does not count.
                if state.moment().monotonic.saturating_sub(state.newest_at.lock().monotonic)
                    >= state.remote.reader_age()
                {
                    self.end_handles(state);
                }
            }
            old.retain(|state| {
                // No thread gets it again once nobody else has it: it is not the present one.
                let is_used = Arc::strong_count(state) > 1 || Arc::strong_count(&state.fs) > 1;
                if !is_used {
                    unused.push(Arc::clone(state));
                }
                is_used
            });
        }
        for state in unused {
            if let Err(error) = state.fs.close() {
                log::warn!("an older state of {}: {error}", state.remote.address());
            }
        }
    }

    /// Ends what is open in a state that is too old.
    fn end_handles(&self, state: &Arc<State>) {
        let is_in = |of: &Arc<State>| Arc::ptr_eq(of, state);
        let mut ended = 0;
        for opened in self.handles.write().values_mut() {
            if opened.as_ref().is_some_and(|opened| is_in(&opened.state)) {
                *opened = None;
                ended += 1;
            }
        }
        let mut known = self.known.lock();
        for inode in known.values_mut() {
            if inode.open_in.as_ref().is_some_and(|(of, _)| is_in(of)) {
                (inode.open_in, inode.pages_of) = (None, None);
            }
        }
        known.retain(|_, inode| inode.lookups > 0 || inode.open_in.is_some());
        drop(known);
        if ended > 0 {
            log::warn!(
                "{ended} files of {} have been open for longer than {} s after they changed or the state around them did; reads give ESTALE until they are opened again",
                state.remote.address(),
                state.remote.reader_age().as_secs()
            );
        }
    }

    /// Counts a handle of `ino` in `state`. Returns whether the front end has to drop pages; `None` if the inode is open in
    /// another state.
    pub(super) fn is_opened(
        &self,
        state: &Arc<State>,
        ino: InodeId,
        changed: Timestamp,
    ) -> Option<bool> {
        let mut known = self.known.lock();
        let inode = known.entry(ino).or_default();
        match &mut inode.open_in {
            Some((of, handles)) => {
                *handles += u64::from(Arc::ptr_eq(of, state));
                Arc::ptr_eq(of, state).then_some(false)
            }
            none => {
                *none = Some((Arc::clone(state), 1));
                Some(inode.pages_of.replace(changed) != Some(changed))
            }
        }
    }

    /// Takes back a handle of `ino` in `state`.
    pub(super) fn is_released(&self, state: &Arc<State>, ino: InodeId) {
        let mut known = self.known.lock();
        let Some(inode) = known.get_mut(&ino) else { return };
        let Some((of, handles)) = &mut inode.open_in else { return };
        if !Arc::ptr_eq(of, state) {
            return;
        }
        *handles -= 1;
        if *handles > 0 {
            return;
        }
        inode.open_in = None;
        drop(known);
        self.forgotten(ino, 0);
        // From now on it is as in the present state.
        if state.number != self.now().number
            && let Some(front) = &*self.front.read()
        {
            front.attributes_changed(ino);
        }
    }

    /// Closes all states. Later calls fail.
    pub(crate) fn close(&self) -> Result<()> {
        *self.thread.stop.is_stopping.lock() = true;
        self.thread.stop.stopping.notify_all();
        if let Some(thread) = self.thread.handle.lock().take() {
            // A panic has said what it is.
            let _ = thread.join();
        }
        *self.front.write() = None;
        for state in std::mem::take(&mut *self.old.lock()) {
            if let Err(error) = state.fs.close() {
                log::warn!("an older state of {}: {error}", state.remote.address());
            }
        }
        Ok(self.now().fs.close()?)
    }
}

impl Moment {
    /// The time since `then`, by the clock that went further: one of them stops while the machine sleeps.
    fn since(self, then: Moment) -> Duration {
        let monotonic = self.monotonic.saturating_sub(then.monotonic);
        monotonic
            .max(Duration::from_secs(self.wall.saturating_sub(then.wall).max(0).cast_unsigned()))
    }
}
