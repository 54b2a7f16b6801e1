//! What a daemon tells the process that started it or asked it for something, as one line of JSON; before that, lines that tell how
//! far it is, to who has asked for them.

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

/// The line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Report {
    /// The mount answers.
    Ready(Ready),
    /// So far it is.
    At {
        /// What is being worked on.
        phase: String,
        /// How many of them are done.
        done: u64,
        /// The part of the phase that is done, in thousandths, as far as that is known.
        permille: Option<u16>,
    },
    /// It is done, and this is what there is to say.
    Done(serde_json::Value),
    /// It could not be done.
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
    /// A failure.
    pub(crate) fn of(error: &Error) -> Report {
        Report::Failed {
            message: error.message().to_owned(),
            hint: error.next_step().map(str::to_owned),
            status: error.status(),
        }
    }

    /// As it is written, with its end. What cannot be written is a failure too, so that whoever waits hears of it.
    pub(crate) fn line(&self) -> String {
        let failed = |error: serde_json::Error| {
            Report::of(&Error::failed(format!("the answer cannot be written as JSON: {error}")))
        };
        let line = serde_json::to_string(self)
            .or_else(|error| serde_json::to_string(&failed(error)))
            .unwrap_or_default();
        line + "\n"
    }

    /// What it says of a mount.
    pub(crate) fn into_result(self) -> Result<Ready> {
        match self {
            Report::Ready(ready) => Ok(ready),
            other => {
                other.into_value()?;
                Err(Error::not_understood("the daemon's answer", "it is about something else"))
            }
        }
    }

    /// What it says of anything else.
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

/// Writes one line; a client that has gone needs none.
pub(crate) fn answer(client: &mut UnixStream, report: &Report) {
    drop(client.write_all(report.line().as_bytes()));
}
