//! Points in time.

/// A point in time: seconds since 1970-01-01 00:00 UTC, which may be negative, and nanoseconds after that second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    secs: i64,
    nanos: u32,
}

impl Timestamp {
    /// 1970-01-01 00:00 UTC.
    pub const EPOCH: Timestamp = Timestamp { secs: 0, nanos: 0 };

    /// Returns the time `nanos` nanoseconds after `secs`; `None` if `nanos` is a second or more.
    pub const fn new(secs: i64, nanos: u32) -> Option<Timestamp> {
        if nanos < 1_000_000_000 { Some(Timestamp { secs, nanos }) } else { None }
    }

    /// Returns the whole seconds since 1970, rounded down.
    pub const fn secs(self) -> i64 {
        self.secs
    }

    /// Returns the nanoseconds after [`Timestamp::secs`], 0 to 999,999,999.
    pub const fn nanos(self) -> u32 {
        self.nanos
    }
}
