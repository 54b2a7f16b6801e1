//! Carries requests from the kernel to the threads that serve them, and the answers back.
//!
//! 1. The handshake chooses a transport ([`choose`]): rings if the options allow them, the kernel offers them and
//!    this process can make them; else the descriptor.
//! 2. [`serve`] starts the threads: one for each descriptor (`dev`), or one for the ring of each CPU (`uring`) and
//!    one for the requests that the kernel does not send through rings.
//! 3. Each thread takes a request, decodes it, calls [`Adapter::serve`], and sends the answer.
//! 4. A thread ends when the connection ends, or between two requests when the gate closes (`handover`). If a thread
//!    fails, `on_failure` ends the connection for all threads, so that no program waits for an answer for ever.
//!
//! Invariants: a thread decodes and answers requests in buffers that it has. The file system may allocate, for
//! example for bytes that are read, and so does the hand-over to another thread (`held`, `crate::parked`,
//! `crate::waiters`). A panic in the file system fails the one request with EIO and is logged; the thread goes on.

mod dev;
mod held;
mod kind;
mod origin;
mod uring;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

pub(crate) use held::{Hold, Until};
pub use kind::{NoUring, Transport};
pub(crate) use origin::Origin;
pub(crate) use uring::{Deaths, PAYLOAD_BYTES_MAX};

use crate::adapter::Adapter;
use crate::bursts::{Governor, Pulse};
use crate::device::Device;
use crate::handover::Gate;
use crate::parked;
use crate::readers::Readers;

/// The means by which requests of a connection travel.
pub(crate) enum Carrier {
    /// The descriptor alone.
    Dev,
    /// A queue for each CPU, beside the descriptor.
    Uring(Vec<uring::Queue>),
}

impl Carrier {
    pub(crate) fn transport(&self) -> Transport {
        match self {
            Carrier::Dev => Transport::Dev,
            Carrier::Uring(_) => Transport::Uring,
        }
    }

    /// Returns how many threads [`serve`] starts for this number of descriptors.
    pub(crate) fn threads(&self, devices: usize) -> usize {
        match self {
            Carrier::Dev => devices,
            Carrier::Uring(queues) => queues.len() + 1,
        }
    }
}

/// Chooses the means for the connection of `device`: the `wanted` one, else rings if the kernel has `offered` them
/// and this process can make them. Also returns the reason if they are not used.
pub(crate) fn choose(
    device: &Device,
    wanted: Option<Transport>,
    offered: bool,
) -> Result<(Carrier, Option<NoUring>), NoUring> {
    if wanted == Some(Transport::Dev) {
        return Ok((Carrier::Dev, None));
    }
    let queues = match offered {
        true => uring::queues(device).map_err(NoUring::Refused),
        false => Err(NoUring::NotOffered),
    };
    match queues {
        Ok(queues) => Ok((Carrier::Uring(queues), None)),
        Err(reason) if wanted.is_none() => Ok((Carrier::Dev, Some(reason))),
        Err(reason) => Err(reason),
    }
}

/// Returns the means that the kernel uses after the answer to the handshake: the descriptor instead of `carrier`, if rings
/// were switched off after the kernel offered them. Then the kernel sends all requests there.
pub(crate) fn keep(device: &Device, carrier: Carrier) -> io::Result<(Carrier, Option<NoUring>)> {
    match carrier {
        Carrier::Uring(_) if !uring::is_taken(device)? => {
            Ok((Carrier::Dev, Some(NoUring::NotOffered)))
        }
        carrier => Ok((carrier, None)),
    }
}

/// Serves until the connection ends (true) or the gate closes (false).
type Run<'a> = Box<dyn FnMut(&mut Pulse<'_>) -> io::Result<bool> + Send + 'a>;

/// The work of one thread.
struct Task<'a> {
    name: String,
    /// Without this thread the requests of some CPU are never served.
    is_vital: bool,
    run: Run<'a>,
}

