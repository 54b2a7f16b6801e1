//! What the requests about dictionaries do to an open store.

use std::ops::Bound;
use std::time::Duration;

use bytes::Bytes;
use varve_engine::{Direction, KeyRange};
use varve_fs::{Dictionaries, VarveFs};
use varve_vfs::{Blocked, FsError, FsResult, Vfs, in_time, insist};

use super::protocol::{End, Failure, Request, Response};

/// The most bytes of keys and values in an answer, unless one pair is larger.
const PAGE_BYTES: usize = 256 << 10;

/// Does `request` in the transaction with this number, or outside of transactions if the number is 0. Waits for locks as long as calls
/// about files do.
pub(crate) fn answer(fs: &VarveFs, transaction: u64, request: &Request) -> Response {
    match transaction {
        0 => answer_in_main(fs, fs.lock_wait_max(), request),
        _ => answer_in_transaction(fs, transaction, request),
    }
}

/// Does `request` outside of transactions. A transaction that holds locks for longer than `wait_max` loses them.
fn answer_in_main(fs: &VarveFs, wait_max: Duration, request: &Request) -> Response {
    let call = || attempt(fs.dictionaries(), request);
    let done = in_time(fs, wait_max, call).or_else(|blocked| insist(fs, blocked, call));
    done.unwrap_or_else(|blocked| Err(FsError::Blocked(blocked)))
        .unwrap_or_else(|e| failure(fs, &e))
}

fn answer_in_transaction(fs: &VarveFs, transaction: u64, request: &Request) -> Response {
    let ended = || {
        let text = format!("no transaction {transaction} is open");
        Response::Failed(Failure::NoTransaction, text)
    };
    let id = transaction.to_string();
    let found = fs.transaction(&id).and_then(|txn| Ok((fs.transaction_dictionaries(&id)?, txn)));
    let (dictionaries, txn) = match found {
        Ok(found) => found,
        Err(FsError::NotFound | FsError::Stale) => return ended(),
        Err(error) => return failure(fs, &error),
    };
    let mut refused: Option<Blocked> = None;
    let call = || {
        if let Some(blocked) = refused.take() {
            fs.give_up(&txn, &blocked);
        }
        let done = attempt(&dictionaries, request);
        refused = done.as_ref().err().cloned();
        done
    };
    match in_time(fs, txn.lock_wait_max(), call) {
        // The transaction may have ended meanwhile.
        Ok(Err(FsError::Stale)) => ended(),
        Ok(done) => done.unwrap_or_else(|error| failure(fs, &error)),
        Err(blocked) => {
            fs.give_up(&txn, &blocked);
            failure(fs, &FsError::Blocked(blocked))
        }
    }
}

/// Does `request` once; the error names the locks that block it.
fn attempt(
    dictionaries: &Dictionaries,
    request: &Request,
) -> std::result::Result<FsResult<Response>, Blocked> {
    match done(dictionaries, request) {
        Err(FsError::Blocked(blocked)) => Err(blocked),
        done => Ok(done),
    }
}

fn done(dictionaries: &Dictionaries, request: &Request) -> FsResult<Response> {
    match request {
        Request::Create(name) => dictionaries.create(name).map(|()| Response::Done),
        Request::Drop(name) => dictionaries.remove(name).map(|()| Response::Done),
        Request::List => dictionaries.list().map(Response::Names),
        Request::Get { name, key } => {
            dictionaries.get(name, key).map(|value| Response::Value(value.map(Into::into)))
        }
        Request::Change { name, changes } => {
            let copy = |bytes: &Vec<u8>| Bytes::copy_from_slice(bytes);
            let changes = changes.iter().map(|(key, value)| (copy(key), value.as_ref().map(copy)));
            dictionaries.change(name, changes.collect()).map(|()| Response::Done)
        }
        Request::Scan { name, start, end, reverse } => {
            let range = KeyRange { start: bound(start), end: bound(end) };
            page(dictionaries, name, range, *reverse)
        }
        Request::Sync => dictionaries.sync().map(|()| Response::Done),
    }
}

