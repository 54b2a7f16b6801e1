//! Maps the times of a run to the steps in which a clock showed them.

use varve_env::sim::START_SECS;
use varve_types::Timestamp;

/// When the steps of a run ended, on the clock of the simulated machine that made them.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    /// The end of each step; at first that of step 0, which is all that comes before the run.
    ends: Vec<Timestamp>,
}

impl Clock {
    /// Returns the clock of a run that begins `now`.
    pub fn begin(now: Timestamp) -> Clock {
        Clock { ends: vec![now] }
    }

    /// One more step has ended `now`, before the next begins.
    pub fn step_ended(&mut self, now: Timestamp) {
        self.ends.push(now);
    }

    /// Steps that have ended.
    pub fn steps(&self) -> usize {
        self.ends.len().saturating_sub(1)
    }

    /// In which step the clock showed `time`; that under way is the last, and has no end. `None` of a time before the machine
    /// was started, which only a call can have set.
    pub(super) fn step_of(&self, time: Timestamp) -> Option<usize> {
        (time.secs() >= START_SECS).then(|| self.ends.partition_point(|end| *end < time))
    }

    pub(super) fn steps_of(&self, times: &[Timestamp]) -> Vec<Option<usize>> {
        times.iter().map(|time| self.step_of(*time)).collect()
    }
}