/// Serves the connection of `devices` by `carrier` until it ends, or until `gate` closes. True if it has ended.
pub(crate) fn serve(
    adapter: &Adapter,
    carrier: Carrier,
    devices: Vec<Device>,
    gate: &Gate,
    readers: &Readers,
    governor: &Governor,
    on_failure: impl Fn() + Sync,
) -> io::Result<bool> {
    let tasks = match carrier {
        Carrier::Dev => readers_of(adapter, devices, gate, readers),
        Carrier::Uring(queues) => threads_of(adapter, queues, devices, readers),
    };
    let on_failure = &on_failure;
    thread::scope(|scope| {
        // Before any request might have to wait.
        let parked = thread::Builder::new().name("varve-parked".to_owned());
        if let Err(err) = parked.spawn_scoped(scope, || parked::serve(adapter)) {
            log::warn!("requests do not wait for locks: {err}");
            adapter.parked().close();
        }
        let mut threads = Vec::with_capacity(tasks.len());
        let mut result = Ok(false);
        for Task { name, is_vital, mut run } in tasks {
            let work = move || {
                let mut pulse = Pulse::new(governor);
                let served = catch_unwind(AssertUnwindSafe(|| run(&mut pulse)));
                let panicked = |_| Err(io::Error::other("a thread of the transport panicked"));
                // A process or thread that a failure starts must not give way.
                drop(pulse);
                // An unmount may have to wait for requests that the kernel has put into this thread's ring. These end
                // only with the ring, which is closed before its memory is unmapped.
                drop(run);
                let served = served.unwrap_or_else(panicked).inspect_err(|_| on_failure());
                if !matches!(served, Ok(false)) {
                    gate.without_one();
                }
                served
            };
            match thread::Builder::new().name(name).spawn_scoped(scope, work) {
                Ok(thread) => threads.push(thread),
                Err(err) if is_vital => {
                    on_failure();
                    result = Err(err);
                    break;
                }
                Err(err) => {
                    log::warn!("cannot start a reader thread: {err}");
                    gate.without_one();
                }
            }
        }
        let bursts = thread::Builder::new().name("varve-bursts".to_owned());
        if governor.works()
            && let Err(err) = bursts.spawn_scoped(scope, || governor.run())
        {
            log::warn!("cannot attend to bursts of requests: {err}");
        }
        for thread in threads {
            // A panic has been caught already.
            let ended = thread.join().unwrap_or(Ok(true));
            result = result.and_then(|others_ended| Ok(ended? || others_ended));
        }
        governor.end();
        adapter.parked().close();
        let is_paused = matches!(result, Ok(false));
        adapter.lock_waits().close(adapter.vfs(), is_paused);
        result
    })
}

/// Makes the task of a reader for each descriptor.
fn readers_of<'a>(
    adapter: &'a Adapter,
    devices: Vec<Device>,
    gate: &'a Gate,
    readers: &'a Readers,
) -> Vec<Task<'a>> {
    let reader = |(turn, device): (usize, Device)| Task {
        name: format!("varve-fuse-{turn}"),
        is_vital: turn == 0,
        run: Box::new(move |pulse| {
            readers.place(turn);
            dev::read_and_serve(adapter, &device, gate, pulse)
        }),
    };
    devices.into_iter().enumerate().map(reader).collect()
}

/// Makes a task for each queue, and one for the requests that rings do not carry.
fn threads_of<'a>(
    adapter: &'a Adapter,
    queues: Vec<uring::Queue>,
    devices: Vec<Device>,
    readers: &'a Readers,
) -> Vec<Task<'a>> {
    let server = |mut queue: uring::Queue| Task {
        name: format!("varve-ring-{}", queue.cpu()),
        is_vital: true,
        run: Box::new(move |pulse| {
            if readers.place_on(queue.cpu()) {
                pulse.give_way();
            }
            queue.serve(adapter, pulse).map(|()| true)
        }),
    };
    let rest = devices.into_iter().take(1).map(|device| Task {
        name: "varve-forget".to_owned(),
        is_vital: true,
        run: Box::new(move |_| dev::read_the_rest(adapter, &device).map(|()| true)),
    });
    queues.into_iter().map(server).chain(rest).collect()
}
