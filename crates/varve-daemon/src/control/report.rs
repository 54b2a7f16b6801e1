//! What a daemon reports, as lines of JSON, to the process that started it and to its clients.
//!
//! A client that asked for progress gets lines of [`Report::At`] first. The last line is one of the others.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use varve::{Error, Result};

/// A mount that answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// The store.
    #[serde(with = "varve_engine::paths")]
    pub store: PathBuf,
    /// Where it is mounted.
    #[serde(with = "varve_engine::paths")]
    pub dir: PathBuf,
    /// The process that serves it.
    pub pid: u32,
    /// How it was mounted.
    pub method: String,
    /// Whether only this process and its children see the mount.
    pub is_private: bool,
    /// The methods that were tried before, each with its reason.
    pub refusals: Vec<String>,
}

/// One line of a daemon.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Report {
    /// The mount answers.
    Ready(Ready),
    /// The progress of the request.
    At {
        /// The phase of the work.
        phase: String,
        /// How many items of the phase are done.
        done: u64,
        /// The part of the phase that is done, in thousandths, if it is known.
        permille: Option<u16>,
    },
    /// The request is done; the value is its answer.
    Done(serde_json::Value),
    /// The request failed.
    Failed {
        /// What happened.
        message: String,
        /// The next step.
        hint: Option<String>,
        /// The exit status.
        status: u8,
    },
}

impl Report {
    /// The report of `error`.
    pub(crate) fn of(error: &Error) -> Report {
        Report::Failed {
            message: error.message().to_owned(),
            hint: error.next_step().map(str::to_owned),
            status: error.status(),
        }
    }

    /// The report as a line with its end. A report that cannot be written as JSON becomes a failure, so that the client gets an answer.
    pub(crate) fn line(&self) -> String {
        let failed = |error: serde_json::Error| {
            Report::of(&Error::failed(format!("cannot write the answer as JSON: {error}")))
        };
        let line = serde_json::to_string(self)
            .or_else(|error| serde_json::to_string(&failed(error)))
            .unwrap_or_default();
        line + "\n"
    }

    /// The mount, if the report is about one.
    pub(crate) fn into_result(self) -> Result<Ready> {
        match self {
            Report::Ready(ready) => Ok(ready),
            other => {
                other.into_value()?;
                Err(Error::not_understood("the daemon's answer", "it is about something else"))
            }
        }
    }

    /// The answer to a request that is not about a mount.
    pub(crate) fn into_value(self) -> Result<serde_json::Value> {
        match self {
            Report::Done(value) => Ok(value),
            Report::Ready(_) | Report::At { .. } => Ok(serde_json::Value::Null),
            Report::Failed { message, hint, status } => {
                let error = Error::failed(message).with_status(status);
                Err(match hint {
                    Some(hint) => error.hint(hint),
                    None => error,
                })
            }
        }
    }
}

/// Sends `report` to `client`. It is no failure if the client is gone.
pub(crate) fn answer(client: &mut UnixStream, report: &Report) {
    drop(client.write_all(report.line().as_bytes()));
}
