//! What a server writes to its log about its clients: who, what, and how long.
//!
//! Invariants: clients decide how often such lines come, so of each [`Subject`] there are at most [`AT_ONCE`] at once and one more
//! each [`EVERY`]; how many were left out is said later. Text of a client is on one line and short.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use varve_wire::Request;
use varve_wire::request::{KINDS, Position};

/// So many lines of a subject may come at once.
const AT_ONCE: u32 = 40;
/// One more may come each time so long has passed.
const EVERY: Duration = Duration::from_millis(500);
/// The most characters of a client's text in a line.
const TEXT_MAX: usize = 300;

/// What a line is about. A flood of lines about one subject leaves out none about others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// Sessions begin, are away, come back and end.
    Sessions,
    /// Requests that took long.
    Slow,
    /// Connections and clients that are not let in.
    Refused,
    /// Messages that make no sense.
    Broken,
    /// Clients that do not drop in time what they have cached.
    Recalls,
}

const SUBJECTS: [(Subject, &str); 5] = [
    (Subject::Sessions, "sessions"),
    (Subject::Slow, "slow requests"),
    (Subject::Refused, "clients that are not let in"),
    (Subject::Broken, "messages that make no sense"),
    (Subject::Recalls, "clients that keep what is recalled"),
];

/// How many lines may come.
struct Allowance {
    lines: u32,
    since: Instant,
    left_out: u64,
}

impl Allowance {
    fn new(now: Instant) -> Allowance {
        Allowance { lines: AT_ONCE, since: now, left_out: 0 }
    }

    /// Takes a line, if there may be one.
    fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.since);
        let more = u32::try_from(passed.as_millis() / EVERY.as_millis()).unwrap_or(u32::MAX);
        if more > 0 {
            self.lines = self.lines.saturating_add(more).min(AT_ONCE);
            self.since = now;
        }
        let may = self.lines > 0;
        self.lines -= u32::from(may);
        may
    }

    /// Returns how many lines were left out, if there may be a line that says so.
    fn missing(&mut self, now: Instant) -> Option<u64> {
        (self.left_out > 0 && self.take(now)).then(|| std::mem::take(&mut self.left_out))
    }
}

/// The lines of a server about its clients.
pub(crate) struct Journal([Mutex<Allowance>; SUBJECTS.len()]);

impl Journal {
    pub(crate) fn new() -> Journal {
        let now = Instant::now();
        Journal(SUBJECTS.map(|_| Mutex::new(Allowance::new(now))))
    }

    /// Writes a line, unless there were too many about its subject.
    pub(crate) fn write(&self, subject: Subject, line: impl FnOnce() -> String) {
        let mut allowance = self.0[subject as usize].lock();
        let may = allowance.take(Instant::now());
        allowance.left_out += u64::from(!may);
        drop(allowance);
        if may {
            let level = match subject {
                Subject::Sessions => log::Level::Info,
                _ => log::Level::Warn,
            };
            log::log!(level, "{}", line());
        }
    }

    /// Says which lines were left out.
    pub(crate) fn say_what_is_missing(&self) {
        for ((_, name), allowance) in SUBJECTS.iter().zip(&self.0) {
            let missing = allowance.lock().missing(Instant::now());
            if let Some(missing) = missing {
                log::warn!("{missing} more messages about {name} were left out");
            }
        }
    }
}

/// A text of a client on one line, cut to a length.
pub(crate) fn on_one_line(text: &str) -> String {
    let mut line = String::new();
    for (at, letter) in text.chars().enumerate() {
        if at == TEXT_MAX {
            line.push_str("...");
            break;
        }
        match letter.is_control() {
            true => line.extend(letter.escape_default()),
            false => line.push(letter),
        }
    }
    line
}

