//! Serves a store over NFS version 3, without a mount on this machine.
//!
//! 1. Listen, and open the store, which no other process may have open.
//! 2. Serve the exported directories ([`varve_nfs`]) until SIGTERM, SIGINT or SIGHUP.
//! 3. Answer the calls that have come, and close the store.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use varve::{Error, FileSystem, Result};
use varve_env::Env;
use varve_env::os::OsEnv;
use varve_fs::MountOptions;
use varve_nfs::{Export, Options, Server, StartError};

use crate::holder;
use crate::serve::listen;

/// A store that is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// The store.
    #[serde(with = "varve_engine::paths")]
    pub store: PathBuf,
    /// Where the server listens.
    pub address: SocketAddr,
}

/// Reads lines of exports(5). Empty lines, and lines that begin with `#`, are skipped.
pub fn exports<'a>(lines: impl IntoIterator<Item = &'a str>) -> Result<Vec<Export>> {
    let lines = lines.into_iter().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            Export::parse(line).map_err(|error| {
                Error::usage(error.to_string())
                    .hint("an export is a path and clients with options, as in exports(5): `/ 10.0.0.0/8(rw)`")
            })
        })
        .collect()
}

/// Serves the store in `dir` on `address` until a signal ends it. Calls `ready` when it answers.
pub fn serve(
    dir: &Path,
    address: SocketAddr,
    exports: Vec<Export>,
    options: &MountOptions,
    ready: impl FnOnce(&Ready),
) -> Result<()> {
    let superblock = holder::superblock(dir)?;
    holder::require_free(dir)?;
    let (listener, mut signals) = listen(address)?;
    let file_system = FileSystem::open(dir, options)?;
    let number = u64::from_str_radix(&superblock.uuid[..16], 16).unwrap_or(0);
    let options = Options { exports, file_system: number, start: OsEnv::new().random() };
    let server = match Server::start(file_system.vfs(), listener, &options) {
        Ok(server) => server,
        Err(error) => {
            file_system.close()?;
            let hint = match &error {
                StartError::Export { .. } => "paths of exports begin at the root of the store",
                StartError::Io(_) => "see how many threads and descriptors this user may have",
            };
            return Err(Error::failed(error.to_string()).hint(hint));
        }
    };
    ready(&Ready { store: dir.to_path_buf(), address: server.address() });
    if let Some(signal) = signals.forever().next() {
        log::info!("signal {signal}: answering the calls that have come");
    }
    server.stop();
    file_system.close()
}
