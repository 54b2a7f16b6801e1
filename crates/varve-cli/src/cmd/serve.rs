//! `varve serve`: serve a store to mounts on other machines.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use log::LevelFilter;
use varve::{Error, Result};
use varve_daemon::serve::{self, Ready, Settings};
use varve_daemon::{logging, mount};
use varve_fs::MountOptions;
use varve_server::Policy;

use crate::cmd::store_path;
use crate::output;

const AFTER_HELP: &str = "\
A client mounts what is served, or a directory of it, by
  varve mount varve://HOST[:PORT][/DIR] MOUNTPOINT
and in /etc/fstab
  varve://HOST/  /mnt/files  fuse.varve  _netdev,nofail  0  0";

/// How long clients may keep what they have learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LeasePolicy {
    /// The part of the longest lease that is the part of reads among recent reads and changes
    Rate,
    /// The longest lease for what is in the root directory, half of it for what is in its directories, and so on
    Depth,
    /// By depth for what was not read or changed lately, by rate for all else
    Hybrid,
    /// Always the longest lease
    Fixed,
    /// Not at all
    None,
}

/// The arguments.
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The store, which must not be mounted: a directory, or an address such as s3://bucket/prefix
    #[arg(value_parser = store_path())]
    store: PathBuf,
    /// The address to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7377")]
    listen: SocketAddr,
    /// How long clients may keep what they have learned
    #[arg(long, value_name = "POLICY", default_value = "rate")]
    lease_policy: LeasePolicy,
    /// The longest lease, in milliseconds, at most a minute: so long a change waits for a client that has died
    #[arg(long, value_name = "MS", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(..=60_000))]
    lease_max: u32,
    /// How long a client may be away before its files are closed, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    session: u64,
    /// A file with the secret that clients must know; needed unless the address is of this machine alone
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Let anybody in who reaches the address
    #[arg(long)]
    insecure: bool,
    /// Refuse every change
    #[arg(long)]
    read_only: bool,
    /// Log requests that take longer than so many milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    slow: u32,
    /// Serve metrics in Prometheus' format over HTTP on this address, at /metrics; they name no file and no client
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// How long the end of the server may take, in seconds: then the process ends as if it was killed, which loses nothing
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    stop_max: u64,
    /// Memory for memtables and caches, 4M at least [default: 256M]
    #[arg(long, value_name = "SIZE", value_parser = mount::memory)]
    memory: Option<u64>,
    /// Print JSON when the server answers
    #[arg(long)]
    json: bool,
}

/// Serves the store until a signal ends it.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let token = match &arguments.token_file {
        Some(path) => mount::read_token(path)?,
        None => Vec::new(),
    };
    if token.is_empty() && !arguments.insecure && !arguments.listen.ip().is_loopback() {
        let text = format!("{} can be reached from other machines", arguments.listen);
        return Err(Error::usage(text).hint(
            "give a secret with --token-file, or --insecure if you trust all who reach the address",
        ));
    }
    logging::to_stderr(LevelFilter::Info);
    let mut options = MountOptions {
        read_only: arguments.read_only,
        keep_orphans: true,
        many_front_ends: true,
        ..MountOptions::default()
    };
    if let Some(bytes) = arguments.memory {
        options.memory_budget_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    }
    let settings = Settings {
        leases: match arguments.lease_policy {
            LeasePolicy::Rate => Policy::Rate { ms_max: arguments.lease_max },
            LeasePolicy::Depth => Policy::Depth { ms_max: arguments.lease_max },
            LeasePolicy::Hybrid => Policy::Hybrid { ms_max: arguments.lease_max },
            LeasePolicy::Fixed => Policy::Fixed { ms: arguments.lease_max },
            LeasePolicy::None => Policy::None,
        },
        session: Duration::from_secs(arguments.session),
        token,
        slow: Duration::from_millis(arguments.slow.into()),
        metrics: arguments.metrics,
        stop_max: Duration::from_secs(arguments.stop_max),
    };
    serve::serve(&arguments.store, arguments.listen, &settings, &options, |ready| {
        show(ready, arguments.json);
    })
}

fn show(ready: &Ready, json: bool) {
    if json {
        // The value has only text and numbers; a closed output is not this server's failure.
        drop(output::json(ready));
        return;
    }
    output::line(format!("{} is served on {}", ready.store.display(), ready.address));
    if let Some(metrics) = ready.metrics {
        output::line(format!("metrics are at http://{metrics}/metrics"));
    }
}
