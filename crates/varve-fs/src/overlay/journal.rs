//! The records of an overlay: which blocks are its own.

use std::io;

use varve_env::File;
use varve_schema::overlay::{
    BLOCK_BYTES, OverlayChange, OverlayHeader, OverlayKind, OverlayRecord, OverlaySlot, PAGE_BYTES,
    RECORD_BYTES, SLOT_OFFSETS,
};

use super::State;

/// Records read at once.
const READ_RECORDS: u64 = 4096;

/// Where the next record goes, and what is durable.
#[derive(Debug)]
pub(super) struct Journal {
    /// Records that were written.
    records: u64,
    slot: OverlaySlot,
    /// Another process, or a sync that failed, may have left the slot in memory alone.
    is_doubtful: bool,
    /// The first failed sync, after which nothing more is believed to become durable.
    failed: Option<String>,
    /// Where the last blocks that were kept end, and how many they were.
    pub(super) kept_to: u64,
    pub(super) kept_run: u64,
}

impl Journal {
    fn new(slot: OverlaySlot, is_doubtful: bool) -> Journal {
        Journal { records: 0, slot, is_doubtful, failed: None, kept_to: u64::MAX, kept_run: 0 }
    }

    /// Writes header and slot of a new overlay.
    pub(super) fn create(file: &dyn File, header: &OverlayHeader) -> io::Result<Journal> {
        let slot = OverlaySlot { turn: 0, records: 0 };
        file.write_all_at(&header.encode(), 0)?;
        file.write_all_at(&slot.encode(header.salt), slot.offset())?;
        Ok(Journal::new(slot, false))
    }

    /// Whether there are records that are not known to be durable.
    pub(super) fn is_unsynced(&self) -> bool {
        self.records > self.slot.records
    }

    /// Fails if a sync failed before.
    fn check(&self) -> io::Result<()> {
        match &self.failed {
            Some(failure) => Err(io::Error::other(format!("an earlier sync failed: {failure}"))),
            None => Ok(()),
        }
    }

    /// Writes a record.
    pub(super) fn append(
        &mut self,
        file: &dyn File,
        header: &OverlayHeader,
        record: OverlayRecord,
    ) -> io::Result<()> {
        self.check()?;
        if self.records >= header.records_max() {
            return Err(io::Error::other("more records than an overlay can have"));
        }
        let bytes = record.encode(header.salt, self.records);
        file.write_all_at(&bytes, OverlayRecord::offset(self.records))?;
        self.records += 1;
        Ok(())
    }

    /// Makes bytes and records durable, then the count of the records; with `all`, the times too.
    pub(super) fn sync(
        &mut self,
        file: &dyn File,
        header: &OverlayHeader,
        all: bool,
    ) -> io::Result<()> {
        self.check()?;
        if self.is_unsynced() {
            self.note(file.sync_data())?;
            let slot = OverlaySlot { turn: self.slot.turn + 1, records: self.records };
            file.write_all_at(&slot.encode(header.salt), slot.offset())?;
            self.slot = slot;
        }
        self.note(if all { file.sync_all() } else { file.sync_data() })
    }

    /// Makes the count of the records durable, which an earlier process may only have written, or a sync that failed left in memory
    /// alone: what it counts is.
    pub(super) fn settle(&mut self, file: &dyn File, header: &OverlayHeader) -> io::Result<()> {
        if self.is_doubtful {
            file.write_all_at(&self.slot.encode(header.salt), self.slot.offset())?;
            self.note(file.sync_data())?;
            self.is_doubtful = false;
        }
        Ok(())
    }

    /// Remembers a failure.
    fn note(&mut self, done: io::Result<()>) -> io::Result<()> {
        if let Err(error) = &done {
            self.is_doubtful = true;
            self.failed.get_or_insert_with(|| error.to_string());
        }
        done
    }
}

/// What is wrong, at which offset.
pub(super) type Damage = (u64, String);

/// Reads an overlay. `boot` stands for this run of the machine.
pub(super) fn load(
    file: &dyn File,
    boot: u64,
) -> io::Result<Result<(OverlayHeader, State, Journal), Damage>> {
    let mut page = vec![0; PAGE_BYTES];
    let count = file.read_at(&mut page, 0)?;
    let header = match OverlayHeader::decode(&page[..count]) {
        Ok(header) => header,
        Err(error) => return Ok(Err((0, error.to_string()))),
    };
    let mut slots = Vec::new();
    for offset in SLOT_OFFSETS {
        let count = file.read_at(&mut page, offset)?;
        slots.extend(OverlaySlot::decode(&page[..count], header.salt, offset).ok());
    }
    let Some(slot) = slots.into_iter().max_by_key(|slot| slot.turn) else {
        return Ok(Err((SLOT_OFFSETS[0], "neither slot can be read".to_owned())));
    };
    if slot.records > header.records_max() {
        return Ok(Err((slot.offset(), "it counts more records than there can be".to_owned())));
    }
    let mut state = State { limit: header.base_blocks(), ..State::default() };
    let mut journal = Journal::new(slot, true);
    if let Err(damage) = read_records(file, &header, boot, &mut state, &mut journal)? {
        return Ok(Err(damage));
    }
    if header.is_covering {
        let end = state.own.runs(state.limit).last().map_or(0, |run| run.end * BLOCK_BYTES);
        let (len, end) = (file.stat()?.len, header.data_start() + end.min(header.base_len));
        if len < end {
            let detail = format!("it ends there, and its blocks are to reach to offset {end}");
            return Ok(Err((len, detail)));
        }
    }
    if header.kind == OverlayKind::Written {
        // A process may have died between cutting the file and saying so.
        let len = file.stat()?.len.saturating_sub(header.data_start());
        let end = len.div_ceil(BLOCK_BYTES);
        state.limit_is_unrecorded = end < state.limit;
        state.limit = state.limit.min(end);
    }
    Ok(Ok((header, state, journal)))
}

fn read_records(
    file: &dyn File,
    header: &OverlayHeader,
    boot: u64,
    state: &mut State,
    journal: &mut Journal,
) -> io::Result<Result<(), Damage>> {
    let mut buffer = vec![0; RECORD_BYTES * READ_RECORDS as usize];
    while journal.records < header.records_max() {
        let begin = OverlayRecord::offset(journal.records);
        let left = (header.records_max() - journal.records).min(READ_RECORDS) as usize;
        let count = file.read_at(&mut buffer[..left * RECORD_BYTES], begin)?;
        for bytes in buffer[..count].chunks(RECORD_BYTES) {
            let is_counted = journal.records < journal.slot.records;
            // The base of what is kept does not change before that is counted.
            let is_written = |of: u64| header.kind == OverlayKind::Written && of == boot;
            match OverlayRecord::decode(bytes, header, journal.records) {
                Ok(record) if is_counted || is_written(record.boot) => apply(state, record.change),
                Err(error) if is_counted => {
                    let offset = OverlayRecord::offset(journal.records);
                    return Ok(Err((offset, error.to_string())));
                }
                // Lost with the power, or nothing was ever written here.
                _ => return Ok(Ok(())),
            }
            journal.records += 1;
        }
        if count < left * RECORD_BYTES {
            break;
        }
    }
    match journal.records < journal.slot.records {
        true => Ok(Err((OverlayRecord::offset(journal.records), "records are cut off".to_owned()))),
        false => Ok(Ok(())),
    }
}

fn apply(state: &mut State, change: OverlayChange) {
    match change {
        OverlayChange::Own { first, count } => state.own.insert(first..first + count),
        OverlayChange::Cut { first } => state.limit = state.limit.min(first),
    }
}
