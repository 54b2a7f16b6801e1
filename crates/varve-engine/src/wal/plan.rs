//! Decides, after a crash, how much of each log counts: a pure function of what stands in the logs.
//!
//! 1. The chain: from the newest log with a header back to the oldest, each header naming the log before
//!    it. Other logs are left over from a decision made at an earlier crash, or were never synced.
//! 2. The walk, from the oldest log of the chain on. A log counts up to the length that the next log's
//!    header gives it, or up to its last valid record if it is the last one.
//!
//! Where a log breaks off before that:
//!
//! - If a valid record, of this log or a later one, proves that the lost part was durable, it is damage.
//! - Otherwise it is a torn tail: nothing after it was ever promised. It is cut, and later logs, which
//!   were never synced, are dropped.
//!
//! After a power cut (another boot id) the walk also ends before the first batch that depends on data
//! outside the store and is covered by no barrier: those data may be lost. A barrier covers what was
//! written before it, and counts where nothing before it is missing: a batch that let go of data it covers may be among
//! that, and the data are gone. It says nothing of later logs, where sequence numbers that were cut come again. What tables
//! hold was covered before they did, wherever the barrier is by now.
//!
//! Without a power cut the page cache kept everything, and only the very last record can be torn, by the process' death. Where a valid
//! record or log follows a bad record all the same, and nothing proves that it was durable, the storage has lost its power alone, without
//! another boot id: then all is decided as after a power cut.

use varve_types::{FileNo, SeqNo};

use super::scan::LogScan;

/// How much of the logs counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The logs to replay.
    pub(crate) keep: Vec<KeptLog>,
    /// The logs to remove.
    pub(crate) drop: Vec<FileNo>,
}

/// A log to replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptLog {
    pub(crate) no: FileNo,
    /// How many bytes of it.
    pub(crate) len: u64,
    /// The largest sequence number whose outside data a barrier covers.
    pub(crate) covered: SeqNo,
}

/// Why the logs cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    /// The log.
    pub(crate) no: FileNo,
    /// Where in it.
    pub(crate) offset: u64,
    /// What is wrong.
    pub(crate) detail: String,
}

/// Logs that follow each other, each with the bytes of it that count.
type Unbroken<'a> = Vec<(&'a LogScan, u64)>;

/// The plan for `scans`, sorted by number, the first being the oldest log that is still needed. Tables hold all writes up to
/// `tables_seq`.
pub(crate) fn plan(scans: &[LogScan], tables_seq: SeqNo, boot_id: u128) -> Result<Plan, Damage> {
    let (unbroken, has_lost) = unbroken(scans)?;
    if has_lost && scans.iter().any(|scan| same_boot(scan, boot_id)) {
        log::warn!("the log has gaps: its storage has lost what was not synced");
    }
    let mut plan = Plan::default();
    for (i, (scan, len)) in unbroken.iter().enumerate() {
        let covered = covered(&unbroken[i..]);
        let is_in_memory = same_boot(scan, boot_id) && !has_lost;
        let uncovered = first_uncovered(scan, *len, covered.max(tables_seq), is_in_memory);
        plan.keep.push(KeptLog { no: scan.no, len: uncovered.unwrap_or(*len), covered });
        if uncovered.is_some() {
            break;
        }
    }
    let kept = |no: FileNo| plan.keep.iter().any(|log| log.no == no);
    plan.drop = scans.iter().map(|scan| scan.no).filter(|no| !kept(*no)).collect();
    Ok(plan)
}

/// The logs of the chain up to where it breaks off, each with the bytes of it that stand before that; and whether it breaks off as no death
/// of a process leaves it.
fn unbroken(scans: &[LogScan]) -> Result<(Unbroken<'_>, bool), Damage> {
    let chain = chain(scans)?;
    let mut unbroken = Vec::with_capacity(chain.len());
    let mut has_lost = false;
    for (i, scan) in chain.iter().copied().enumerate() {
        let later: Vec<&LogScan> = scans.iter().filter(|log| log.no > scan.no).collect();
        let limit = chain.get(i + 1).and_then(|next| final_len(next, scan.no));
        let (len, whole) = match limit {
            Some(limit) if scan.good_len >= limit => (limit, true),
            Some(_) => (scan.good_len, false),
            None => (scan.good_len, scan.bad.is_none()),
        };
        if !whole {
            refuse_damage(scan, &later)?;
            has_lost = scan.valid_after_bad || later.iter().any(|log| log.header.is_some());
        }
        if !scan.boundaries.contains(&len) {
            let detail = format!("a record reaches beyond the log's final length {len}");
            return Err(Damage { no: scan.no, offset: len, detail });
        }
        unbroken.push((scan, len));
        if !whole {
            break;
        }
    }
    Ok((unbroken, has_lost))
}

