//! Serializable transactions: branches of the store that lock what they read and write until they end.
//!
//! 1. A read locks its key, a scan its prefix or key space, shared; a write locks its keys exclusively ([`locks`]).
//!    What a read finds is the newest state of the store, not that of the beginning: nobody changes it until the end.
//! 2. A write to the store itself, and the commit of any other branch, waits while a lock is in the way. While there
//!    is no serializable transaction that costs one look at a number.
//!    A change that commutes asks for no more than a read ([`Batch::put_commuting`](crate::Batch::put_commuting)). A commit by reference, too large to be
//!    looked through while writers wait, takes locks for as long as it takes, if there are others, and takes them anew if it
//!    loses them; where it does so again and again, it is refused as one that meets locks.
//! 3. A wait ends with the lock, with the choice of a victim among those that wait in a circle, or after the time
//!    that the transaction gave; or calls are refused and wait elsewhere ([`LockOptions::wait`](terms::LockOptions::wait)). Locks go when the branch
//!    has ended, its commit included, or when it gives way. A commit that has more to do than to write rows releases them
//!    when that is done ([`crate::KeptLocks`]).
//!
//! Invariant: a writer asks for locks and publishes its rows under the writer's lock, and a transaction that was granted
//! a lock takes the writer's lock once before it reads, so that no write is on its way past a lock.
//!
//! Source: KVFS (thesis 3.3), strong strict two-phase locking.
//!
//! [`manager`] has the locks of a store; [`locking`] asks for them and waits; [`held`] remembers what a transaction has.

mod granules;
pub(crate) mod held;
pub(crate) mod locking;
pub(crate) mod locks;
pub(crate) mod manager;
pub(crate) mod terms;
