//! Programs that serve a store on a socket.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Stdio};

use serde_json::Value;
use varve_testkit::Command;

use crate::harness::varve;

/// A server of a store in a directory, killed when it is dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    /// Where it serves metrics.
    pub(crate) metrics: Option<SocketAddr>,
}

impl Server {
    /// Starts `varve VERB` with these arguments.
    pub(crate) fn start<A: AsRef<OsStr>>(
        verb: &str,
        store: &Path,
        listen: &str,
        arguments: impl IntoIterator<Item = A>,
    ) -> Server {
        let mut command = varve();
        command.args([verb, "--json", "--listen", listen]).args(arguments).arg(store);
        Server::of(command.stderr(Stdio::null()))
    }

    /// Starts `command`, which prints JSON when it serves.
    pub(crate) fn of(command: &mut Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
        let output = child.stdout.take().expect("its output");
        let mut said = serde_json::Deserializer::from_reader(output).into_iter::<Value>();
        let ready = said.next().expect("something").expect("an object");
        let address = |field| ready[field].as_str().and_then(|address| address.parse().ok());
        let metrics = address("metrics");
        Server { child, address: address("address").expect("an address"), metrics }
    }

    /// Tells it to end, as the system or a person does.
    pub(crate) fn terminate(&self) {
        rustix::process::kill_process(self.pid(), rustix::process::Signal::TERM).expect("a signal");
    }

    /// Waits for its end. Returns its exit status.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        self.child.wait().expect("its end").code()
    }

    pub(crate) fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    /// Kills it at once.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("its end");
    }

    /// Ends it as a signal of a person does, and waits until the store is closed.
    pub(crate) fn stop(mut self) {
        self.terminate();
        assert_eq!(self.wait(), Some(0));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
