//! Programs that serve a store on a socket.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::harness::varve;

/// A server of a store in a directory, killed when it is dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
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
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let output = child.stdout.take().expect("its output");
        let mut said = serde_json::Deserializer::from_reader(output).into_iter::<Value>();
        let ready = said.next().expect("something").expect("an object");
        let address = ready["address"].as_str().and_then(|address| address.parse().ok());
        Server { child, address: address.expect("an address") }
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
        rustix::process::kill_process(self.pid(), rustix::process::Signal::TERM).expect("a signal");
        assert!(self.child.wait().expect("its end").success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