/// The largest sequence number whose outside data a barrier of these logs covers.
fn covered(logs: &[(&LogScan, u64)]) -> SeqNo {
    let barriers = logs.iter().flat_map(|(scan, len)| {
        scan.barriers.iter().filter(|barrier| barrier.offset < *len).map(|barrier| barrier.covered)
    });
    barriers.max().unwrap_or_default()
}

/// The logs that follow each other, oldest first, ending with the newest whose predecessors are all there.
fn chain(scans: &[LogScan]) -> Result<Vec<&LogScan>, Damage> {
    let Some(oldest) = scans.first() else { return Ok(Vec::new()) };
    for newest in scans.iter().rev() {
        if newest.header.is_none() && newest.no != oldest.no {
            if newest.durable_len > 0 {
                let detail = "the header of a log that was synced is lost".to_owned();
                return Err(Damage { no: newest.no, offset: 0, detail });
            }
            continue;
        }
        let mut chain = vec![newest];
        let mut last = newest;
        while last.no != oldest.no {
            let previous = last.header.as_ref().and_then(|header| header.previous);
            let Some(previous) = previous.and_then(|p| scans.iter().find(|log| log.no == p.file))
            else {
                break;
            };
            chain.push(previous);
            last = previous;
        }
        if last.no == oldest.no {
            chain.reverse();
            return Ok(chain);
        }
        if let Some(synced) = chain.iter().find(|log| log.durable_len > 0) {
            let missing = last.header.as_ref().and_then(|header| header.previous);
            let no = missing.map_or(last.no, |previous| previous.file);
            let detail = format!("the later log {} was synced, but this one is missing", synced.no);
            return Err(Damage { no, offset: 0, detail });
        }
    }
    Ok(vec![oldest])
}

/// The length that `next`'s header gives to the log `no`.
fn final_len(next: &LogScan, no: FileNo) -> Option<u64> {
    let previous = next.header.as_ref()?.previous?;
    (previous.file == no).then_some(previous.final_len)
}

/// Fails if what `scan` lacks at its end was durable.
fn refuse_damage(scan: &LogScan, later: &[&LogScan]) -> Result<(), Damage> {
    let lost = scan.good_len;
    let reason = if scan.durable_len > lost {
        format!("{} bytes of this log were synced", scan.durable_len)
    } else if let Some(log) = later.iter().find(|log| log.durable_len > 0) {
        format!("the later log {} was synced", log.no)
    } else {
        return Ok(());
    };
    let found =
        scan.bad.as_ref().map_or("the log ends here".to_owned(), |bad| bad.problem.to_string());
    Err(Damage { no: scan.no, offset: lost, detail: format!("{found}; {reason}") })
}

/// Whether a log was written since the machine started.
pub(super) fn same_boot(scan: &LogScan, boot_id: u128) -> bool {
    scan.header.as_ref().is_some_and(|header| header.boot_id == boot_id)
}

/// Where the first batch stands, before `kept`, whose external data may be lost.
fn first_uncovered(scan: &LogScan, kept: u64, covered: SeqNo, is_in_memory: bool) -> Option<u64> {
    if is_in_memory {
        return None;
    }
    scan.externals
        .iter()
        .find(|batch| batch.offset < kept && batch.last_seq > covered)
        .map(|batch| batch.offset)
}

#[cfg(test)]
mod tests {
    use varve_format::log::{LogHeader, LogKind, PreviousLog};
    use varve_format::{FormatError, Problem};

    use super::*;
    use crate::wal::scan::{Barrier, ExternalBatch};

    const BOOT: u128 = 7;

