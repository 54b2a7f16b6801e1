//! The process that serves a store to a mount.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::daemon;
use crate::run::{Failure, Outcome, Step};

/// How long a server may take to answer, and to end.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A running server. Dropped, it is killed.
pub(super) struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts a server of `store` and waits until it answers.
    pub(super) fn start(program: &Path, store: &Path, log: &Path) -> Result<Server, Failure> {
        // A port that was free a moment ago.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        Server::start_at(address, program, store, log)
    }

    /// Kills it without warning (SIGKILL) and starts another in its place; fails if it has ended before.
    pub(super) fn start_again(
        mut self,
        program: &Path,
        store: &Path,
        log: &Path,
    ) -> Result<Server, Failure> {
        if let Some(status) = self.child.try_wait()? {
            return Err(format!("the server ended before: {status}").into());
        }
        let address = self.address;
        drop(self);
        Server::start_at(address, program, store, log)
    }

    fn start_at(
        address: SocketAddr,
        program: &Path,
        store: &Path,
        log: &Path,
    ) -> Result<Server, Failure> {
        let said = std::fs::File::options().create(true).append(true).open(log)?;
        let mut command = daemon::command(program);
        command.arg("serve").arg(store).args(["--listen", &address.to_string()]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said).spawn()?;
        let mut server = Server { child, address };
        let begin = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Some(status) = server.child.try_wait()? {
                return Err(format!("the server ended: {status}").into());
            }
            if begin.elapsed() > WAIT_MAX {
                return Err(format!("the server did not answer in {WAIT_MAX:?}").into());
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(server)
    }

    /// What a client mounts.
    pub(super) fn source(&self) -> String {
        format!("varve://{}/", self.address)
    }

    /// Waits until it does nothing any more for the clients that it has or had, which all are dead.
    pub(super) fn wait_for_the_dead(&self, program: &Path) -> Outcome {
        let begin = Instant::now();
        loop {
            let said = Step::new(program).args(["status", "--json", &self.source()]).capture()?;
            let said: serde_json::Value = serde_json::from_str(&said)?;
            let clients = said["server"]["sessions"]["clients"].as_array();
            let clients = clients.ok_or_else(|| format!("the server tells no clients: {said}"))?;
            let is_done =
                |client: &serde_json::Value| client["in_flight"] == 0 && client["connections"] == 0;
            if clients.iter().all(is_done) {
                return Ok(());
            }
            if begin.elapsed() > WAIT_MAX {
                return Err(format!(
                    "the server still works for the dead after {WAIT_MAX:?}: {said}"
                )
                .into());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it as a person does, and waits until the store is closed.
    pub(super) fn stop(mut self) -> Outcome {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let status = self.child.wait()?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("the server ended with {status}").into())
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
