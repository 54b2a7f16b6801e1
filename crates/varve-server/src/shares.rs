//! Shares: how many connections and sessions the clients of one address may have.
//!
//! An address gets one more as long as it has fewer than are free. So one address has at most half of all, two have at
//! most three quarters, and there is always one for an address that has none.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

#[derive(Default)]
struct Taken {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// What addresses share.
pub(crate) struct Shares {
    taken: Mutex<Taken>,
    max: usize,
}

/// One of what is shared, until it is dropped.
pub(crate) struct Share {
    shares: Arc<Shares>,
    address: IpAddr,
}

/// Returns what counts as one address: an IPv6 network of one site is one.
pub(crate) fn same_site(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

impl Shares {
    pub(crate) fn new(max: usize) -> Arc<Shares> {
        Arc::new(Shares { taken: Mutex::default(), max })
    }

    /// Takes one for `address`; `None` if the address has as many as it may have.
    pub(crate) fn take(self: &Arc<Self>, address: IpAddr) -> Option<Share> {
        let address = same_site(address);
        let mut taken = self.taken.lock();
        let free = self.max - taken.all;
        if taken.by_address.get(&address).copied().unwrap_or(0) >= free {
            return None;
        }
        taken.all += 1;
        *taken.by_address.entry(address).or_default() += 1;
        Some(Share { shares: Arc::clone(self), address })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.shares.taken.lock();
        taken.all -= 1;
        if let Some(count) = taken.by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                taken.by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(shares: &Arc<Shares>, address: &str) -> Vec<Share> {
        let address: IpAddr = address.parse().unwrap();
        std::iter::from_fn(|| shares.take(address)).collect()
    }

    #[test]
    fn one_address_leaves_half_to_others() {
        let shares = Shares::new(1000);
        let first = take_all(&shares, "10.0.0.1");
        assert_eq!(first.len(), 500);
        assert_eq!(take_all(&shares, "::ffff:10.0.0.1").len(), 0, "the same one in IPv6");
        let second = take_all(&shares, "fd00:0:0:1::1");
        assert_eq!(second.len(), 250);
        assert_eq!(take_all(&shares, "fd00:0:0:1:5::9").len(), 0, "the same site");
        assert!(shares.take("10.0.0.2".parse().unwrap()).is_some());
        drop(first);
        assert_eq!(take_all(&shares, "10.0.0.2").len(), 375);
        drop(second);
        let taken = shares.taken.lock();
        assert_eq!((taken.all, taken.by_address.len()), (0, 0), "nothing is remembered");
    }
}
