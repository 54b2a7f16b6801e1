//! Ends connections before a signal ends the process.
//!
//! A thread takes the requests that the kernel has put into its ring when it next enters the ring. If the thread ends
//! before that, such a request fails with ECANCELED (`fuse_uring_send_in_task` in the kernel's fs/fuse/dev_uring.c),
//! which no program takes for the end of a file system. If the connection ends first, waiting requests fail with
//! ECONNABORTED, and later ones with ENOTCONN. So:
//!
//! 1. [`Deaths::note`] stores the control of a connection for the handler, and sets the handler of each signal that
//!    would end the process.
//! 2. The handler ends each connection, gives the threads time to take their requests ([`SETTLING_NANOS`]), and then
//!    lets the signal do what it would have done.
//!
//! SIGKILL has no handler.
#![allow(
    unsafe_code,
    reason = "a handler of signals, which takes a plain function and plain calls"
)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Signals that end a process, except those by which people ask it to end (SIGTERM, SIGINT, SIGHUP), the one that
/// Rust ignores (SIGPIPE), and SIGBUS, which a failing disk below raises.
const SIGNALS: [libc::c_int; 13] = [
    libc::SIGABRT,
    libc::SIGSEGV,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGSYS,
    libc::SIGTRAP,
    libc::SIGQUIT,
    libc::SIGALRM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    libc::SIGPWR,
];

/// The most connections. Further ones end without this care.
const CONNECTIONS_MAX: usize = 64;

/// Twice the interval at which the kernel looks at what threads have taken (FUSE_URING_TEARDOWN_INTERVAL).
const SETTLING_NANOS: libc::c_long = 100_000_000;

/// No descriptor.
const NONE: i32 = -1;

static CONTROLS: [AtomicI32; CONNECTIONS_MAX] = [const { AtomicI32::new(NONE) }; CONNECTIONS_MAX];

/// A handler is using descriptors, so none may be closed from now on: its number could become another file's.
static IS_DYING: AtomicBool = AtomicBool::new(false);

/// The earlier action of each signal; `None` if it was left in place.
static BEFORE: OnceLock<[Option<libc::sigaction>; SIGNALS.len()]> = OnceLock::new();

/// Registers a connection until this is dropped.
#[derive(Debug)]
pub(crate) struct Deaths {
    slot: &'static AtomicI32,
    control: Option<OwnedFd>,
}

impl Deaths {
    /// Registers the connection that a byte written to `control` ends; `None` if there are too many.
    pub(crate) fn note(control: OwnedFd) -> Option<Deaths> {
        BEFORE.get_or_init(|| SIGNALS.map(handle));
        let number = control.as_raw_fd();
        let order = Ordering::SeqCst;
        let is_free = |slot: &&AtomicI32| slot.compare_exchange(NONE, number, order, order).is_ok();
        let slot = CONTROLS.iter().find(is_free)?;
        Some(Deaths { slot, control: Some(control) })
    }
}

impl Drop for Deaths {
    fn drop(&mut self) {
        self.slot.store(NONE, Ordering::SeqCst);
        if IS_DYING.load(Ordering::SeqCst) {
            std::mem::forget(self.control.take());
        }
    }
}

/// Sets the handler of a signal, unless the signal is ignored or has a handler that is not Rust's. Returns the
/// earlier action.
fn handle(signal: libc::c_int) -> Option<libc::sigaction> {
    // SAFETY: all zeros is a valid value of this plain structure of C.
    let (mut ours, mut before): (libc::sigaction, libc::sigaction) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: asks only; `before` is such a structure.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &mut before) };
    let is_rusts = signal == libc::SIGSEGV && before.sa_sigaction > libc::SIG_IGN;
    if asked != 0 || !(is_rusts || before.sa_sigaction == libc::SIG_DFL) {
        return None;
    }
    ours.sa_sigaction = on_death as extern "C" fn(_, _, _) as usize;
    // A stack that is full takes no handler.
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: both are such structures; the handler does only what a handler may.
    let set = unsafe { libc::sigaction(signal, &ours, std::ptr::null_mut()) };
    (set == 0).then_some(before)
}

extern "C" fn on_death(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    IS_DYING.store(true, Ordering::SeqCst);
    let mut has_ended = false;
    for control in &CONTROLS {
        let control = control.load(Ordering::SeqCst);
        if control != NONE {
            // SAFETY: a descriptor that is not closed any more, and one byte.
            has_ended |= unsafe { libc::write(control, b"1".as_ptr().cast(), 1) } == 1;
        }
    }
    let settling = libc::timespec { tv_sec: 0, tv_nsec: SETTLING_NANOS };
    if has_ended {
        // SAFETY: reads one such structure; how much of it is left is not asked.
        unsafe { libc::nanosleep(&settling, std::ptr::null_mut()) };
    }
    let at = SIGNALS.iter().position(|known| *known == signal);
    let before = BEFORE.get().zip(at).and_then(|(before, at)| before[at].as_ref());
    // SAFETY: what was to be done before, or as the process began, is put back, and happens when this handler returns: by the same
    // fault, which comes again, or by the same signal. `info` is what SA_SIGINFO promises.
    unsafe {
        match before {
            Some(before) => libc::sigaction(signal, before, std::ptr::null_mut()),
            None => libc::signal(signal, libc::SIG_DFL) as libc::c_int,
        };
        let is_fault = (*info).si_code > 0;
        if !is_fault {
            libc::raise(signal);
        }
    }
}
