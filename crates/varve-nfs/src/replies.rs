//! Calls that come again because a reply was lost.
//!
//! A client that loses its connection sends again what was not answered. A call that changes something must not be done twice: the second removal of a
//! name would say that there is none, and a late second write would undo newer ones. So replies to the last [`REPLIES_MAX`] such calls are kept, by the client's address, the transaction's
//! number and a checksum over the call; who sends one again while it is still worked on gets no second answer.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

/// Bytes of a call that the checksum is over: all but most of the data of a write.
const HASHED_BYTES: usize = 1024;
/// Replies that are kept.
const REPLIES_MAX: usize = 4096;

/// Which call it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CallId {
    client: IpAddr,
    transaction: u32,
    hash: u64,
}

impl CallId {
    pub(crate) fn new(client: IpAddr, transaction: u32, message: &[u8]) -> CallId {
        let mut hasher = DefaultHasher::new();
        message.len().hash(&mut hasher);
        message[..message.len().min(HASHED_BYTES)].hash(&mut hasher);
        CallId { client, transaction, hash: hasher.finish() }
    }
}

/// What is known of a call.
pub(crate) enum Seen {
    /// It is new, and is being worked on from now on.
    New,
    /// Somebody works on it.
    UnderWay,
    /// It was answered so.
    Answered(Arc<[u8]>),
}

#[derive(Default)]
struct Calls {
    replies: HashMap<CallId, Option<Arc<[u8]>>>,
    order: VecDeque<CallId>,
}

/// See above.
#[derive(Default)]
pub(crate) struct Replies {
    calls: Mutex<Calls>,
}

impl Replies {
    /// A call has come.
    pub(crate) fn begin(&self, id: CallId) -> Seen {
        let mut calls = self.calls.lock();
        match calls.replies.get(&id) {
            Some(Some(reply)) => return Seen::Answered(Arc::clone(reply)),
            Some(None) => return Seen::UnderWay,
            None => {}
        }
        if calls.order.len() >= REPLIES_MAX
            && let Some(oldest) = calls.order.pop_front()
        {
            calls.replies.remove(&oldest);
        }
        calls.order.push_back(id);
        calls.replies.insert(id, None);
        Seen::New
    }

    /// It is answered so.
    pub(crate) fn end(&self, id: CallId, reply: &[u8]) {
        if let Some(known) = self.calls.lock().replies.get_mut(&id) {
            *known = Some(reply.into());
        }
    }

    /// It is to be asked again, and done then.
    pub(crate) fn forget(&self, id: CallId) {
        let mut calls = self.calls.lock();
        calls.replies.remove(&id);
        calls.order.retain(|known| *known != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_call_has_the_same_answer_for_a_while() {
        let replies = Replies::default();
        let client: IpAddr = "10.0.0.1".parse().expect("an address");
        let id = |transaction: u32| CallId::new(client, transaction, b"remove x");
        assert!(matches!(replies.begin(id(1)), Seen::New));
        assert!(matches!(replies.begin(id(1)), Seen::UnderWay));
        replies.end(id(1), b"done");
        assert!(matches!(replies.begin(id(1)), Seen::Answered(reply) if *reply == *b"done"));
        assert!(matches!(replies.begin(CallId::new(client, 1, b"remove y")), Seen::New));
        replies.forget(CallId::new(client, 1, b"remove y"));
        for transaction in 2..=REPLIES_MAX as u32 {
            assert!(matches!(replies.begin(id(transaction)), Seen::New));
        }
        assert!(matches!(replies.begin(id(1)), Seen::Answered(_)));
        assert!(matches!(replies.begin(id(9999)), Seen::New));
        assert!(matches!(replies.begin(id(1)), Seen::New), "it is forgotten");
        assert_eq!(replies.calls.lock().replies.len(), REPLIES_MAX);
    }
}
