//! A real S3 server for tests, on the loopback interface.
//!
//! It is [versitygw](https://github.com/versity/versitygw) over a temporary directory. `.ci/run` installs it; here it
//! is looked for on the search path and where `.ci/run` puts it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use tempfile::TempDir;

use crate::{Command, eventually, skipped};

/// The version that `.ci/run` installs. Its directory below the cache directory has this name.
const VERSION: &str = "versitygw-1.8.0";

const BUCKET: &str = "varve-test";
const KEY_ID: &str = "varve-test-id";
const SECRET: &str = "varve-test-secret";
const REGION: &str = "us-east-1";

/// What a server needs to encrypt.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The file with the certificate of the server.
    pub certificate: PathBuf,
    /// The file with its key.
    pub key: PathBuf,
}

/// A running server with one empty bucket. A drop ends it and removes all objects.
#[derive(Debug)]
pub struct S3Server {
    program: PathBuf,
    dir: TempDir,
    tls: Option<Tls>,
    address: SocketAddr,
    child: Option<Child>,
}

impl S3Server {
    /// Starts a server. `None`, which is reported as a skipped test, if there is no such program on this machine.
    ///
    /// # Panics
    /// If the program does not start.
    pub fn start() -> Option<S3Server> {
        S3Server::start_with(None)
    }

    /// Starts a server to which connections are encrypted.
    ///
    /// # Panics
    /// If the program does not start.
    pub fn start_with_tls(tls: Tls) -> Option<S3Server> {
        S3Server::start_with(Some(tls))
    }

    #[allow(clippy::disallowed_methods, reason = "the server reads a directory of the machine")]
    fn start_with(tls: Option<Tls>) -> Option<S3Server> {
        let program = find()?;
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(dir.path().join(BUCKET)).expect("a directory for the bucket");
        let mut server = S3Server { program, dir, tls, address: free_address(), child: None };
        // Another program may take the port before the server does.
        while !server.started() {
            server.address = free_address();
        }
        Some(server)
    }

    /// Starts the program; returns whether it answers. False if it has ended.
    fn started(&mut self) -> bool {
        let mut command = Command::new(&self.program);
        command.args([
            "--port",
            &self.address.to_string(),
            "--region",
            REGION,
            "--keep-alive",
            "--quiet",
        ]);
        command.args(["--access", KEY_ID, "--secret", SECRET]);
        if let Some(tls) = &self.tls {
            command.arg("--cert").arg(&tls.certificate).arg("--key").arg(&tls.key);
        }
        command.arg("posix").arg(self.dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("versitygw can be started");
        let mut is_up = false;
        let mut has_ended = false;
        eventually("the S3 server answers", || {
            has_ended = child.try_wait().expect("the state of a child").is_some();
            is_up = !has_ended && TcpStream::connect(self.address).is_ok();
            has_ended || is_up
        });
        self.child = Some(child);
        is_up
    }

    /// Kills the server. Objects stay for [`S3Server::restart`].
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts the server again, at the same address.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self) {
        self.kill();
        assert!(self.started(), "the S3 server starts again at {}", self.address);
    }

    /// The address to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of the server.
    pub fn endpoint(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// The name of the bucket.
    pub fn bucket(&self) -> &'static str {
        BUCKET
    }

    /// The id of the key, and the secret.
    pub fn keys(&self) -> (&'static str, &'static str) {
        (KEY_ID, SECRET)
    }

    /// The environment of a client of the server.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        self.variables_for(&self.endpoint())
    }

    /// The environment of a client that reaches the server by another URL, such as one of a [`crate::Proxy`].
    pub fn variables_for(&self, endpoint: &str) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ACCESS_KEY_ID", KEY_ID.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
            ("AWS_REGION", REGION.to_owned()),
            ("AWS_ENDPOINT_URL", endpoint.to_owned()),
            ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
        ]
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Finds the program; reports if there is none.
fn find() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let installed = cache.map(|cache| cache.join("varve").join(VERSION));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = installed.into_iter().chain(std::env::split_paths(&path));
    let found = dirs.map(|dir| dir.join("versitygw")).find(|program| program.is_file());
    if found.is_none() {
        skipped("there is no versitygw on this machine");
    }
    found
}

/// Returns an address that nobody listens at.
fn free_address() -> SocketAddr {
    let bound =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    bound.unwrap_or_else(|error: io::Error| panic!("no free port: {error}"))
}
