//! Options of commands that reach a store on shared storage.

use std::path::Path;

use clap::Args;
use varve::{Result, anchor, size};

/// How the storage is reached. They are remembered on this machine, for all commands.
#[derive(Args)]
pub(crate) struct StorageOptions {
    /// The server of an object store, such as http://127.0.0.1:9000 [default: as the AWS tools find it]
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// The region of an object store [default: as the AWS tools find it]
    #[arg(long, value_name = "REGION")]
    region: Option<String>,
    /// The size of the local cache for a store on shared storage; 0 for none [default: 1G]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    cache_size: Option<u64>,
    /// How long an owner of a store on shared storage may go on without hearing from it, in seconds from 2 to 3600: so long the
    /// next one waits for one that is gone [default: 30]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(2..=3600))]
    lease: Option<u64>,
}

impl StorageOptions {
    /// Remembers what is given for the store `store`.
    pub(crate) fn apply(&self, store: &Path) -> Result<()> {
        let StorageOptions { endpoint, region, cache_size, lease } = self;
        if endpoint.is_none() && region.is_none() && cache_size.is_none() && lease.is_none() {
            return Ok(());
        }
        anchor::change(store, |settings| {
            if endpoint.is_some() {
                settings.options.endpoint.clone_from(endpoint);
            }
            if region.is_some() {
                settings.options.region.clone_from(region);
            }
            settings.lease_seconds = lease.or(settings.lease_seconds);
            settings.cache_bytes = cache_size.unwrap_or(settings.cache_bytes);
        })
    }
}
