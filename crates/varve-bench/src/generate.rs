//! Making a tree of files like those that were found in use ([`crate::tree`]).

use std::path::{Path, PathBuf};

use crate::Failure;
use crate::op::Op;
use crate::place::{Hands, Kernel};
use crate::tree::{Tree, file_bytes};

/// What to make, and where.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The directory for it, which must be empty
    dir: PathBuf,
    /// Files in all
    #[arg(long, default_value_t = 10_000)]
    files: u64,
    /// Directories, this one among them [default: one for 11 files]
    #[arg(long)]
    dirs: Option<u32>,
    /// The median of file sizes
    #[arg(long, value_name = "SIZE", default_value = "13K", value_parser = varve::size::parse)]
    size_median: u64,
    /// The largest file
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = varve::size::parse)]
    size_max: u64,
    /// Another seed makes another tree
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Makes it.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    require_empty(&options.dir)?;
    let dirs = match options.dirs {
        Some(dirs) => dirs,
        None => Tree::usual_dirs(options.files)?,
    };
    let tree = Tree::new(dirs, options.files, options.seed);
    let place = Kernel::new(&options.dir)?;
    let mut hands = Hands::new();
    for dir in 1..tree.dirs() {
        hands.apply(&place, &Op::MakeDir(tree.dir(dir)))?;
    }
    for key in 0..tree.files() {
        let bytes = file_bytes(key ^ options.seed << 40, options.size_median, options.size_max);
        hands.apply(&place, &Op::Create { path: tree.file(key), bytes, key })?;
    }
    Ok(())
}

fn require_empty(dir: &Path) -> Result<(), Failure> {
    let names = std::fs::read_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    match names.count() {
        0 => Ok(()),
        count => {
            Err(format!("{} has {count} names; give an empty directory", dir.display()).into())
        }
    }
}