    fn log(no: u64, previous: Option<(u64, u64)>, good_len: u64) -> LogScan {
        let previous =
            previous.map(|(file, final_len)| PreviousLog { file: FileNo::new(file), final_len });
        let header = LogHeader {
            kind: LogKind::Wal,
            boot_id: 1,
            first_seq: SeqNo::new(1),
            previous,
            salt: 0,
        };
        LogScan {
            no: FileNo::new(no),
            header: Some(header),
            file_len: good_len,
            good_len,
            bad: None,
            valid_after_bad: false,
            durable_len: 0,
            externals: Vec::new(),
            barriers: Vec::new(),
            boundaries: (0..=good_len).step_by(8).collect(),
        }
    }

    fn bad(mut scan: LogScan) -> LogScan {
        scan.bad = Some(FormatError::new(scan.good_len, Problem::Varint));
        scan.file_len += 100;
        scan
    }

    fn keep(scans: &[LogScan]) -> Vec<(u64, u64)> {
        keep_after(0, scans)
    }

    fn keep_after(tables_seq: u64, scans: &[LogScan]) -> Vec<(u64, u64)> {
        let plan = plan(scans, SeqNo::new(tables_seq), BOOT).unwrap();
        assert_eq!(plan.keep.len() + plan.drop.len(), scans.len());
        plan.keep.iter().map(|log| (log.no.get(), log.len)).collect()
    }

    fn barrier(offset: u64, covered: u64) -> Barrier {
        Barrier { offset, covered: SeqNo::new(covered) }
    }

    #[test]
    fn whole_logs_are_kept() {
        assert_eq!(keep(&[]), []);
        assert_eq!(keep(&[log(3, None, 80), log(5, Some((3, 80)), 40)]), [(3, 80), (5, 40)]);
    }

    #[test]
    fn a_torn_tail_is_cut() {
        assert_eq!(keep(&[bad(log(3, None, 80))]), [(3, 80)]);
        let mut nothing = bad(log(3, None, 0));
        nothing.header = None;
        assert_eq!(keep(&[nothing]), [(3, 0)]);
    }

    #[test]
    fn a_later_log_goes_with_the_tail_before_it() {
        let logs = [log(3, None, 80), log(5, Some((3, 96)), 40), log(6, Some((5, 40)), 16)];
        assert_eq!(keep(&logs), [(3, 80)]);
        assert_eq!(keep(&[log(3, None, 80), log(6, Some((5, 40)), 16)]), [(3, 80)]);
    }

    #[test]
    fn what_was_cut_before_stays_cut() {
        let logs = [bad(log(3, None, 80)), log(5, Some((3, 64)), 40)];
        assert_eq!(keep(&logs), [(3, 64), (5, 40)]);
    }

    #[test]
    fn logs_outside_of_the_chain_were_dropped_before() {
        let mut dropped = log(5, Some((3, 96)), 40);
        dropped.barriers = vec![barrier(32, 30)];
        let mut first = bad(log(3, None, 80));
        first.externals = vec![ExternalBatch { offset: 40, last_seq: SeqNo::new(30) }];
        let mut next = log(7, Some((3, 80)), 24);
        assert_eq!(keep(&[first.clone(), dropped.clone(), next.clone()]), [(3, 40)]);
        next.barriers = vec![barrier(16, 30)];
        assert_eq!(keep(&[first.clone(), dropped.clone(), next]), [(3, 80), (7, 24)]);
        let mut headless = bad(log(7, None, 0));
        headless.header = None;
        assert_eq!(keep(&[first.clone(), dropped, headless.clone()]), [(3, 40)]);
        headless.durable_len = 8;
        assert_eq!(plan(&[first, headless], SeqNo::ZERO, BOOT).unwrap_err().no.get(), 7);
    }

    /// Sequence numbers that were cut come again; the barrier before the cut does not speak of them.
    #[test]
    fn a_barrier_does_not_cover_later_logs() {
        let mut torn = bad(log(3, None, 80));
        torn.barriers = vec![barrier(72, 30)];
        let mut next = log(5, Some((3, 80)), 64);
        next.externals = vec![ExternalBatch { offset: 40, last_seq: SeqNo::new(20) }];
        assert_eq!(keep(&[torn, next]), [(3, 80), (5, 40)]);
    }

