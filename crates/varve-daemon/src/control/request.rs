//! What is asked on the daemon's socket: a line of JSON each.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use varve_fs::TransactionOptions;
use varve_fs::stream::Receipt;

/// What a client may ask for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// Be replaced by this binary.
    Upgrade {
        #[serde(with = "varve_engine::paths")]
        binary: PathBuf,
    },
    /// Do something with views.
    Views(ViewRequest),
    /// Take the next step to make all tables what the store's design says.
    Redesign,
    /// Say now that this was heard, and later, when the store is closed, how that went.
    End,
}

/// What a client may ask for about views.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ViewRequest {
    /// Give the present state a name.
    CreateSnapshot {
        /// The name.
        name: String,
    },
    /// Let go of a named state.
    DeleteSnapshot {
        /// Its name.
        name: String,
    },
    /// Tell the named states.
    ListSnapshots,
    /// Tell the paths that changed after one named state.
    DiffSnapshots {
        /// Its name.
        from: String,
        /// The later one up to which, or none for now.
        to: Option<String>,
    },
    /// Take the file system back to a named state.
    Rollback {
        /// Its name.
        name: String,
        /// Only tell what would happen.
        dry_run: bool,
        /// Tell now and then how far it is. A daemon of an earlier version does not.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        watched: bool,
    },
    /// Send a named state ([`crate::transfer`]).
    Send(SendRequest),
    /// Receive one.
    Receive,
    /// Tell where an interrupted receipt is to go on.
    Receipt,
    /// Drop what came of an interrupted receipt.
    DiscardReceipt,
    /// Begin a transaction that shows a directory.
    Begin {
        /// Its inode number.
        root: u64,
        /// How it is to be.
        #[serde(default)]
        options: TransactionOptions,
    },
    /// Make a transaction part of the file system.
    Commit {
        /// Its id.
        id: String,
    },
    /// Drop a transaction.
    Abort {
        /// Its id.
        id: String,
    },
    /// Tell the open transactions.
    ListTransactions,
    /// Tell the paths that a transaction has changed.
    Diff {
        /// Its id.
        id: String,
    },
    /// Tell of a transaction, with how much it has changed.
    Status {
        /// Its id.
        id: String,
    },
    /// Copy a file or a directory tree.
    Clone(CloneRequest),
}

impl ViewRequest {
    /// Whether it changes what is seen of files, snapshots and transactions.
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

    /// Whether who asks wants to be told how far it is.
    pub(crate) fn is_watched(&self) -> bool {
        matches!(self, ViewRequest::Rollback { watched: true, .. })
    }
}

/// What is to be copied, and where to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CloneRequest {
    /// The snapshot that it is in; none: the main view.
    pub snapshot: Option<String>,
    /// The inode number of the directory that has its name.
    pub dir: u64,
    /// The name; none: the directory itself.
    pub name: Option<Vec<u8>>,
    /// The inode number of the directory that gets the copy.
    pub into: u64,
    /// Its name there.
    pub to: Vec<u8>,
}

/// Which snapshot is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendRequest {
    /// Its name.
    pub name: String,
    /// The one that the receiver has.
    pub since: Option<String>,
    /// What was received of it.
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
