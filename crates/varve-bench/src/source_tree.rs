//! Source trees that programs unpack and build, as tarballs.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::run::Step;

/// Which tree, and how it is built.
#[derive(Clone, Debug, Serialize, Deserialize, clap::Args)]
pub(crate) struct SourceOptions {
    /// The source tree: a tarball with one directory at its top, without compression, or that is what is measured
    tarball: PathBuf,
    /// What builds it, as a shell script that runs within it
    #[arg(
        long,
        value_name = "SCRIPT",
        default_value = "make -s defconfig && make -s -j2 init/ lib/"
    )]
    make: String,
}

/// A tree that was looked at. Its paths may stand between quotes in a shell script.
pub(crate) struct SourceTree {
    pub(crate) tarball: String,
    /// The directory at its top.
    pub(crate) top: String,
    /// How many names are in that.
    pub(crate) top_names: u64,
    /// How many files and directories there are in all.
    pub(crate) inodes: u64,
    /// What builds it, in the directory at the top.
    pub(crate) make: String,
}

impl SourceTree {
    /// Looks at the tarball.
    pub(crate) fn read(options: &SourceOptions) -> Result<SourceTree, Failure> {
        let tarball = std::fs::canonicalize(&options.tarball)
            .map_err(|error| format!("{}: {error}", options.tarball.display()))?;
        let tarball = tarball.to_string_lossy().into_owned();
        let list = Step::new("tar").args(["-tf", &tarball]).capture()?;
        let top = list.lines().next().and_then(|line| line.split('/').next()).unwrap_or_default();
        if tarball.contains('\'') || top.contains('\'') {
            return Err(format!("{tarball}: a quote in a path is too much for the shell").into());
        }
        let below = |line: &str| line.strip_prefix(top)?.strip_prefix('/').map(str::to_owned);
        let first = |line: &str| Some(below(line)?.split('/').next()?.to_owned());
        let names: BTreeSet<String> =
            list.lines().filter_map(first).filter(|name| !name.is_empty()).collect();
        Ok(SourceTree {
            top: top.to_owned(),
            top_names: names.len() as u64,
            inodes: list.lines().count() as u64,
            make: options.make.clone(),
            tarball,
        })
    }
}