    /// What lets go of the data may stand between the batch that needs them and the barrier.
    #[test]
    fn a_barrier_covers_nothing_before_a_gap() {
        let mut torn = bad(log(3, None, 80));
        torn.externals = vec![ExternalBatch { offset: 40, last_seq: SeqNo::new(30) }];
        torn.valid_after_bad = true;
        let mut next = log(5, Some((3, 96)), 64);
        next.barriers = vec![barrier(24, 30)];
        assert_eq!(keep(&[torn.clone(), next.clone()]), [(3, 40)]);
        torn.good_len = 96;
        torn.boundaries.extend([88, 96]);
        assert_eq!(keep(&[torn.clone(), next]), [(3, 96), (5, 64)]);
        let mut cut = log(5, Some((3, 72)), 64);
        torn.barriers = vec![barrier(72, 30)];
        assert_eq!(keep(&[torn.clone(), cut.clone()]), [(3, 40)]);
        cut.barriers = vec![barrier(24, 30)];
        assert_eq!(keep(&[torn, cut]), [(3, 72), (5, 64)]);
    }

    #[test]
    fn a_lost_part_that_was_synced_is_damage() {
        let mut first = bad(log(3, None, 80));
        first.durable_len = 88;
        assert_eq!(plan(&[first], SeqNo::ZERO, BOOT).unwrap_err().offset, 80);
        let mut later = log(5, Some((3, 96)), 40);
        later.durable_len = 8;
        let damage = plan(&[log(3, None, 80), later.clone()], SeqNo::ZERO, BOOT).unwrap_err();
        assert_eq!((damage.no.get(), damage.offset), (3, 80));
        let damage = plan(&[log(2, None, 80), later], SeqNo::ZERO, BOOT).unwrap_err();
        assert_eq!((damage.no.get(), damage.offset), (3, 0));
    }

    #[test]
    fn the_death_of_a_process_tears_the_last_record_alone() {
        let mut first = bad(log(3, None, 80));
        first.header.as_mut().unwrap().boot_id = BOOT;
        first.externals = vec![ExternalBatch { offset: 40, last_seq: SeqNo::new(10) }];
        assert_eq!(keep(std::slice::from_ref(&first)), [(3, 80)]);
    }

    /// The boot id was taken for proof that the storage had kept everything: one that had lost its power alone was not mounted again.
    #[test]
    fn without_a_restart_a_gap_says_that_the_storage_lost_its_power() {
        let mut first = bad(log(3, None, 80));
        first.header.as_mut().unwrap().boot_id = BOOT;
        let mut torn = first.clone();
        torn.valid_after_bad = true;
        assert_eq!(keep(std::slice::from_ref(&torn)), [(3, 80)]);
        assert_eq!(keep(&[first, log(5, Some((3, 96)), 40)]), [(3, 80)]);
        torn.externals = vec![ExternalBatch { offset: 40, last_seq: SeqNo::new(10) }];
        assert_eq!(keep(std::slice::from_ref(&torn)), [(3, 40)]);
        torn.durable_len = 88;
        assert_eq!(plan(&[torn], SeqNo::ZERO, BOOT).unwrap_err().offset, 80);
    }

    #[test]
    fn after_a_restart_an_uncovered_batch_ends_the_history() {
        let mut first = log(3, None, 80);
        let batch = |offset, seq| ExternalBatch { offset, last_seq: SeqNo::new(seq) };
        first.externals = vec![batch(40, 10), batch(64, 20)];
        let mut second = log(5, Some((3, 80)), 40);
        second.barriers = vec![barrier(24, 15)];
        assert_eq!(keep(&[first.clone(), second.clone()]), [(3, 64)]);
        second.barriers = vec![barrier(24, 20)];
        assert_eq!(keep(&[first.clone(), second.clone()]), [(3, 80), (5, 40)]);
        second.barriers = vec![barrier(24, 9)];
        assert_eq!(keep(&[first.clone(), second.clone()]), [(3, 40)]);
        first.header.as_mut().unwrap().boot_id = BOOT;
        assert_eq!(keep(&[first, second]), [(3, 80), (5, 40)]);
    }

    #[test]
    fn what_tables_hold_needs_no_barrier() {
        let mut first = log(3, None, 80);
        let batch = |offset, seq| ExternalBatch { offset, last_seq: SeqNo::new(seq) };
        first.externals = vec![batch(40, 10), batch(64, 20)];
        let logs = [first, log(5, Some((3, 80)), 40)];
        assert_eq!(keep_after(9, &logs), [(3, 40)]);
        assert_eq!(keep_after(10, &logs), [(3, 64)]);
        assert_eq!(keep_after(20, &logs), [(3, 80), (5, 40)]);
    }
}
