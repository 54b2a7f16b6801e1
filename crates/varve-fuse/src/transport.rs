//! The reader threads: take a request, have it served, answer it.
//!
//! 1. Each thread has a buffer for requests, of which only the pages that requests fill are ever backed by
//!    memory, and one for answers.
//! 2. A request is decoded and becomes one call of [`Adapter::serve`], which says how to answer.
//! 3. A thread ends when the connection does (ENODEV). If one fails, `on_failure` is to end the connection
//!    for all of them, so that nobody waits for an answer for ever.
//!
//! Nothing on this way allocates. A panic below fails the one request with EIO and is logged; the thread
//! goes on.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use crate::adapter::{Adapter, Answer};
use crate::device::Device;
use crate::handshake::REQUEST_BYTES_MAX;
use crate::idle_poll::{Governor, Pulse};
use crate::protocol::constants::{FUSE_BATCH_FORGET, FUSE_FORGET, opcode_name};
use crate::protocol::reply::Reply;
use crate::protocol::request::{DecodeError, Header, Request};
use crate::readers::Readers;

/// Serves the connection of `devices` until it ends, with a thread for each of them.
pub(crate) fn serve(
    adapter: &Adapter,
    devices: Vec<Device>,
    readers: &Readers,
    governor: &Governor,
    on_failure: impl Fn() + Sync,
) -> io::Result<()> {
    let on_failure = &on_failure;
    thread::scope(|scope| {
        let mut threads = Vec::with_capacity(devices.len());
        for (turn, device) in devices.into_iter().enumerate() {
            let reader = move || {
                readers.place(turn);
                let mut pulse = Pulse::new(governor);
                let serve = AssertUnwindSafe(|| read_and_serve(adapter, &device, &mut pulse));
                let served = catch_unwind(serve);
                let panicked = |_| Err(io::Error::other("a reader thread panicked"));
                served.unwrap_or_else(panicked).inspect_err(|_| on_failure())
            };
            let name = format!("varve-fuse-{turn}");
            match thread::Builder::new().name(name).spawn_scoped(scope, reader) {
                Ok(thread) => threads.push(thread),
                Err(err) if turn == 0 => return Err(err),
                Err(err) => log::warn!("only {turn} reader threads: {err}"),
            }
        }
        let idle_poll = thread::Builder::new().name("varve-idle-poll".to_owned());
        if let Err(err) = idle_poll.spawn_scoped(scope, || governor.run()) {
            log::warn!("idle CPUs may halt between requests: {err}");
        }
        let mut result = Ok(());
        for thread in threads {
            // What panics has been caught already.
            result = result.and(thread.join().unwrap_or(Ok(())));
        }
        governor.end();
        result
    })
}

fn read_and_serve(adapter: &Adapter, device: &Device, pulse: &mut Pulse<'_>) -> io::Result<()> {
    // Zeroed memory comes from the kernel page by page, as it is touched.
    let mut buffer = vec![0; REQUEST_BYTES_MAX];
    let mut reply = Reply::new();
    while let Some(len) = device.read(&mut buffer)? {
        pulse.beat();
        match Header::decode(&buffer[..len]) {
            Ok((header, body)) => serve_one(adapter, device, &header, body, &mut reply),
            Err(_) => log::error!("a request of {len} bytes, too short for its header"),
        }
    }
    Ok(())
}

fn serve_one(adapter: &Adapter, device: &Device, header: &Header, body: &[u8], reply: &mut Reply) {
    reply.clear();
    let answer = match Request::decode(header.opcode, body) {
        Ok(request) => {
            let call = AssertUnwindSafe(|| adapter.serve(device, header, &request, &mut *reply));
            catch_unwind(call).unwrap_or_else(|_| {
                log::error!("{} panicked", opcode_name(header.opcode));
                Answer::Errno(libc::EIO)
            })
        }
        Err(DecodeError::BadTime) => Answer::Errno(libc::EINVAL),
        Err(DecodeError::Truncated) => {
            log::error!("{}: {} bytes are not enough", opcode_name(header.opcode), body.len());
            Answer::Errno(libc::EIO)
        }
    };
    if matches!(header.opcode, FUSE_FORGET | FUSE_BATCH_FORGET) {
        return;
    }
    match answer {
        Answer::Body => device.reply(header.unique, reply),
        Answer::Data(data) => device.reply_data(header.unique, &data),
        Answer::Errno(errno) => device.reply_errno(header.unique, errno),
        Answer::Later => {}
    }
}
