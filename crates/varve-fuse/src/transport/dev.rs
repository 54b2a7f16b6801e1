//! Takes requests from the descriptor of /dev/fuse by reads, and answers them by writes.
//!
//! [`read_and_serve`] serves all requests, on as many threads as there are readers. Beside rings [`read_the_rest`]
//! serves the requests that the kernel does not send through them: FORGET, which no program waits for, and INTERRUPT.
//! It lets them gather, so that each does not wake it: the removal of many files would otherwise wake it once for
//! each file.

use std::io;
use std::time::Duration;

use super::Origin;
use crate::adapter::Adapter;
use crate::agreement::REQUEST_BYTES_MAX;
use crate::bursts::Pulse;
use crate::device::Device;
use crate::handover::Gate;
use crate::meters::Meter;
use crate::protocol::constants::{FUSE_BATCH_FORGET, FUSE_FORGET, FUSE_INTERRUPT};
use crate::protocol::reply::Reply;
use crate::protocol::request::Header;

/// How long FORGETs may gather.
const GATHER_TIME: Duration = Duration::from_millis(10);

/// Serves the connection of `device` until it ends or `gate` closes. True if it has ended.
pub(super) fn read_and_serve(
    adapter: &Adapter,
    device: &Device,
    gate: &Gate,
    pulse: &mut Pulse<'_>,
) -> io::Result<bool> {
    let origin = Origin::Device(device.clone());
    // Zeroed memory comes from the kernel page by page, as it is touched.
    let mut buffer = vec![0; REQUEST_BYTES_MAX];
    let (mut reply, mut meter) = (Reply::new(), adapter.meters().meter());
    while !gate.pass() {
        let Some(len) = device.read(&mut buffer)? else { return Ok(true) };
        pulse.beat();
        serve_one((adapter, &mut meter), &origin, &buffer[..len], &mut reply);
    }
    Ok(false)
}

/// Serves the requests from `device` while rings serve all others.
pub(super) fn read_the_rest(adapter: &Adapter, device: &Device) -> io::Result<()> {
    let origin = Origin::Device(device.clone());
    // The kernel asks for room for the largest write, although none comes here.
    let mut buffer = vec![0; REQUEST_BYTES_MAX];
    let (mut reply, mut meter) = (Reply::new(), adapter.meters().meter());
    while let Some(len) = device.read(&mut buffer)? {
        serve_one((adapter, &mut meter), &origin, &buffer[..len], &mut reply);
        #[allow(clippy::disallowed_methods, reason = "paces the kernel's queue, not the store")]
        std::thread::sleep(GATHER_TIME);
    }
    Ok(())
}

fn serve_one(
    (adapter, meter): (&Adapter, &mut Meter<'_>),
    origin: &Origin,
    bytes: &[u8],
    reply: &mut Reply,
) {
    let Ok((header, body)) = Header::decode(bytes) else {
        log::error!("a request of {} bytes, too short for its header", bytes.len());
        return;
    };
    let began = meter.begin();
    let answer = adapter.serve(origin, &header, body, reply);
    meter.end(header.opcode, began, &answer);
    if !matches!(header.opcode, FUSE_FORGET | FUSE_BATCH_FORGET | FUSE_INTERRUPT) {
        origin.reply(header.unique, answer, reply);
    }
    adapter.delivered();
}
