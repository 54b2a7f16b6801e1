//! Messages on the socket for dictionaries: a length and a body.

use std::io::{ErrorKind, Read, Write};

use super::protocol::MESSAGE_BYTES_MAX;

/// Messages up to this size are sent in one write with their length.
const COPIED_BYTES_MAX: usize = 64 << 10;

/// Sends a message.
pub(super) fn send(stream: &mut impl Write, body: &[u8]) -> std::io::Result<()> {
    if body.len() > MESSAGE_BYTES_MAX {
        return Err(std::io::Error::new(ErrorKind::InvalidInput, "a message of more than 2 MiB"));
    }
    let len = (body.len() as u32).to_le_bytes();
    if body.len() <= COPIED_BYTES_MAX {
        return stream.write_all(&[&len, body].concat());
    }
    stream.write_all(&len)?;
    stream.write_all(body)
}

/// Receives a message; `None` if the other side closed the connection before it.
pub(super) fn receive(stream: &mut impl Read) -> std::io::Result<Option<Vec<u8>>> {
    let mut len = [0; 4];
    match stream.read_exact(&mut len) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    receive_body(stream, body_len(len)?).map(Some)
}

/// The length of a body, of the four bytes before it.
pub(super) fn body_len(said: [u8; 4]) -> std::io::Result<usize> {
    let len = u32::from_le_bytes(said) as usize;
    if len > MESSAGE_BYTES_MAX {
        return Err(std::io::Error::new(ErrorKind::InvalidData, "a message of more than 2 MiB"));
    }
    Ok(len)
}

pub(super) fn receive_body(stream: &mut impl Read, len: usize) -> std::io::Result<Vec<u8>> {
    let mut body = vec![0; len];
    stream.read_exact(&mut body)?;
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::super::protocol::{End, Failure, Request, Response};
    use super::*;

    const TAGS: &[u8] = b"tags";

    /// Messages as they go over the socket, each with its length.
    fn sent(bodies: &[Vec<u8>]) -> Vec<u8> {
        let mut out = Vec::new();
        bodies.iter().for_each(|body| send(&mut out, body).unwrap());
        out
    }

    #[test]
    fn messages_are_written_as_version_1_wrote_them() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/v1");
        let (name, key) = (TAGS.to_vec(), b"key".to_vec());
        let scan = |start, end, reverse| Request::Scan { name: name.clone(), start, end, reverse };
        let changes = vec![(key.clone(), Some(b"value".to_vec())), (b"gone".to_vec(), None)];
        let requests = [
            (0, Request::Create(name.clone())),
            (0, Request::Drop(name.clone())),
            (0, Request::List),
            (7, Request::Get { name: name.clone(), key: key.clone() }),
            (1 << 40, Request::Change { name: name.clone(), changes }),
            (0, scan(End::Open, End::Included(key.clone()), false)),
            (0, scan(End::Excluded(key.clone()), End::Open, true)),
            (0, Request::Sync),
        ];
        let bodies = requests.each_ref().map(|(transaction, request)| request.encode(*transaction));
        varve_testkit::golden(format!("{dir}/kv.requests"), &sent(&bodies));
        for (body, request) in bodies.iter().zip(requests) {
            assert_eq!(Request::decode(body), Ok(request));
        }
        let pairs = vec![(key.clone(), b"value".to_vec()), (b"other".to_vec(), Vec::new())];
        let responses = [
            Response::Done,
            Response::Names(vec![name, b"more".to_vec()]),
            Response::Value(Some(b"value".to_vec())),
            Response::Value(None),
            Response::Pairs(pairs, true),
            Response::Pairs(Vec::new(), false),
            Response::Failed(Failure::NotFound, "there is none".to_owned()),
            Response::Failed(Failure::GaveWay, "others go on".to_owned()),
        ];
        let bodies = responses.each_ref().map(Response::encode);
        varve_testkit::golden(format!("{dir}/kv.responses"), &sent(&bodies));
        for (body, response) in bodies.iter().zip(responses) {
            assert_eq!(Response::decode(body), Ok(response));
        }
    }
}
