//! Imports traces from the logs of other systems.
//!
//! | from | lines |
//! | --- | --- |
//! | [`Source::Hdfs`] | the audit log of an HDFS name node |
//! | [`Source::Nfs`] | a text dump of NFS calls and replies, as nfsdump writes it |
//! | [`Source::Strace`] | `strace -f -ttt -T -y -e trace=%file,%desc` |
//!
//! The importer counts and skips lines without an operation (output of other programs, calls without a path). A line
//! that looks like one of the format but cannot be parsed is an error with its number.

mod hdfs;
mod nfs;
mod paths;
mod strace;

use std::io::BufRead;

use crate::file::TraceError;
use crate::record::{Op, Record};

/// The kind of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The audit log of HDFS.
    Hdfs,
    /// A text dump of NFS calls and replies.
    Nfs,
    /// The output of strace.
    Strace,
}

/// The longest line that is read.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Why a line cannot be parsed.
struct BadLine(String);

/// Whether a line has an operation.
#[derive(PartialEq, Eq)]
enum Line {
    /// It is about an operation.
    Used,
    /// It is about something else.
    LeftOut,
}

/// Parses the lines of one log and appends the records of each, after records for the names that were not known
/// before.
trait Lines {
    fn line(&mut self, line: &str, records: &mut Vec<Record>) -> Result<Line, BadLine>;
}

/// The result of an import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Lines that were read.
    pub lines: u64,
    /// Operations that the lines contain.
    pub records: u64,
    /// Lines that were skipped.
    pub left_out: u64,
}

/// Reads a log to its end and passes its operations to `each`, in the order of the lines. Replaces bytes that are not
/// UTF-8.
pub fn import(
    source: Source,
    input: &mut dyn BufRead,
    each: &mut dyn FnMut(&Record) -> Result<(), TraceError>,
) -> Result<Imported, TraceError> {
    let mut lines: Box<dyn Lines> = match source {
        Source::Hdfs => Box::new(hdfs::Hdfs::default()),
        Source::Nfs => Box::new(nfs::Nfs::default()),
        Source::Strace => Box::new(strace::Strace::default()),
    };
    let (mut found, mut bytes, mut records) = (Imported::default(), Vec::new(), Vec::new());
    while std::io::Read::take(&mut *input, LINE_BYTES_MAX).read_until(b'\n', &mut bytes)? > 0 {
        found.lines += 1;
        let line = String::from_utf8_lossy(&bytes);
        let parsed = lines.line(line.trim_end_matches(['\n', '\r']), &mut records);
        let parsed =
            parsed.map_err(|BadLine(what)| TraceError::Line { line: found.lines, what })?;
        found.left_out += u64::from(parsed == Line::LeftOut);
        for record in records.drain(..) {
            each(&record)?;
            found.records += u64::from(record.op != Op::Known);
        }
        bytes.clear();
    }
    Ok(found)
}

/// Returns a number for the name of a client.
fn client(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Returns the microseconds of `seconds`, which has up to six digits after a point.
fn microseconds(seconds: &str) -> Option<u64> {
    let (whole, part) = seconds.split_once('.').unwrap_or((seconds, ""));
    let digits: String = part.chars().chain("000000".chars()).take(6).collect();
    whole.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(digits.parse().ok()?)
}

/// Returns the operations of a log.
#[cfg(test)]
fn all(source: Source, log: &str) -> Result<(Vec<Record>, Imported), TraceError> {
    let mut records = Vec::new();
    let imported = import(source, &mut log.as_bytes(), &mut |record| {
        if record.op != Op::Known {
            records.push(record.clone());
        }
        Ok(())
    })?;
    Ok((records, imported))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_up_to_six_digits_behind_the_point() {
        assert_eq!(microseconds("12.5"), Some(12_500_000));
        assert_eq!(microseconds("12.1234567"), Some(12_123_456));
        assert_eq!(
            (microseconds("12"), microseconds("a"), microseconds("")),
            (Some(12_000_000), None, None)
        );
    }

    #[test]
    fn whatever_is_no_log_is_left_out_or_refused() {
        for source in [Source::Hdfs, Source::Nfs, Source::Strace] {
            let log = "\n\u{fffd}\0\n= =\n(((\n\"\"\"\n1 2 3 4 5 6 7 8 9\n";
            let imported =
                all(source, log).map(|(records, imported)| (records.len(), imported.lines));
            assert!(imported.is_err() || imported.is_ok_and(|found| found == (0, 6)), "{source:?}");
        }
    }
}
