//! What a client asks on the control socket: one line of JSON.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use varve_fs::TransactionOptions;
use varve_fs::stream::Receipt;

/// What a client may ask for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// Replace the daemon by this binary.
    Upgrade {
        #[serde(with = "varve_engine::paths")]
        binary: PathBuf,
    },
    /// A request about snapshots, transactions or clones.
    Views(ViewRequest),
    /// Write the next tables again by the store's design.
    Redesign,
    /// Return what the server of the store has and does.
    Server,
    /// Confirm now, and report later how closing the store went.
    End,
}

/// A request about snapshots, transactions or clones.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ViewRequest {
    /// Create a snapshot of the present state.
    CreateSnapshot {
        /// The name.
        name: String,
    },
    /// Delete a snapshot.
    DeleteSnapshot {
        /// Its name.
        name: String,
    },
    /// List the snapshots.
    ListSnapshots,
    /// List the paths that changed after a snapshot.
    DiffSnapshots {
        /// Its name.
        from: String,
        /// The later snapshot up to which; none means the present state.
        to: Option<String>,
    },
    /// Roll the file system back to a snapshot.
    Rollback {
        /// Its name.
        name: String,
        /// Only list what would change.
        dry_run: bool,
        /// Send progress lines. A daemon of an earlier version sends none.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        watched: bool,
    },
    /// Send a snapshot ([`crate::transfer`]).
    Send(SendRequest),
    /// Receive a snapshot.
    Receive,
    /// Return the token by which an interrupted receipt continues.
    Receipt,
    /// Drop what an interrupted receipt has received.
    DiscardReceipt,
    /// Begin a transaction that shows a directory.
    Begin {
        /// Its inode number.
        root: u64,
        /// Its options.
        #[serde(default)]
        options: TransactionOptions,
    },
    /// Commit a transaction.
    Commit {
        /// Its id.
        id: String,
    },
    /// Abort a transaction.
    Abort {
        /// Its id.
        id: String,
    },
    /// List the open transactions.
    ListTransactions,
    /// List the paths that a transaction has changed.
    Diff {
        /// Its id.
        id: String,
    },
    /// Return the status of a transaction, with how much it has changed.
    Status {
        /// Its id.
        id: String,
    },
    /// Copy a file or a directory tree.
    Clone(CloneRequest),
}

/// What the daemon of a client's mount asks the server.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Question {
    /// A request of the command line.
    Views(ViewRequest),
    /// The path of the view whose place has this inode id.
    ViewAt(u64),
    /// A program on the mount begins a transaction that shows a directory, with options as text.
    Begin(u64, String),
    /// A program on the mount commits a transaction.
    Commit(u64),
    /// A program on the mount aborts one.
    Abort(u64),
}

impl ViewRequest {
    /// Whether the request changes files, snapshots or transactions.
    pub(crate) fn is_change(&self) -> bool {
        matches!(
            self,
            ViewRequest::CreateSnapshot { .. }
                | ViewRequest::DeleteSnapshot { .. }
                | ViewRequest::Rollback { dry_run: false, .. }
                | ViewRequest::Begin { .. }
                | ViewRequest::Commit { .. }
                | ViewRequest::Abort { .. }
                | ViewRequest::Clone(_)
                | ViewRequest::Receive
                | ViewRequest::DiscardReceipt
        )
    }

    /// Whether the client asked for progress lines.
    pub(crate) fn is_watched(&self) -> bool {
        matches!(self, ViewRequest::Rollback { watched: true, .. })
    }
}

/// What to clone, and where to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CloneRequest {
    /// The snapshot that has the original; none means the present state.
    pub snapshot: Option<String>,
    /// The inode number of the directory that has the original's name.
    pub dir: u64,
    /// The name of the original; none means the directory itself.
    pub name: Option<Vec<u8>>,
    /// The inode number of the directory that gets the clone.
    pub into: u64,
    /// The clone's name.
    pub to: Vec<u8>,
}

/// Which snapshot to send.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendRequest {
    /// Its name.
    pub name: String,
    /// The snapshot that the receiver has already.
    pub since: Option<String>,
    /// What an interrupted receipt has received of it.
    pub resumed: Option<Receipt>,
}

#[cfg(test)]
mod tests {
    use varve_testkit::rng::Rng;

    use super::*;

    const SAID: [&str; 11] = [
        r#"{"upgrade":{"binary":"/usr/bin/varve"}}"#,
        r#"{"upgrade":{"binary":[47,255,254]}}"#,
        r#""redesign""#,
        r#""end""#,
        r#"{"views":"list_snapshots"}"#,
        r#"{"views":{"rollback":{"name":"before","dry_run":true}}}"#,
        r#"{"views":{"rollback":{"name":"before","dry_run":false,"watched":true}}}"#,
        r#"{"views":{"diff_snapshots":{"from":"a","to":null}}}"#,
        r#"{"views":{"begin":{"root":1,"options":{"isolation":"serializable","on_conflict":"wait","lock_wait_ms":10000,"priority":0,"idle_abort_s":90}}}}"#,
        r#"{"views":{"clone":{"snapshot":null,"dir":1,"name":[97],"into":16,"to":[98,255]}}}"#,
        r#"{"views":{"send":{"name":"two","since":"one","resumed":null}}}"#,
    ];

    fn said(text: &str) -> Option<String> {
        let request = serde_json::from_str::<Request>(text).ok()?;
        Some(serde_json::to_string(&request).unwrap())
    }

    /// What is said is read as it was meant, and what anybody else writes to the socket is refused or means one thing.
    #[test]
    fn arbitrary_requests_are_refused_or_come_back() {
        for text in SAID {
            assert_eq!(said(text).as_deref(), Some(text));
        }
        let mut rng = Rng::new(20_261_123);
        let (mut accepted, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let mut bytes = rng.pick(&SAID).as_bytes().to_vec();
            for _ in 0..=rng.below(2) {
                let at = rng.below(bytes.len() as u64) as usize;
                match rng.below(4) {
                    0 => bytes[at] = *rng.pick(b"\"{}[]:,0129-.eE\\ an\0\xff"),
                    1 => drop(bytes.remove(at)),
                    2 => bytes.insert(at, *rng.pick(b"\"{}[]:,0129-.eE\\ an\0\xff")),
                    _ => bytes.truncate(at.max(1)),
                }
            }
            match std::str::from_utf8(&bytes).ok().and_then(said) {
                Some(text) => {
                    accepted += 1;
                    assert_eq!(said(&text).as_deref(), Some(&text[..]));
                }
                None => refused += 1,
            }
        }
        assert!(accepted > 500 && refused > 500, "{accepted} accepted, {refused} refused");
    }
}
