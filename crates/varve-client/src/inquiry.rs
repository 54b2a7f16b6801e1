//! Asks a server what it has and does, without a session.

use std::io::{self, Write};
use std::time::Duration;

use varve_wire::frame::{Frame, Kind};
use varve_wire::{FrameError, Header, Inquiry, Refused};

use crate::client::ConnectError;
use crate::deadline::Deadline;
use crate::dial::{dial, unheard};
use crate::transport::Input;

/// Asks the server at `address`, a host and a port, which asks for the secret `token`. Waits for the answer for so long. The answer
/// is JSON.
pub fn inquire(address: &str, token: &[u8], wait_max: Duration) -> Result<Vec<u8>, ConnectError> {
    let deadline = Deadline::after(Some(wait_max));
    let failed = |error: io::Error| ConnectError::Network(address.to_owned(), error);
    let stream = dial(address, deadline)?;
    stream.set_write_timeout(Some(wait_max)).map_err(failed)?;
    let mut message = Vec::new();
    varve_wire::encode(&mut message, Header::new(Kind::Inquiry, 0), &Inquiry { token }, &[]);
    (&stream).write_all(&message).map_err(failed)?;
    let mut input = Input::default();
    let heard = input.next(&stream, deadline);
    let Frame { header, body, data, .. } = heard.map_err(|error| unheard(address, error))?;
    let wrong = |error| ConnectError::Protocol(address.to_owned(), error);
    match header.kind {
        Kind::Report => Ok(data.to_vec()),
        Kind::Refused => {
            let Refused { reason, .. } = varve_wire::decode(body).map_err(wrong)?;
            Err(ConnectError::Refused(reason))
        }
        _ => Err(wrong(FrameError::Unexpected("the answer to an inquiry is a report"))),
    }
}
