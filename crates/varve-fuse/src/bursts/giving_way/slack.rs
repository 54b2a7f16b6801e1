//! Finds out whether the machine has CPU time to spare.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use super::times::read;

/// The span over which idle time is measured. The kernel counts it in hundredths of a second.
const SLACK_TIME: Duration = Duration::from_millis(200);

/// The idle time of all CPUs together. A CPU that waits for a device counts as idle.
#[derive(Debug)]
pub(super) struct Slack {
    /// `None` if the times cannot be read: then there is no slack.
    stat: Option<File>,
    spent: Spent,
    looked_at: Instant,
    is_there: bool,
}

/// How CPUs have spent their time since the machine began, in the kernel's ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Spent {
    idle: u64,
    all: u64,
}

impl Slack {
    /// Begins to measure. Reports slack until [`SLACK_TIME`] has passed, if the times can be read.
    pub(super) fn new() -> Slack {
        let stat = File::open("/proc/stat").ok();
        let spent = stat.as_ref().and_then(|stat| Spent::read(stat).ok());
        Slack {
            is_there: spent.is_some(),
            spent: spent.unwrap_or_default(),
            stat,
            looked_at: Instant::now(),
        }
    }

    /// Returns whether there was slack in the last span between looks of [`SLACK_TIME`] or longer.
    pub(super) fn look(&mut self, now: Instant) -> bool {
        let Some(stat) = &self.stat else { return false };
        if now.duration_since(self.looked_at) >= SLACK_TIME {
            let spent = Spent::read(stat);
            self.is_there = spent.as_ref().is_ok_and(|spent| spent.is_slack_since(self.spent));
            (self.spent, self.looked_at) = (spent.unwrap_or(self.spent), now);
        }
        self.is_there
    }
}

impl Spent {
    /// Returns whether a tenth of the time of all CPUs was idle.
    fn is_slack_since(self, before: Spent) -> bool {
        10 * self.idle.saturating_sub(before.idle) > self.all.saturating_sub(before.all)
    }

    fn read(stat: &File) -> io::Result<Spent> {
        Spent::parse(&read::<256>(stat)?).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Parses the first line: `cpu`, then user, nice, system, idle, iowait, irq, softirq, steal. The numbers after
    /// these are part of user and nice already (proc(5)).
    fn parse(stat: &[u8]) -> Option<Spent> {
        let line = stat.split(|&byte| byte == b'\n').next()?;
        let numbers = std::str::from_utf8(line).ok()?.strip_prefix("cpu ")?;
        let mut spent = Spent::default();
        let mut count = 0;
        for (place, number) in numbers.split_ascii_whitespace().take(8).enumerate() {
            let number: u64 = number.parse().ok()?;
            spent.all += number;
            if matches!(place, 3 | 4) {
                spent.idle += number;
            }
            count += 1;
        }
        (count >= 5).then_some(spent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_of_the_time_is_slack() {
        let spent = |idle, all| Spent { idle, all };
        assert!(spent(1005, 2040).is_slack_since(spent(1000, 2000)));
        assert!(!spent(1004, 2040).is_slack_since(spent(1000, 2000)));
        assert!(!spent(1000, 2000).is_slack_since(spent(1000, 2000)));
    }

    #[test]
    fn the_first_line_is_understood() {
        let spent = |text: &[u8]| Spent::parse(text);
        let line = b"cpu  10 20 30 400 50 6 7 8 9 9\ncpu0 1 1 1 1\n";
        assert_eq!(spent(line), Some(Spent { idle: 450, all: 531 }));
        assert_eq!(spent(b"cpu  10 20 30"), None);
        assert_eq!(spent(b"cpu0 1 1 1 1 1\n"), None);
    }

    /// Its time passes on this machine, too.
    #[test]
    fn the_machine_tells_its_time() {
        let mut slack = Slack::new();
        assert!(slack.is_there);
        let before = slack.spent;
        varve_testkit::eventually("time passes", || {
            std::thread::sleep(SLACK_TIME);
            slack.look(Instant::now());
            slack.spent.all > before.all
        });
    }
}
