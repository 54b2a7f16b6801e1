//! Every message as version 1 of the protocol writes it, and what becomes of its bytes when they are damaged.
//!
//! `VARVE_BLESS=1 cargo test -p varve-wire --test it` writes the file of a new message; `git diff` must show no change of
//! an old one.

use std::collections::BTreeSet;
use std::fmt::Debug;

use serde::{Deserialize, Serialize};
use varve_testkit::golden;
use varve_wire::frame::{self, HEADER_BYTES, Kind};
use varve_wire::request::KINDS;
use varve_wire::{Answer, FrameError, Header, Hello, Inquiry, Notice, Refused, Request, Welcome};

use crate::samples;

/// What follows bodies whose messages have data.
const DATA: &[u8] = b"data";

fn frame_of<T: Serialize>(kind: Kind, message: &T) -> Vec<u8> {
    let header = Header { features: 0x0201, slot: 5, number: 1 << 40, ..Header::new(kind, 0xabcd) };
    let mut bytes = Vec::new();
    varve_wire::encode(&mut bytes, header, message, DATA);
    bytes
}

/// All messages as frames, each with the name of its file.
fn frames() -> Vec<(String, Vec<u8>)> {
    let mut frames = vec![
        ("hello".to_owned(), frame_of(Kind::Hello, &samples::hello())),
        ("welcome".to_owned(), frame_of(Kind::Welcome, &samples::welcome())),
        ("refused".to_owned(), frame_of(Kind::Refused, &samples::refused())),
        ("acknowledgement".to_owned(), frame_of(Kind::Acknowledgement, &())),
        ("inquiry".to_owned(), frame_of(Kind::Inquiry, &samples::inquiry())),
        ("report".to_owned(), frame_of(Kind::Report, &())),
    ];
    frames.extend(named("notice", Kind::Notice, &samples::notices()));
    frames.extend(named("answer", Kind::Answer, &samples::answers()));
    frames.extend(named("request", Kind::Request, &samples::requests()));
    frames
}

/// Names messages by their place in the list, so that a message that moves is noticed.
fn named<T: Serialize + Debug>(prefix: &str, kind: Kind, messages: &[T]) -> Vec<(String, Vec<u8>)> {
    let named = |(at, message): (usize, &T)| {
        let debug = format!("{message:?}");
        let variant: String = debug.chars().take_while(char::is_ascii_alphanumeric).collect();
        (format!("{prefix}-{at:02}-{variant}"), frame_of(kind, message))
    };
    messages.iter().enumerate().map(named).collect()
}

#[test]
fn messages_are_written_as_version_1_writes_them() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/v1");
    for (name, bytes) in frames() {
        golden(format!("{dir}/{name}"), &bytes);
    }
}

fn comes_back<'a, T>(frame: &'a [u8], kind: Kind, message: &T)
where
    T: Deserialize<'a> + PartialEq + Debug,
{
    let found = frame::first(frame).unwrap().unwrap();
    assert_eq!((found.header.kind, found.header.features), (kind, 0x0201));
    assert_eq!((found.header.epoch, found.header.slot, found.header.number), (0xabcd, 5, 1 << 40));
    assert_eq!((found.data, found.bytes), (DATA, frame.len()));
    assert_eq!(varve_wire::decode::<T>(found.body).as_ref(), Ok(message));
}

#[test]
fn messages_come_back() {
    comes_back(&frame_of(Kind::Hello, &samples::hello()), Kind::Hello, &samples::hello());
    comes_back(&frame_of(Kind::Welcome, &samples::welcome()), Kind::Welcome, &samples::welcome());
    comes_back(&frame_of(Kind::Refused, &samples::refused()), Kind::Refused, &samples::refused());
    comes_back(&frame_of(Kind::Inquiry, &samples::inquiry()), Kind::Inquiry, &samples::inquiry());
    for notice in samples::notices() {
        comes_back(&frame_of(Kind::Notice, &notice), Kind::Notice, &notice);
    }
    for answer in samples::answers() {
        comes_back(&frame_of(Kind::Answer, &answer), Kind::Answer, &answer);
    }
    for request in samples::requests() {
        comes_back(&frame_of(Kind::Request, &request), Kind::Request, &request);
    }
}

/// Returns the numbers of the variants of samples, which are sorted.
fn sampled<T: Serialize>(samples: &[T]) -> BTreeSet<u8> {
    let number = |message| frame_of(Kind::Request, message)[HEADER_BYTES];
    let numbers: Vec<u8> = samples.iter().map(number).collect();
    assert!(numbers.is_sorted(), "samples are in the order of their variants");
    numbers.into_iter().collect()
}

/// Returns the numbers of variants that a decoder knows: zeros are a valid message behind each of them.
fn known(decode: impl Fn(&[u8]) -> Result<(), FrameError>) -> BTreeSet<u8> {
    let is_known = |number: &u8| {
        let mut body = [0; 512];
        body[0] = *number;
        // Most zeros are superfluous.
        !matches!(decode(&body), Err(FrameError::Body(_)))
    };
    (0..128).filter(is_known).collect()
}

