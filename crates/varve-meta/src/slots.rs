//! Slots: requests that arrive again are not executed again.
//!
//! A client numbers the requests of a slot upwards and sends the next one only after it has the answer to the one
//! before. So a session needs to remember one answer for each slot. A request that arrives again while it is being
//! executed gets its answer when it is there; the client may have another connection by then.
//!
//! Source: NFS 4.1 (RFC 8881, section 2.10.6). CLUSTER.md, section 5.3.

/// What is known of the latest request of a slot.
#[derive(Clone, Debug, Default)]
enum State {
    /// It is being executed.
    UnderWay,
    /// It had an answer that is not kept: the request can be executed again.
    #[default]
    Answered,
    /// It had this answer.
    Kept(Vec<u8>),
    /// It was not executed.
    Dropped,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    number: u64,
    state: State,
}

impl Slot {
    fn is_busy(&self) -> bool {
        matches!(self.state, State::UnderWay)
    }
}

/// What to do about a request that arrives.
#[derive(Debug, PartialEq, Eq)]
pub enum Begun<'a> {
    /// Execute it.
    New,
    /// Execute it, unless the server before has done so: the session has executed no earlier request of its slot that it
    /// knows, or has dropped this one.
    First,
    /// It is being executed; its answer will be sent.
    UnderWay,
    /// It was executed: send this answer.
    Again(&'a [u8]),
    /// A later request has taken its slot, so that nobody waits for an answer; or there is no such slot.
    Superfluous,
}

/// The slots of one session.
#[derive(Debug)]
pub struct Slots {
    slots: Vec<Slot>,
    slots_max: u32,
}

impl Slots {
    /// `slots_max` slots, which take memory when they are first used.
    pub fn new(slots_max: u32) -> Slots {
        Slots { slots: Vec::new(), slots_max }
    }

    /// A request arrives.
    pub fn begin(&mut self, slot: u32, number: u64) -> Begun<'_> {
        let at = slot as usize;
        if slot >= self.slots_max || number == 0 {
            return Begun::Superfluous;
        }
        if at >= self.slots.len() {
            self.slots.resize_with(at + 1, Slot::default);
        }
        let slot = &mut self.slots[at];
        if number < slot.number {
            return Begun::Superfluous;
        }
        if number > slot.number {
            // The client has the answer to the request before, or has given it up.
            let is_first = slot.number == 0;
            *slot = Slot { number, state: State::UnderWay };
            return if is_first { Begun::First } else { Begun::New };
        }
        match slot.state {
            State::UnderWay => Begun::UnderWay,
            State::Kept(ref answer) => Begun::Again(answer),
            State::Answered => {
                slot.state = State::UnderWay;
                Begun::New
            }
            State::Dropped => {
                slot.state = State::UnderWay;
                Begun::First
            }
        }
    }

    /// A request has this answer, which is kept if the request must not be executed again. Returns false if a later
    /// request has taken its slot.
    pub fn end(&mut self, slot: u32, number: u64, answer: Option<&[u8]>) -> bool {
        let slot = self.slots.get_mut(slot as usize).filter(|slot| slot.number == number);
        let Some(slot) = slot else { return false };
        slot.state = answer.map_or(State::Answered, |answer| State::Kept(answer.to_vec()));
        true
    }

    /// A request was not executed, and will not be unless it arrives again. Does nothing if a later request has taken its slot.
    pub fn drop_request(&mut self, slot: u32, number: u64) {
        let slot = self.slots.get_mut(slot as usize).filter(|slot| slot.number == number);
        if let Some(slot) = slot {
            slot.state = State::Dropped;
        }
    }

    /// Returns whether a request is being executed.
    pub fn is_busy(&self) -> bool {
        self.slots.iter().any(Slot::is_busy)
    }

    /// Returns how many requests are being executed.
    pub fn under_way(&self) -> usize {
        self.slots.iter().filter(|slot| slot.is_busy()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_executed_once() {
        let mut slots = Slots::new(4);
        assert_eq!(slots.begin(2, 1), Begun::First);
        assert_eq!(slots.begin(2, 1), Begun::UnderWay);
        assert!(slots.is_busy());
        assert_eq!(slots.under_way(), 1);
        assert!(slots.end(2, 1, Some(b"done")));
        assert_eq!(slots.begin(2, 1), Begun::Again(b"done"));
        assert_eq!(slots.begin(2, 2), Begun::New);
        assert_eq!(slots.begin(2, 1), Begun::Superfluous);
        assert!(!slots.end(2, 1, Some(b"late")));
        assert_eq!(slots.begin(2, 2), Begun::UnderWay, "an older answer changes nothing");
        assert!(slots.end(2, 2, None));
        assert_eq!(slots.begin(2, 2), Begun::New, "a read is executed again");
    }

    #[test]
    fn a_request_that_was_dropped_is_executed_when_it_arrives_again() {
        let mut slots = Slots::new(4);
        assert_eq!(slots.begin(0, 7), Begun::First);
        slots.drop_request(0, 7);
        assert!(!slots.is_busy());
        assert_eq!(slots.begin(0, 6), Begun::Superfluous, "an older one stays old");
        assert_eq!(slots.begin(0, 7), Begun::First, "the server before may have executed it");
        assert!(slots.end(0, 7, Some(b"done")));
        assert_eq!(slots.begin(0, 8), Begun::New);
        slots.drop_request(0, 7);
        assert_eq!(
            slots.begin(0, 8),
            Begun::UnderWay,
            "an older one that is dropped changes nothing"
        );
    }

    #[test]
    fn slots_that_do_not_exist_take_no_memory() {
        let mut slots = Slots::new(4);
        assert_eq!(slots.begin(4, 1), Begun::Superfluous);
        assert_eq!(slots.begin(u32::MAX, 1), Begun::Superfluous);
        assert_eq!(slots.begin(0, 0), Begun::Superfluous);
        assert!(slots.slots.is_empty());
    }
}
