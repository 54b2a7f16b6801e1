//! What transactions that lock and their callers say to each other: options, refusals and the reasons for them.

use std::time::Duration;

use varve_types::BranchId;

/// A request that locks are in the way of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The number by which it counts as waiting until it is given up ([`Db::stop_waiting`](crate::Db::stop_waiting)); 0 if it does not.
    pub wait: u64,
    /// The branches that have locked what it asks for.
    pub holders: Vec<BranchId>,
    /// How often locks had gone when it was refused ([`Db::wait_for_locks`](crate::Db::wait_for_locks)).
    pub released: u64,
}

/// Why a transaction lost its locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GaveWay {
    /// It waited for others that waited for it, this one among them.
    Deadlock(BranchId),
    /// It begins again rather than wait, and this one was in its way.
    Restart(BranchId),
    /// A change outside of transactions waited for it long enough.
    Overruled,
    /// The commit of this one had to write what it had locked.
    Committed(BranchId),
    /// There is no such transaction.
    Ended,
}

impl GaveWay {
    /// Why, as the second half of a sentence.
    pub(crate) fn reason(self) -> String {
        match self {
            GaveWay::Deadlock(other) => format!("it and transaction {other} waited for each other"),
            GaveWay::Restart(other) => {
                format!("transaction {other} had locked what it asked for")
            }
            GaveWay::Overruled => "a change outside of it had waited for its locks".to_owned(),
            GaveWay::Committed(other) => {
                format!("the commit of transaction {other} had to write what it had locked")
            }
            GaveWay::Ended => "it has ended".to_owned(),
        }
    }
}

/// How a serializable transaction treats others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockOptions {
    /// The longest wait for one lock within a call; `None`: a call is refused instead, its maker waits elsewhere
    /// ([`Db::wait_for_locks`](crate::Db::wait_for_locks)), and makes it again or gives it up ([`Db::stop_waiting`](crate::Db::stop_waiting)). Until then it counts as
    /// waiting.
    pub wait: Option<Duration>,
    /// Of transactions that wait for each other the one with the largest number gives way; of equal ones the youngest.
    pub give_way: u64,
    /// It loses its locks to a transaction that has locked what it asks for, rather than wait.
    pub restarts: bool,
}

impl Default for LockOptions {
    fn default() -> LockOptions {
        LockOptions { wait: Some(Duration::from_secs(10)), give_way: 0, restarts: false }
    }
}