#[test]
fn every_variant_has_a_golden_file() {
    let notices = known(|body| varve_wire::decode::<Notice>(body).map(drop));
    assert_eq!(notices, sampled(&samples::notices()), "notices of samples.rs");
    let answers = known(|body| varve_wire::decode::<Answer>(body).map(drop));
    assert_eq!(answers, sampled(&samples::answers()), "answers of samples.rs");
    let requests = known(|body| varve_wire::decode::<Request<'_>>(body).map(drop));
    assert_eq!(requests, sampled(&samples::requests()), "requests of samples.rs");
}

#[test]
fn statistics_call_requests_as_they_are_called() {
    for request in samples::requests() {
        let debug = format!("{request:?}");
        let variant: String = debug.chars().take_while(char::is_ascii_alphanumeric).collect();
        let frame = frame_of(Kind::Request, &request);
        let body = frame::first(&frame).unwrap().unwrap().body;
        let name = KINDS[varve_wire::request::kind(body)].replace('_', "");
        assert_eq!(name, variant.to_ascii_lowercase());
    }
    let requests = known(|body| varve_wire::decode::<Request<'_>>(body).map(drop));
    assert_eq!(KINDS.len(), requests.len(), "every request has a name");
}

/// Decodes as a receiver does. A list takes no more room than its message has bytes for elements.
fn receive(bytes: &[u8]) -> Result<(), FrameError> {
    let Some(frame) = frame::first(bytes)? else { return Ok(()) };
    assert!(frame.bytes <= bytes.len());
    let body = frame.body;
    let fits = |capacity: usize| assert!(capacity <= body.len().max(4), "{capacity} elements");
    match frame.header.kind {
        Kind::Hello => assert!(varve_wire::decode::<Hello<'_>>(body)?.name.len() <= body.len()),
        Kind::Welcome => varve_wire::decode::<Welcome>(body).map(|_| ())?,
        Kind::Refused => fits(varve_wire::decode::<Refused>(body)?.reason.capacity()),
        Kind::Acknowledgement | Kind::Report => varve_wire::decode::<()>(body)?,
        Kind::Inquiry => {
            assert!(varve_wire::decode::<Inquiry<'_>>(body)?.token.len() <= body.len());
        }
        Kind::Request => {
            if let Request::Access { groups, .. } = varve_wire::decode(body)? {
                fits(groups.capacity());
            }
        }
        Kind::Answer => match varve_wire::decode(body)? {
            Answer::Failed(failure) => fits(failure.text.capacity()),
            Answer::Quotas(quotas) => fits(quotas.capacity()),
            _ => {}
        },
        Kind::Notice => {
            if let Notice::Recall(objects) = varve_wire::decode(body)? {
                fits(objects.capacity());
            }
        }
    }
    Ok(())
}

#[test]
fn no_flipped_bit_makes_a_decoder_fail_otherwise_than_by_an_error() {
    let (mut refused, mut decoded) = (0, 0);
    for (name, bytes) in frames() {
        assert_eq!(receive(&bytes), Ok(()), "{name}");
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            match receive(&damaged) {
                Ok(()) => decoded += 1,
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 1000 && decoded > 1000, "{refused} refused, {decoded} decoded");
}

/// A receiver waits for the rest of a frame. A frame that says that it is shorter has a body that does not decode, or
/// less data.
#[test]
fn every_cut_message_waits_for_its_rest_or_is_refused() {
    for (name, bytes) in frames() {
        for length in 0..bytes.len() {
            assert_eq!(frame::first(&bytes[..length]), Ok(None), "{name} cut to {length} bytes");
        }
        let data_begins = bytes.len() - DATA.len();
        for length in HEADER_BYTES..bytes.len() {
            let mut cut = bytes[..length].to_vec();
            cut[..4].copy_from_slice(&(length as u32 - 4).to_le_bytes());
            assert_eq!(receive(&cut).is_ok(), length >= data_begins, "{name} cut to {length}");
            let body_bytes = (length - HEADER_BYTES).min(data_begins - HEADER_BYTES);
            cut[24..28].copy_from_slice(&(body_bytes as u32).to_le_bytes());
            assert_eq!(receive(&cut).is_ok(), length >= data_begins, "{name} with {body_bytes}");
        }
    }
}

/// A list that claims more elements than there are bytes is refused before it takes memory.
#[test]
fn lists_that_claim_too_much_take_no_memory() {
    let length = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
    let mut answer = vec![11];
    answer.extend(length);
    assert!(varve_wire::decode::<Answer>(&answer).is_err());
    let mut notice = vec![0];
    notice.extend(length);
    assert!(varve_wire::decode::<Notice>(&notice).is_err());
}