fn failure(fs: &VarveFs, error: &FsError) -> Response {
    let failure = match error {
        FsError::NotFound => Failure::NotFound,
        FsError::Exists => Failure::Exists,
        FsError::ReadOnly => Failure::ReadOnly,
        FsError::NoSpace(_) => Failure::NoSpace,
        FsError::Invalid(_) | FsError::Name(_) => Failure::Invalid,
        FsError::Blocked(_) => Failure::Locked,
        FsError::DeadlockVictim => Failure::GaveWay,
        _ => Failure::Storage,
    };
    let text = match error {
        FsError::NotFound => "no such dictionary".to_owned(),
        FsError::Exists => "there is a dictionary of that name".to_owned(),
        FsError::Blocked(blocked) => {
            let holders = fs.transactions_of(blocked).join(", ");
            format!("transaction {holders} has locked it; try again when that one has ended")
        }
        _ => error.to_string(),
    };
    Response::Failed(failure, text)
}

fn bound(end: &End) -> Bound<Vec<u8>> {
    match end {
        End::Open => Bound::Unbounded,
        End::Included(key) => Bound::Included(key.clone()),
        End::Excluded(key) => Bound::Excluded(key.clone()),
    }
}

fn page(
    dictionaries: &Dictionaries,
    name: &[u8],
    range: KeyRange,
    reverse: bool,
) -> FsResult<Response> {
    let direction = if reverse { Direction::Reverse } else { Direction::Forward };
    let page = dictionaries.scan(name, range, direction, PAGE_BYTES)?;
    let pairs = page.pairs.into_iter().map(|(key, value)| (key.into(), value.into()));
    Ok(Response::Pairs(pairs.collect(), page.more))
}

#[cfg(test)]
mod tests {
    use varve::{FileSystem, store};
    use varve_fs::{FormatOptions, Isolation, MountOptions, TransactionOptions};
    use varve_types::InodeId;

    use super::*;

    const TAGS: &[u8] = b"tags";

    fn put(value: &[u8]) -> Request {
        let changes = vec![(b"key".to_vec(), Some(value.to_vec()))];
        Request::Change { name: TAGS.to_vec(), changes }
    }

    fn get() -> Request {
        Request::Get { name: TAGS.to_vec(), key: b"key".to_vec() }
    }

    fn begin(fs: &VarveFs, lock_wait_ms: u64) -> u64 {
        let isolation = Isolation::Serializable;
        let options = TransactionOptions { isolation, lock_wait_ms, ..Default::default() };
        fs.begin_transaction(InodeId::ROOT, &options).unwrap().name.parse().unwrap()
    }

    /// With a dictionary that has one pair.
    fn on_store(test: impl FnOnce(&VarveFs)) {
        let dir = tempfile::tempdir().unwrap();
        store::format(dir.path(), &FormatOptions::default()).unwrap();
        let file_system = FileSystem::open(dir.path(), &MountOptions::default()).unwrap();
        let fs = file_system.inner();
        assert_eq!(answer(&fs, 0, &Request::Create(TAGS.to_vec())), Response::Done);
        assert_eq!(answer(&fs, 0, &put(b"first")), Response::Done);
        test(&fs);
        drop(fs);
        file_system.close().unwrap();
    }

    #[test]
    fn who_is_in_the_way_for_too_long_gives_way() {
        for request in [put(b"second"), Request::Drop(TAGS.to_vec())] {
            on_store(|fs| {
                let txn = begin(fs, 0);
                let value = |bytes: &[u8]| Response::Value(Some(bytes.to_vec()));
                assert_eq!(answer(fs, txn, &get()), value(b"first"));
                assert_eq!(answer(fs, 0, &get()), value(b"first"), "readers do not wait");
                assert_eq!(answer_in_main(fs, Duration::ZERO, &request), Response::Done);
                match answer(fs, txn, &get()) {
                    Response::Failed(failure, text) => {
                        assert_eq!(failure, Failure::GaveWay, "{text}");
                    }
                    other => panic!("{other:?}"),
                }
            });
        }
    }

    /// A request that was given up counted as waiting on, so that another transaction was taken to wait for its own holder.
    #[test]
    fn a_request_that_was_refused_waits_no_more() {
        on_store(|fs| {
            let (holds, asks) = (begin(fs, 0), begin(fs, 1));
            assert_eq!(answer(fs, holds, &put(b"held")), Response::Done);
            match answer(fs, asks, &get()) {
                Response::Failed(Failure::Locked, text) => {
                    assert!(text.contains(&format!("transaction {holds} has locked it")), "{text}");
                }
                other => panic!("{other:?}"),
            }
            let waits = |fs: &VarveFs| fs.lock_status().unwrap();
            assert!(waits(fs).iter().all(|status| status.waits_for.is_empty()));
        });
    }
}
