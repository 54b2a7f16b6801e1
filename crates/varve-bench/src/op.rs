//! The operations that workloads are made of, and what must hold after them.
//!
//! A workload is a list of phases; each phase gives every worker an iterator of [`Op`] and afterwards an
//! iterator of [`Expect`]. Both are pure functions of the workload's options, so that a worker may be a thread
//! or a process, and every run does the same. Nothing in memory grows with the number of files, but for the mixes of servers and
//! Postmark, which keep the files that are there.

/// What a listing of a directory asks for each of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// Nothing (readdir).
    Names,
    /// Its attributes (ls -l).
    Attributes,
    /// Its bytes. The number at the end of a file's name is then the key of its bytes.
    Contents,
}

/// A listing of a directory, and what it must meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listing {
    /// The directory.
    pub(crate) dir: String,
    /// What it asks for.
    pub(crate) detail: Detail,
    /// How many names there are.
    pub(crate) names: u64,
    /// Bytes of all files among them; what only asks for names does not see them.
    pub(crate) bytes: u64,
}

impl Listing {
    /// A listing that only asks for names.
    pub(crate) fn names(dir: String, names: u64) -> Listing {
        Listing { dir, detail: Detail::Names, names, bytes: 0 }
    }
}

/// What is found where somebody looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Is {
    /// A file of so many bytes.
    File { bytes: u64 },
    /// A directory.
    Dir,
}

/// One operation. Paths are relative to the root of the place. `key` chooses the bytes of a file
/// ([`crate::noise`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Makes a directory.
    MakeDir(String),
    /// Removes an empty directory.
    RemoveDir(String),
    /// Makes a file that must not exist, writes `bytes`, closes it.
    Create { path: String, bytes: u64, key: u64 },
    /// Writes from `at`, which is the end of the file, and syncs if `durable`.
    Append { path: String, at: u64, bytes: u64, key: u64, durable: bool },
    /// Makes a file that must not exist, writes `bytes`, syncs, closes it.
    Deliver { path: String, bytes: u64, key: u64 },
    /// Reads a whole file, which must have `bytes`.
    Read { path: String, bytes: u64, key: u64 },
    /// Asks for the attributes of a file or directory, which must be so.
    Stat(String, Is),
    /// Sets permission bits.
    Chmod(String, u32),
    /// Sets the time of last change, in seconds.
    Utime(String, i64),
    /// Renames.
    Rename(String, String),
    /// Removes a file.
    Unlink(String),
    /// Lists a directory, which must have such names.
    List(Listing),
    /// Reads a part of a file, which stays open for the next operation on it.
    ReadAt { path: String, offset: u64, bytes: u64, key: u64 },
    /// Writes a part of a file, which stays open for the next operation on it.
    WriteAt { path: String, offset: u64, bytes: u64, key: u64 },
    /// Makes a file durable.
    Sync(String),
    /// Runs a shell script in the root of the place.
    Run(String),
}

impl Op {
    /// What kind of operation it is, for reports.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Op::MakeDir(_) => "mkdir",
            Op::RemoveDir(_) => "rmdir",
            Op::Create { .. } => "create",
            Op::Deliver { .. } => "create and sync",
            Op::Append { durable: false, .. } => "append",
            Op::Append { durable: true, .. } => "append and sync",
            Op::Read { .. } => "read",
            Op::Stat(..) => "stat",
            Op::Chmod(..) => "chmod",
            Op::Utime(..) => "utime",
            Op::Rename(..) => "rename",
            Op::Unlink(_) => "delete",
            Op::List(_) => "list",
            Op::ReadAt { .. } => "read a part",
            Op::WriteAt { .. } => "write a part",
            Op::Sync(_) => "sync",
            Op::Run(_) => "run",
        }
    }
}

/// What must hold after a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// A directory has so many names.
    Names(String, u64),
    /// A file has these bytes.
    File { path: String, bytes: u64, key: u64 },
    /// A part of a file has these bytes.
    Part { path: String, offset: u64, bytes: u64, key: u64 },
    /// A shell script in the root of the place succeeds.
    Succeeds(String),
    /// A file or directory has these permission bits.
    Mode(String, u32),
    /// A file was last changed at this time, in seconds.
    Changed(String, i64),
    /// Something has this name.
    Present(String),
    /// Nothing has this name.
    Absent(String),
}
