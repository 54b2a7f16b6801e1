//! Calls, replies and credentials of ONC RPC (RFC 5531), with AUTH_SYS.

use crate::xdr::{Garbage, Reader, Writer};

/// The most supplementary groups of a caller (RFC 5531, appendix A).
pub(crate) const GROUPS_MAX: usize = 16;

const CALL: u32 = 0;
const REPLY: u32 = 1;
const VERSION: u32 = 2;
const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;
const AUTH_BYTES_MAX: usize = 400;

/// The credentials of a call, as the client claims them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Credentials {
    /// None.
    None,
    /// A user with groups.
    Sys { uid: u32, gid: u32, groups: Vec<u32> },
}

/// The header of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) transaction: u32,
    pub(crate) program: u32,
    pub(crate) version: u32,
    pub(crate) procedure: u32,
    pub(crate) credentials: Credentials,
}

/// Why a message cannot be served as a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoCall {
    /// It cannot be decoded: the connection ends.
    Garbage(Garbage),
    /// It has another version of RPC.
    Version { transaction: u32 },
    /// Its credentials are of an unknown kind or cannot be decoded.
    Credentials { transaction: u32 },
}

impl From<Garbage> for NoCall {
    fn from(garbage: Garbage) -> NoCall {
        NoCall::Garbage(garbage)
    }
}

impl Call {
    /// Decodes the header of a call; leaves its arguments in `reader`.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Call, NoCall> {
        let transaction = reader.u32()?;
        if reader.u32()? != CALL {
            return Err(Garbage("it is not a call").into());
        }
        if reader.u32()? != VERSION {
            return Err(NoCall::Version { transaction });
        }
        let (program, version, procedure) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let (flavor, body) = (reader.u32()?, reader.opaque(AUTH_BYTES_MAX)?);
        reader.u32()?;
        reader.opaque(AUTH_BYTES_MAX)?;
        let credentials = match flavor {
            AUTH_NONE => Credentials::None,
            AUTH_SYS => read_sys(body).map_err(|Garbage(_)| NoCall::Credentials { transaction })?,
            _ => return Err(NoCall::Credentials { transaction }),
        };
        Ok(Call { transaction, program, version, procedure, credentials })
    }
}

fn read_sys(body: &[u8]) -> Result<Credentials, Garbage> {
    let mut reader = Reader::new(body);
    // Skips a stamp and the name of the client.
    reader.u32()?;
    reader.opaque(255)?;
    let (uid, gid, count) = (reader.u32()?, reader.u32()?, reader.u32()? as usize);
    if count > GROUPS_MAX {
        return Err(Garbage("too many groups"));
    }
    let groups = (0..count).map(|_| reader.u32()).collect::<Result<_, _>>()?;
    Ok(Credentials::Sys { uid, gid, groups })
}

/// The RPC status of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accepted {
    Success,
    NoProgram,
    /// The program has only this version.
    OtherVersion(u32),
    NoProcedure,
    Garbage,
}

/// Encodes the header of a reply; the result follows a success.
pub(crate) fn accepted(transaction: u32, accepted: Accepted) -> Writer {
    let mut writer = Writer::new();
    // Accepted, without a verifier of the server.
    writer.u32s(&[transaction, REPLY, 0, AUTH_NONE, 0]);
    match accepted {
        Accepted::Success => writer.u32(0),
        Accepted::NoProgram => writer.u32(1),
        Accepted::OtherVersion(version) => writer.u32s(&[2, version, version]),
        Accepted::NoProcedure => writer.u32(3),
        Accepted::Garbage => writer.u32(4),
    }
    writer
}

/// Encodes the whole reply to a denied call.
pub(crate) fn denied(no_call: NoCall) -> Option<Writer> {
    const DENIED: u32 = 1;
    const RPC_MISMATCH: u32 = 0;
    const AUTH_ERROR: u32 = 1;
    const AUTH_TOO_WEAK: u32 = 5;
    let mut writer = Writer::new();
    let numbers = match no_call {
        NoCall::Garbage(_) => return None,
        NoCall::Version { transaction } => {
            [transaction, REPLY, DENIED, RPC_MISMATCH, VERSION, VERSION].to_vec()
        }
        NoCall::Credentials { transaction } => {
            [transaction, REPLY, DENIED, AUTH_ERROR, AUTH_TOO_WEAK].to_vec()
        }
    };
    writer.u32s(&numbers);
    Some(writer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(flavor: u32, body: &[u8]) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.u32s(&[9, CALL, VERSION, 100_003, 3, 1, flavor]);
        writer.opaque(body);
        writer.u32s(&[AUTH_NONE, 0, 77]);
        writer.into_bytes()
    }

    fn sys(groups: &[u32]) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.u32(0);
        writer.opaque(b"client");
        writer.u32s(&[1000, 100, groups.len() as u32]);
        writer.u32s(groups);
        writer.into_bytes()
    }

    #[test]
    fn a_call_says_who_calls() {
        let bytes = call(AUTH_SYS, &sys(&[4, 5]));
        let mut reader = Reader::new(&bytes);
        let read = Call::read(&mut reader).expect("a call");
        let credentials = Credentials::Sys { uid: 1000, gid: 100, groups: vec![4, 5] };
        assert_eq!((read.transaction, read.procedure, read.credentials), (9, 1, credentials));
        assert_eq!(reader.u32(), Ok(77), "the arguments");
    }

    #[test]
    fn what_is_no_call_is_told() {
        let refused = |bytes: &[u8]| Call::read(&mut Reader::new(bytes)).expect_err("no call");
        let credentials = NoCall::Credentials { transaction: 9 };
        assert_eq!(refused(&call(6, b"kerberos")), credentials);
        assert_eq!(refused(&call(AUTH_SYS, &sys(&[1; GROUPS_MAX + 1]))), credentials);
        let whole = call(AUTH_SYS, &sys(&[1]));
        for len in 0..whole.len() - 4 {
            assert!(matches!(refused(&whole[..len]), NoCall::Garbage(_)), "{len}");
        }
        let mut other = whole.clone();
        other[11] = 3;
        assert_eq!(refused(&other), NoCall::Version { transaction: 9 });
        assert!(denied(refused(&other)).is_some() && denied(refused(&whole[..5])).is_none());
    }
}
