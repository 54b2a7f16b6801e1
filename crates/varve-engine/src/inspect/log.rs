//! Describes logs: write-ahead logs and manifests.

use std::fmt;
use std::path::Path;

use bytes::Bytes;
use serde::Serialize;
use varve_env::Env;
use varve_format::FormatResult;
use varve_format::batch::decode_batch;
use varve_format::edit::{Change, VersionEdit, ZoneMeta};
use varve_format::log::{
    LogHeader, LogId, LogReader, NextRecord, Record, RecordKind, is_room, resync,
};
use varve_types::FileNo;

use super::{show_key, show_value};
use crate::StoreResult;
use crate::read::read_log;

/// A log.
#[derive(Debug, Serialize)]
pub struct LogReport {
    /// Its file number.
    pub number: u64,
    /// Bytes of the file.
    pub length_bytes: u64,
    /// Bytes up to which all records are valid.
    pub valid_bytes: u64,
    /// The most bytes that a valid record knows durable.
    pub durable_bytes: u64,
    /// The valid records.
    pub records: Vec<RecordReport>,
    /// What stands after them, if it is not the room that a log takes ahead.
    pub broken: Option<String>,
}

/// A record of a log.
#[derive(Debug, Serialize)]
pub struct RecordReport {
    /// Where it begins.
    pub offset: u64,
    /// Header, batch, marker, barrier, edit or clean close.
    pub kind: &'static str,
    /// Bytes of its payload.
    pub payload_bytes: usize,
    /// Bytes of the log known durable when it was written.
    pub synced_bytes: u64,
    /// Whether it depends on data outside the store.
    pub external: bool,
    /// What it says, in one line.
    pub summary: String,
    /// Its writes or changes, if asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<String>,
}

/// Describes the log `no` at `path`.
pub(super) fn describe(
    env: &dyn Env,
    path: &Path,
    no: FileNo,
    rows: bool,
) -> StoreResult<LogReport> {
    let bytes = read_log(env, path)?;
    let mut report = LogReport {
        number: no.get(),
        length_bytes: bytes.len() as u64,
        valid_bytes: 0,
        durable_bytes: 0,
        records: Vec::new(),
        broken: None,
    };
    let mut reader = LogReader::new(bytes.clone(), no);
    loop {
        match reader.next_record() {
            NextRecord::Record(record) => {
                report.durable_bytes = report.durable_bytes.max(record.synced_len);
                report.valid_bytes = record.end();
                report.records.push(describe_record(&record, rows));
            }
            NextRecord::End => return Ok(report),
            NextRecord::Bad { offset, .. } if is_room(&bytes[offset as usize..]) => {
                return Ok(report);
            }
            NextRecord::Bad { offset, why } => {
                let log = reader.log();
                report.broken = Some(describe_break(bytes, log, offset, &why.problem.to_string()));
                return Ok(report);
            }
        }
    }
}

fn describe_break(bytes: Bytes, log: LogId, offset: u64, problem: &str) -> String {
    let later: Vec<Record> = resync(bytes, log, offset).collect();
    let durable = later.iter().map(|record| record.synced_len).max().unwrap_or(0);
    let verdict = if durable > offset { "damage: it was durable" } else { "a torn tail" };
    format!("offset {offset}: {problem}; {} valid records follow; {verdict}", later.len())
}

fn describe_record(record: &Record, rows: bool) -> RecordReport {
    let kind = match record.kind {
        RecordKind::Header => "header",
        RecordKind::Batch => "batch",
        RecordKind::Marker => "marker",
        RecordKind::Barrier => "barrier",
        RecordKind::Edit => "edit",
        RecordKind::CloseClean => "clean close",
    };
    let described = match record.kind {
        RecordKind::Header => describe_header(&record.payload),
        RecordKind::Batch => describe_batch(&record.payload, rows),
        RecordKind::Edit => describe_edit(&record.payload, rows),
        RecordKind::Barrier => Ok((describe_barrier(&record.payload), Vec::new())),
        RecordKind::Marker | RecordKind::CloseClean => Ok((String::new(), Vec::new())),
    };
    let (summary, rows) = described.unwrap_or_else(|error| (error.to_string(), Vec::new()));
    RecordReport {
        offset: record.offset,
        kind,
        payload_bytes: record.payload.len(),
        synced_bytes: record.synced_len,
        external: record.external,
        summary,
        rows,
    }
}

type Described = FormatResult<(String, Vec<String>)>;

fn describe_header(payload: &[u8]) -> Described {
    let header = LogHeader::decode(payload)?;
    let previous = header.previous.map_or("no log before it".to_owned(), |previous| {
        format!("after log {} of {} bytes", previous.file, previous.final_len)
    });
    let first = header.first_seq;
    Ok((format!("boot {:032x}, writes from {first} on, {previous}", header.boot_id), Vec::new()))
}

