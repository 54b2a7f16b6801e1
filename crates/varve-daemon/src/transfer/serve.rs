//! The daemon's side of a stream.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use serde_json::Value;
use varve::Result;
use varve_fs::stream::frame::{FrameReader, SnapshotId};
use varve_fs::stream::{Received, read_header};
use varve_fs::{Committed, VarveFs};

use super::blocks::{BlockReader, BlockWriter};
use super::operations::{receive_into, refused, send_from, told, unreadable};
use crate::control::{Report, ViewRequest, answer};

/// Serves a client that asked for a stream. Calls `follow` with the received snapshot and what it changed, also after a partial failure.
pub(crate) fn serve(
    fs: &VarveFs,
    request: &ViewRequest,
    client: &mut UnixStream,
    follow: impl FnOnce(&SnapshotId, &Committed),
) {
    // Without a time limit: a client that ends closes the connection. A living one may neither send nor receive while large files are
    // compared at the other end, while a commit runs, or while it is stopped.
    let patient = client.set_read_timeout(None).and_then(|()| client.set_write_timeout(None));
    if let Err(error) = patient {
        return answer(client, &Report::of(&unreadable(&error)));
    }
    answer(client, &Report::Done(Value::Null));
    let done = match request {
        ViewRequest::Send(request) => {
            let mut blocks = BlockWriter(client);
            let sent = send_from(fs, request, &mut blocks);
            let _ = blocks.end();
            sent
        }
        _ => take(fs, client, follow).map(|received| told(&received)),
    };
    answer(client, &done.map_or_else(|error| Report::of(&error), Report::Done));
    // A client that learns of a failure need not send the rest. Bytes that came but are not read would cut off the answer.
    let _ = client.shutdown(Shutdown::Both);
    let _ = io::copy(client, &mut io::sink());
}

fn take(
    fs: &VarveFs,
    client: &mut UnixStream,
    follow: impl FnOnce(&SnapshotId, &Committed),
) -> Result<Received> {
    let mut blocks = BlockReader::new(client);
    let mut stream = FrameReader::new(&mut blocks).map_err(|error| unreadable(&error))?;
    let header = read_header(&mut stream).map_err(|error| refused(None, error))?;
    receive_into(fs, &header, &mut stream, |committed| follow(&header.snapshot, committed))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use varve::{FileSystem, store};
    use varve_fs::{FormatOptions, MountOptions};

    use super::super::report;
    use super::*;

    /// A daemon that sent gave up while the one that was to receive compared large files, or its client was stopped.
    #[test]
    fn a_daemon_waits_for_its_client() {
        let dir = tempfile::tempdir().unwrap();
        store::format(dir.path(), &FormatOptions::default()).unwrap();
        let file_system = FileSystem::open(dir.path(), &MountOptions::default()).unwrap();
        let fs = file_system.inner();
        let (mut daemon, client) = UnixStream::pair().unwrap();
        let waits = daemon.try_clone().unwrap();
        // Until it is understood a request has little time.
        daemon.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
        let patience = std::thread::scope(|scope| {
            scope.spawn(|| serve(&fs, &ViewRequest::Receive, &mut daemon, |_, _| ()));
            report(&client).unwrap();
            let patience = (waits.read_timeout().unwrap(), waits.write_timeout().unwrap());
            client.shutdown(Shutdown::Both).unwrap();
            patience
        });
        assert_eq!(patience, (None, None));
        drop(fs);
        file_system.close().unwrap();
    }
}
