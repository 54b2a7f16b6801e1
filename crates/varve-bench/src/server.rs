//! A metadata server for a store, as a process of its own.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::{Failure, run};

/// A running server. Dropped, it is killed; if this process dies it gets SIGTERM.
pub(crate) struct Server {
    /// `None` once it has ended.
    child: Option<Child>,
    id: u32,
    address: SocketAddr,
}

impl Server {
    /// Serves `store` by `program` on a port that is free; what it says goes to the file `log`.
    pub(crate) fn start(
        program: &Path,
        store: &Path,
        options: &[String],
        log: &Path,
    ) -> Result<Server, Failure> {
        let said = File::options().create(true).append(true).open(log)?;
        let mut command = run::while_this_one_lives("TERM", program);
        command.arg("serve").arg(store).args(["--listen", "127.0.0.1:0", "--json"]).args(options);
        // Ctrl-C is for this process, which takes the server down in order.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(said);
        let mut child = command.spawn().map_err(|error| format!("cannot run setpriv: {error}"))?;
        let (id, stdout) = (child.id(), child.stdout.take());
        let mut server = Server { child: Some(child), id, address: ([127, 0, 0, 1], 0).into() };
        let mut ready = String::new();
        for line in BufReader::new(stdout.ok_or("the server has no output")?).lines() {
            ready.push_str(&line?);
            if let Ok(ready) = serde_json::from_str::<Value>(&ready) {
                server.address = ready["address"].as_str().ok_or("no address")?.parse()?;
                return Ok(server);
            }
        }
        let why = std::fs::read_to_string(log).unwrap_or_default();
        Err(format!("the server ended: {}", why.trim()).into())
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Has it end, which must be clean.
    pub(crate) fn stop(mut self) -> Result<(), Failure> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let status = child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the server ended: {status}").into()) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        drop(child.kill());
        drop(child.wait());
    }
}