fn describe_barrier(payload: &[u8]) -> String {
    let seq = <[u8; 8]>::try_from(payload).map_or(0, u64::from_le_bytes);
    format!("data outside the store are durable up to write {seq}")
}

fn describe_batch(payload: &Bytes, rows: bool) -> Described {
    let batch = decode_batch(payload)?;
    let end = batch.ends.map_or(String::new(), |branch| format!(", the commit of branch {branch}"));
    let summary = format!("{} writes from {} on{end}", batch.writes.len(), batch.first_seq);
    let show = |write: &varve_format::batch::LoggedWrite| {
        let (keyspace, key) = (write.keyspace, show_key(&write.key));
        match &write.value {
            Some(value) => {
                let (len, value) = (value.len(), show_value(value));
                format!("put {keyspace} {key} {len} bytes {value}")
            }
            None => format!("delete {keyspace} {key}"),
        }
    };
    Ok((summary, if rows { batch.writes.iter().map(show).collect() } else { Vec::new() }))
}

fn describe_edit(payload: &[u8], rows: bool) -> Described {
    let edit = VersionEdit::decode(payload)?;
    let count = |wanted: fn(&Change) -> bool| edit.changes.iter().filter(|c| wanted(c)).count();
    let summary = format!(
        "{} changes: {} tables added, {} removed, {} key spaces created",
        edit.changes.len(),
        count(|change| matches!(change, Change::AddTable { .. })),
        count(|change| matches!(change, Change::RemoveTable { .. })),
        count(|change| matches!(change, Change::CreateKeyspace { .. })),
    );
    Ok((summary, if rows { edit.changes.iter().map(show_change).collect() } else { Vec::new() }))
}

fn show_change(change: &Change) -> String {
    match change {
        Change::CreateKeyspace { keyspace, name, prefixed, compressed } => {
            format!(
                "create key space {keyspace} {name} prefixed={prefixed} compressed={compressed}"
            )
        }
        Change::OldestLog(no) => format!("oldest log {no}"),
        Change::NewestLog(no) => format!("newest log that was synced {no}"),
        Change::NextFile(no) => format!("next file {no}"),
        Change::LastSeq(seq) => format!("tables hold writes up to {seq}"),
        Change::AddTable { keyspace, level, sublevel, meta } => format!(
            "add {keyspace} level {level}.{sublevel} table {} {} bytes {} versions {} tombstones {} to {}{}{}",
            meta.file,
            meta.size_bytes,
            meta.entries,
            meta.tombstones,
            show_key(&meta.smallest_key),
            show_key(&meta.largest_key),
            meta.seq_override.map(|seq| format!(", all written at {seq}")).unwrap_or_default(),
            meta.zones.iter().map(show_zone).collect::<String>(),
        ),
        Change::AddSegment(meta) => {
            format!("add segment {}, {} bytes", meta.file, meta.size_bytes)
        }
        Change::RemoveTable { keyspace, level, file } => {
            format!("remove {keyspace} level {level} table {file}")
        }
        Change::CreateSnapshot { name, seq } => format!("snapshot {name:?} of write {seq}"),
        Change::DeleteSnapshot { name } => format!("delete snapshot {name:?}"),
        Change::CreateBranch { branch, parent, seq, locking, info } => {
            let parent = parent.map_or("the store".to_owned(), |parent| format!("branch {parent}"));
            let info = show_value(info);
            format!("begin branch {branch} over {parent} at write {seq} locking={locking} {info}")
        }
        Change::CreateBranchSpace { branch, base, keyspace, private } => {
            format!("branch {branch} has its rows of {base} in {keyspace} private={private}")
        }
        Change::EndBranch(branch) => format!("end branch {branch}"),
    }
}

/// What a table has in another file.
fn show_zone(meta: &ZoneMeta) -> String {
    let ZoneMeta { zone, live_bytes, runs } = meta;
    format!(", {live_bytes} of {} bytes of {} in {runs} runs", zone.size_bytes, zone.file)
}

impl fmt::Display for LogReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "number {}, {} bytes, valid up to {}, durable up to {} at least",
            self.number, self.length_bytes, self.valid_bytes, self.durable_bytes
        )?;
        for record in &self.records {
            let external = if record.external { " external" } else { "" };
            writeln!(
                f,
                "{:>10} {}{external}, {} bytes, {} synced  {}",
                record.offset,
                record.kind,
                record.payload_bytes,
                record.synced_bytes,
                record.summary
            )?;
            for row in &record.rows {
                writeln!(f, "           {row}")?;
            }
        }
        match &self.broken {
            Some(broken) => writeln!(f, "{broken}"),
            None => Ok(()),
        }
    }
}
