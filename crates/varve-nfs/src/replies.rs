//! Remembers replies, for calls that arrive again because a reply was lost.
//!
//! A client that loses its connection sends unanswered calls again. A call that changes something must not be
//! executed twice: the second removal of a name would fail, and a late second write would undo newer ones. So the
//! replies to the last [`REPLIES_MAX`] such calls are kept, by the address of the client, the number of the call and
//! a checksum over the call. A call that arrives again while it is being executed gets no second answer.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

/// How many bytes of a call the checksum covers: all except most of the data of a write.
const HASHED_BYTES: usize = 1024;
/// The most replies that are kept.
const REPLIES_MAX: usize = 4096;

/// Identifies a call.
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

/// The state of a call.
pub(crate) enum Seen {
    /// It is new, and from now on being executed.
    New,
    /// Another thread is executing it.
    UnderWay,
    /// It had this reply.
    Answered(Arc<[u8]>),
}

#[derive(Default)]
struct Calls {
    replies: HashMap<CallId, Option<Arc<[u8]>>>,
    order: VecDeque<CallId>,
}

/// The replies of one server.
#[derive(Default)]
pub(crate) struct Replies {
    calls: Mutex<Calls>,
}

impl Replies {
    /// Notes that a call has arrived.
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

    /// Keeps the reply to a call.
    pub(crate) fn end(&self, id: CallId, reply: &[u8]) {
        if let Some(known) = self.calls.lock().replies.get_mut(&id) {
            *known = Some(reply.into());
        }
    }

    /// Forgets a call that the client has to repeat, so that it is executed then.
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
