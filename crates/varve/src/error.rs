//! Errors for people: the failure, the next step, and the exit status for scripts.

use std::fmt;
use std::io;
use std::path::Path;

use varve_engine::StoreError;
use varve_vfs::FsError;

/// The result of a call of the library.
pub type Result<T> = std::result::Result<T, Error>;

/// Exit statuses of the program. 0 is success.
pub mod exit_status {
    /// The operation failed.
    pub const FAILED: u8 = 1;
    /// The command line was wrong.
    pub const USAGE: u8 = 2;
    /// `varve fsck --repair` found something and repaired all of it.
    pub const REPAIRED: u8 = 3;
    /// `varve fsck` found problems and they are still there (as fsck(8) has it: errors left uncorrected).
    pub const PROBLEMS_FOUND: u8 = 4;
    /// A transaction is not committed, as it met others.
    pub const CONFLICT: u8 = 5;
    /// As a mount helper: the mount failed (as mount(8) has it).
    pub const MOUNT_FAILED: u8 = 32;
    /// Ended by Ctrl-C.
    pub const INTERRUPTED: u8 = 130;
}

/// A failure, for people: what happened and the next step.
#[derive(Debug)]
pub struct Error {
    message: String,
    hint: Option<String>,
    status: u8,
}

impl Error {
    /// An operation that failed.
    pub fn failed(message: impl Into<String>) -> Error {
        Error { message: message.into(), hint: None, status: exit_status::FAILED }
    }

    /// A wrong command line.
    pub fn usage(message: impl Into<String>) -> Error {
        Error { status: exit_status::USAGE, ..Error::failed(message) }
    }

    /// An operation on a file that failed. The next step is what a failure of its kind asks for, unless another is given.
    pub fn io(action: &str, path: &Path, error: &io::Error) -> Error {
        Error::failed(format!("cannot {action} {}: {error}", path.display()))
            .hint(next_step(error.kind(), path))
    }

    /// A refusal of the operating system.
    pub fn machine(action: &str, error: impl fmt::Display) -> Error {
        Error::failed(format!("cannot {action}: {error}"))
            .hint("`ulimit -a` and `free` may show what this process or the machine is short of")
    }

    /// The error of a `message` that names the next step after a semicolon, as messages of the rooms below do: here the step
    /// becomes the hint.
    pub fn split_hint(message: &str) -> Error {
        match message.rsplit_once("; ") {
            Some((message, hint)) => Error::failed(message).hint(hint),
            None => Error::failed(message),
        }
    }

    /// An answer that this program does not understand.
    pub fn not_understood(what: &str, error: impl fmt::Display) -> Error {
        Error::failed(format!("{what} is not understood: {error}"))
            .hint("this program and the daemon of the mount should be of the same version")
    }

    /// Adds the next step.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Error {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the next step if the error has none.
    #[must_use]
    pub fn or_hint(self, hint: &str) -> Error {
        if self.hint.is_some() { self } else { self.hint(hint) }
    }

    /// Sets the exit status.
    #[must_use]
    pub fn with_status(mut self, status: u8) -> Error {
        self.status = status;
        self
    }

    /// The failure, without the next step.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The next step.
    pub fn next_step(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// The exit status, one of [`exit_status`].
    pub fn status(&self) -> u8 {
        self.status
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

/// What to do about a failure of this kind at `path`.
fn next_step(kind: io::ErrorKind, path: &Path) -> String {
    use io::ErrorKind;
    match kind {
        ErrorKind::PermissionDenied => {
            format!("`ls -ld {}` shows who may use it", path.display())
        }
        ErrorKind::NotFound
        | ErrorKind::NotADirectory
        | ErrorKind::IsADirectory
        | ErrorKind::InvalidFilename => "check the path".to_owned(),
        ErrorKind::AlreadyExists => "give another name, or remove what is there".to_owned(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "make room there".to_owned(),
        ErrorKind::ReadOnlyFilesystem => "make it writable, or use a path elsewhere".to_owned(),
        ErrorKind::NotConnected => {
            "the daemon of the mount has died: `varve umount` it, and mount again".to_owned()
        }
        _ => "check the device and its file system; the kernel's log may say more".to_owned(),
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Error {
        let text = error.to_string();
        match &error {
            StoreError::Io { source, path, action } => {
                let hint = match source.kind() {
                    io::ErrorKind::NotFound if *action != "create" => {
                        "check the path, or make a store with `varve format`".to_owned()
                    }
                    kind => next_step(kind, path),
                };
                Error::failed(text).hint(hint)
            }
            StoreError::Closed => Error::failed(text),
            StoreError::Conflict { .. }
            | StoreError::GaveWay { .. }
            | StoreError::Blocked(_)
            | StoreError::Ended => Error::split_hint(&text),
            StoreError::Invalid(_)
            | StoreError::Damaged { .. }
            | StoreError::NoSpace { .. }
            | StoreError::Poisoned { .. }
            | StoreError::Locked { .. }
            | StoreError::NewerFormat { .. }
            | StoreError::NotAStore { .. } => Error::split_hint(&text),
        }
    }
}

impl From<FsError> for Error {
    fn from(error: FsError) -> Error {
        match error {
            FsError::Storage(text) | FsError::Damaged(text) | FsError::NoSpace(text) => {
                Error::split_hint(&text)
            }
            FsError::ReadOnly => {
                Error::failed(error.to_string()).hint("`mount -o remount,rw` allows changes")
            }
            FsError::NotSupported(_) => Error::split_hint(&error.to_string()),
            other => Error::failed(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_step_becomes_the_hint() {
        let error = Error::from(StoreError::NotAStore { path: "/srv/x".into() });
        assert_eq!(error.to_string(), "/srv/x holds no store\nhint: make one with `varve format`");
        assert_eq!(error.status(), exit_status::FAILED);
        let error = Error::from(FsError::Damaged("a; b is damaged; run `varve fsck`".to_owned()));
        assert_eq!(error.message(), "a; b is damaged");
    }
}
