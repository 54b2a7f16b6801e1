//! The two ways by which requests travel, and why rings are not available.

use std::fmt;
use std::io;

/// How requests travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// By reads and writes of /dev/fuse.
    Dev,
    /// Through an io_uring for each CPU, which serves a request on its caller's CPU with one system call.
    Uring,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Dev => "/dev/fuse",
            Transport::Uring => "io_uring",
        })
    }
}

/// Why there are no rings.
#[derive(Debug, thiserror::Error)]
pub enum NoUring {
    /// The kernel lacks the feature, or it is switched off.
    #[error("this kernel does not offer FUSE over io_uring")]
    NotOffered,
    /// The process cannot make a ring for each CPU.
    #[error("no io_uring for each CPU: {0}")]
    Refused(io::Error),
}
