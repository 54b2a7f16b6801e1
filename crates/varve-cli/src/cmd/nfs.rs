//! `varve nfs`: serve a store over NFS.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use log::LevelFilter;
use varve::{Error, Result};
use varve_daemon::nfs::{self, Ready};
use varve_daemon::{logging, mount};
use varve_fs::MountOptions;

use crate::cmd::store_path;
use crate::output;

const AFTER_HELP: &str = "\
A client mounts the store by (2049 is the port):
  mount -t nfs -o vers=3,proto=tcp,port=2049,mountport=2049,mountproto=tcp,nolock HOST:/ DIR

Exports are lines of exports(5): a path of the store, and clients with options,
  / 10.0.0.0/8(rw) 127.0.0.1(rw,no_root_squash)
where a client is an address, a network ADDRESS/BITS or `*`, and options are ro, rw, root_squash, no_root_squash, all_squash,
anonuid=N, anongid=N, sync, async. The server trusts the user ids that clients send, and encrypts nothing: serve only networks that you trust.";

/// The arguments.
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The store, which must not be mounted
    #[arg(value_parser = store_path())]
    store: PathBuf,
    /// The address to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:2049")]
    listen: SocketAddr,
    /// A line of exports(5) (repeatable) [default: `/ 127.0.0.1(rw) ::1(rw)`]
    #[arg(long = "export", value_name = "LINE")]
    exports: Vec<String>,
    /// A file with lines of exports(5)
    #[arg(long, value_name = "FILE")]
    exports_file: Option<PathBuf>,
    /// Refuse every change
    #[arg(long)]
    read_only: bool,
    /// Memory for memtables and caches, 4M at least [default: 256M]
    #[arg(long, value_name = "SIZE", value_parser = mount::memory)]
    memory: Option<u64>,
    /// Print JSON when the server answers
    #[arg(long)]
    json: bool,
}

/// Serves the store until a signal ends it.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let of_file = arguments
        .exports_file
        .as_ref()
        .map(|path| std::fs::read_to_string(path).map_err(|error| Error::io("read", path, &error)));
    let of_file = of_file.transpose()?.unwrap_or_default();
    let mut lines: Vec<&str> = arguments.exports.iter().map(String::as_str).collect();
    lines.extend(of_file.lines());
    if arguments.exports.is_empty() && arguments.exports_file.is_none() {
        lines.push("/ 127.0.0.1(rw) ::1(rw)");
    }
    let exports = nfs::exports(lines)?;
    logging::to_stderr(LevelFilter::Info);
    let mut options = MountOptions { read_only: arguments.read_only, ..MountOptions::default() };
    if let Some(bytes) = arguments.memory {
        options.memory_budget_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    }
    nfs::serve(&arguments.store, arguments.listen, exports, &options, |ready| {
        show(ready, arguments.json);
    })
}

fn show(ready: &Ready, json: bool) {
    if json {
        // The value has only text and numbers; a closed output is not this server's failure.
        drop(output::json(ready));
        return;
    }
    output::line(format!("{} is served over NFS on {}", ready.store.display(), ready.address));
}
