//! The mixes of a file, video, mail and web server (Shetty, KVFS, 4.3.2, after Filebench).
//!
//! Each mix has the threads that the thesis gives it, unless the user says how many. Where threads of Filebench
//! share files that they remove, each worker has files of its own here: what an operation finds does not depend
//! on others, and can be checked. Sizes have an exponential distribution where Filebench has a gamma one of the
//! same mean. The phases: mkdir, prepare (what is there before the first turn), serve.
//!
//! What else is not as in the thesis: it lets each mix run for ten minutes, here the turns are counted. Its file server has
//! 100,000 files (`--files 100000`) and reads and writes 4 KiB at a time; here a file is written, appended to and read in
//! calls of up to 1 MiB, as it is by the mail server there.

mod office;
mod video;
mod web;

use serde::{Deserialize, Serialize};

use super::{Expects, Ops, Phase, Plan, SAMPLES, Worker, samples};
use crate::random::Random;

/// The options.
#[derive(Clone, Debug, Serialize, Deserialize, clap::Args)]
pub(crate) struct Options {
    /// Which server
    #[arg(value_enum)]
    server: Server,
    /// Files in all [default: of a file server 10000, of mail and web servers 1000]
    #[arg(long)]
    files: Option<u64>,
    /// Turns of all workers together: each is the sequence of operations that the server repeats
    #[arg(long, default_value_t = 20_000)]
    turns: u64,
    /// Bytes of a video
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = varve::size::parse)]
    video_size: u64,
}

/// Who serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
enum Server {
    /// 10 workers: create, append, read, delete, stat, in a tree 20 wide, files of 100 KiB
    File,
    /// 48 workers read one of 6 videos by 256 KiB, one replaces 26 others by 1 MiB; at least 2 workers
    Video,
    /// 16 workers: delete; create, append, sync; read, append, sync; read; in one directory, files of 16 KiB
    Mail,
    /// 100 workers read 10 files in a tree 20 wide, 10 append to a log each; files of 16 KiB
    Web,
}

/// Names in a directory of the file and web servers.
const TREE_WIDTH: u64 = 20;

/// The mean of what is appended at once.
const APPEND_BYTES_MEAN: f64 = 16_384.0;

/// The workload of a server.
pub(super) fn plan(options: &Options) -> Box<dyn Plan> {
    let files = |default| options.files.unwrap_or(default).max(1);
    match options.server {
        Server::File => Box::new(office::Office::files(files(10_000), options.turns)),
        Server::Mail => Box::new(office::Office::mail(files(1_000), options.turns)),
        Server::Video => Box::new(video::Video::new(options.video_size, options.turns)),
        Server::Web => Box::new(web::Web::new(files(1_000), options.turns)),
    }
}

/// The phases of a server with so many workers.
fn phases(workers: u64) -> Vec<Phase> {
    let workers = Some(workers);
    let phases = [Phase::warm("mkdir"), Phase::warm("prepare"), Phase::cold("serve")];
    phases.into_iter().map(|phase| Phase { workers, ..phase }).collect()
}

/// A size of this mean, at least 1.
fn bytes(random: &mut Random, mean: f64) -> u64 {
    (random.exponential(mean) as u64).max(1)
}