/// A request of a kind ([`varve_wire::request::KINDS`]): its name, as counts have it, the inode, and a name in it.
pub(crate) fn described(kind: usize, request: &Request<'_>) -> String {
    let kind = KINDS[kind];
    match *request {
        Request::Lookup { parent: node, name }
        | Request::Mknod { parent: node, name, .. }
        | Request::Mkdir { parent: node, name, .. }
        | Request::Symlink { parent: node, name, .. }
        | Request::Link { parent: node, name, .. }
        | Request::Unlink { parent: node, name }
        | Request::Rmdir { parent: node, name }
        | Request::Rename { parent: node, name, .. }
        | Request::Create { parent: node, name, .. }
        | Request::Getxattr { node, name }
        | Request::Setxattr { node, name, .. }
        | Request::Removexattr { node, name }
        | Request::CloneTree { parent: node, name, .. } => {
            let name = on_one_line(&String::from_utf8_lossy(name));
            format!("{kind} `{name}` of inode {}", node.ino)
        }
        Request::LookupParent { dir: node }
        | Request::Getattr { node }
        | Request::Setattr { node, .. }
        | Request::Readlink { node }
        | Request::Tmpfile { parent: node, .. }
        | Request::Open { node, .. }
        | Request::Release { node, .. }
        | Request::Fsync { node, .. }
        | Request::FsyncDir { node }
        | Request::Readdir { node, .. }
        | Request::Access { node, .. }
        | Request::Fallocate { node, .. }
        | Request::CopyRange { from: Position { node, .. }, .. }
        | Request::FileFlags { node }
        | Request::SetFileFlags { node, .. }
        | Request::Lseek { node, .. }
        | Request::Listxattr { node }
        | Request::Usage { node }
        | Request::SetLimits { node, .. }
        | Request::Quotas { node, .. } => format!("{kind} of inode {}", node.ino),
        Request::Read { node, offset, length, .. } => {
            format!("{kind} of {length} bytes at {offset} of inode {}", node.ino)
        }
        Request::Write { node, offset, .. } => {
            format!("{kind} at {offset} of inode {}", node.ino)
        }
        Request::LookupInode { ino } => format!("{kind} of inode {ino}"),
        Request::Sync
        | Request::Statfs
        | Request::Status
        | Request::Ask { .. }
        | Request::AskRest { .. }
        | Request::Recovered => kind.to_owned(),
    }
}

/// A time for people.
pub(crate) fn time(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0 => format!("{ms} ms"),
        1..60 => format!("{}.{} s", seconds, ms % 1000 / 100),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_lines_is_left_out_and_counted() {
        let begin = Instant::now();
        let mut allowance = Allowance::new(begin);
        let mut write = |at: Instant| {
            let may = allowance.take(at);
            allowance.left_out += u64::from(!may);
            may
        };
        assert_eq!((0..1000).filter(|_| write(begin)).count(), AT_ONCE as usize);
        let later = begin + 3 * EVERY;
        assert_eq!((0..1000).filter(|_| write(later)).count(), 3);
        assert_eq!(allowance.missing(later), None, "that would be one more line");
        assert_eq!(allowance.missing(later + EVERY), Some(1000 - 40 + 1000 - 3));
        assert_eq!(allowance.missing(later + 2 * EVERY), None, "it was said");
        let much_later = later + 1_000_000 * EVERY;
        assert_eq!((0..1000).filter(|_| allowance.take(much_later)).count(), AT_ONCE as usize);
    }

    #[test]
    fn subjects_have_places_of_their_own() {
        assert!(SUBJECTS.iter().enumerate().all(|(at, (subject, _))| *subject as usize == at));
    }

    #[test]
    fn a_client_writes_no_lines_of_its_own() {
        assert_eq!(on_one_line("a\nvarve: b\x1b[2J"), "a\\nvarve: b\\u{1b}[2J");
        assert_eq!(on_one_line(&"x".repeat(5000)).len(), TEXT_MAX + 3);
    }

    #[test]
    fn times_are_short() {
        assert_eq!(
            [0, 999, 1_250, 61_000, 7_260_000].map(time),
            ["0 ms", "999 ms", "1.2 s", "1 min 1 s", "2 h 1 min"]
        );
    }
}
