//! The client's side of the control socket: sends one request to a daemon and waits for the answer.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use varve::{Error, Result};
use varve_fs::ROLL_BACK_PHASES;
use varve_fs::fsck::Progress;

use super::report::Report;
use super::request::{Request, ViewRequest};
use crate::socket;
use crate::target::Target;

/// How long a daemon may take to promise a report on its end.
const PROMISE_WAIT_MAX: Duration = Duration::from_secs(5);

/// Connects to the daemon that serves the store `store`.
pub(crate) fn connect(store: &Path) -> std::io::Result<UnixStream> {
    socket::connect(store, socket::CONTROL)
}

/// Sends `request` to the daemon of `target`; the answer is a JSON value.
pub(crate) fn ask(target: &Target, request: &Request) -> Result<Value> {
    ask_watching(target, request, &mut |_| ())
}

/// Like [`ask`]; passes each progress line of the daemon to `progress`.
pub(crate) fn ask_watching(
    target: &Target,
    request: &Request,
    progress: &mut dyn FnMut(Progress),
) -> Result<Value> {
    let lost = |error: std::io::Error| {
        let hint = match request {
            Request::Views(ViewRequest::Commit { .. }) => {
                "the transaction is committed as a whole or not at all: if the daemon is gone, mount again, and `varve txn \
                 list` names it if it is not committed (a serializable one has ended either way)"
            }
            _ => "`varve status` shows whether it runs; its log is varve.log in the store",
        };
        let store = target.store.display();
        Error::failed(format!("the daemon of {store} does not answer: {error}")).hint(hint)
    };
    let mut daemon = target.answered_by(connect(&target.store), lost)?;
    // Without a time limit, as a large rollback takes long: a daemon that dies closes the connection.
    let mut line = serde_json::to_string(request)
        .map_err(|error| Error::usage(format!("cannot write the request as JSON: {error}")))?;
    line.push('\n');
    // A daemon that refuses the client sends its reason and then closes the connection.
    drop(daemon.write_all(line.as_bytes()));
    let (mut daemon, mut answer) = (BufReader::new(daemon), String::new());
    loop {
        answer.clear();
        daemon.read_line(&mut answer).map_err(lost)?;
        match serde_json::from_str::<Report>(&answer) {
            Ok(Report::At { phase, done, permille }) => {
                let known = ROLL_BACK_PHASES.into_iter().find(|known| *known == phase);
                known.into_iter().for_each(|phase| progress(Progress { phase, done, permille }));
                // If the daemon is gone, reading the answer fails.
                drop(daemon.get_mut().write_all(b"\n"));
            }
            Ok(report) => return report.into_value(),
            Err(_) => return Err(lost(std::io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

/// A daemon's promise to report how it ends.
pub(crate) struct EndPromise {
    daemon: BufReader<UnixStream>,
    line: Vec<u8>,
}

impl EndPromise {
    /// Asks the daemon of `target` for the promise; `None` if no daemon answers, or if its version is too old.
    pub(crate) fn ask(target: &Target) -> Option<EndPromise> {
        let reached = connect(&target.store);
        let unheard = |error| Error::io("ask", &target.store, &error);
        let mut daemon = target.answered_by(reached, unheard).ok()?;
        let mut line = serde_json::to_string(&Request::End).ok()?;
        line.push('\n');
        daemon.write_all(line.as_bytes()).ok()?;
        let mut end = EndPromise { daemon: BufReader::new(daemon), line: Vec::new() };
        end.hear(PROMISE_WAIT_MAX)?.ok()?;
        Some(end)
    }

    /// The report, if it comes within `patience`. A connection that closes without a report is an error.
    pub(crate) fn hear(&mut self, patience: Duration) -> Option<Result<()>> {
        let read = self.daemon.get_ref().set_read_timeout(Some(patience));
        match read.and_then(|()| self.daemon.read_until(b'\n', &mut self.line)) {
            Err(error) if is_timeout(&error) => return None,
            Ok(_) | Err(_) => {}
        }
        let report = serde_json::from_slice::<Report>(&std::mem::take(&mut self.line));
        let silent = |_| {
            Err(Error::failed(
                "the daemon ended without closing the store, as a killed process does",
            ))
        };
        Some(report.map_or_else(silent, |report| report.into_value().map(drop)))
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::thread;

    use super::*;

    fn opened(dir: &Path) -> OwnedFd {
        std::fs::File::open(dir).unwrap().into()
    }

    /// Who asked for a commit of a daemon that died meanwhile was not told whether it may have happened.
    #[test]
    fn who_is_not_answered_is_told_what_may_have_happened() {
        let dir = tempfile::tempdir().unwrap();
        let (listener, _name) =
            socket::listen(opened(dir.path()), socket::CONTROL, &|| false).unwrap();
        let id = || "17".to_owned();
        for (request, next) in [
            (ViewRequest::Commit { id: id() }, "as a whole or not at all"),
            (ViewRequest::Abort { id: id() }, "`varve status`"),
        ] {
            let error = thread::scope(|scope| {
                scope.spawn(|| drop(listener.accept().unwrap()));
                ask(&Target::of_store(dir.path()), &Request::Views(request)).unwrap_err()
            });
            assert!(error.message().contains("does not answer"), "{error}");
            assert!(error.next_step().is_some_and(|hint| hint.contains(next)), "{error}");
        }
    }
}
