//! Reads a log after a crash and reports what stands in it, without judging.

use std::path::{Path, PathBuf};

use varve_env::Env;
use varve_format::FormatError;
use varve_format::batch::decode_batch;
use varve_format::log::{
    LogHeader, LogId, LogKind, LogReader, NextRecord, Record, RecordKind, decode_barrier, resync,
};
use varve_types::{FileNo, SeqNo};

use crate::files::{StoreFile, format_error};
use crate::read::read_log;
use crate::{StoreError, StoreResult};

/// A batch that depends on data outside the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExternalBatch {
    pub(crate) offset: u64,
    pub(crate) last_seq: SeqNo,
}

/// A record that says that the outside data of all batches up to `covered` are durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Barrier {
    pub(crate) offset: u64,
    pub(crate) covered: SeqNo,
}

/// What stands in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogScan {
    pub(crate) no: FileNo,
    /// Its header, unless the log breaks off or is bad before the header's end.
    pub(crate) header: Option<LogHeader>,
    /// Bytes of the file.
    pub(crate) file_len: u64,
    /// Bytes up to which all records are valid.
    pub(crate) good_len: u64,
    /// What is wrong there, unless it is the end of the file.
    pub(crate) bad: Option<FormatError>,
    /// Whether a valid record stands after the bad one.
    pub(crate) valid_after_bad: bool,
    /// The most bytes of this log that any of its valid records knows durable.
    pub(crate) durable_len: u64,
    /// Batches that depend on data outside the store.
    pub(crate) externals: Vec<ExternalBatch>,
    /// The barriers among the valid records before the first bad one.
    pub(crate) barriers: Vec<Barrier>,
    /// Where valid records end.
    pub(crate) boundaries: Vec<u64>,
}

/// Scans a log of the store at `dir`, whose logs have this salt.
pub(crate) fn scan_log(env: &dyn Env, dir: &Path, id: LogId) -> StoreResult<LogScan> {
    let no = id.file;
    let path: PathBuf = StoreFile::Wal(no).path(dir);
    let bytes = read_log(env, &path)?;
    let mut scan = LogScan {
        no,
        header: None,
        file_len: bytes.len() as u64,
        good_len: 0,
        bad: None,
        valid_after_bad: false,
        durable_len: 0,
        externals: Vec::new(),
        barriers: Vec::new(),
        boundaries: vec![0],
    };
    let mut reader = LogReader::new(bytes.clone(), no);
    loop {
        match reader.next_record() {
            NextRecord::Record(record) => {
                note_record(&mut scan, &record).map_err(|e| format_error(&path, e))?;
                scan.good_len = reader.offset();
                scan.boundaries.push(scan.good_len);
            }
            NextRecord::End => break,
            NextRecord::Bad { offset, why } => {
                scan.bad = Some(why);
                for record in resync(bytes.clone(), id, offset) {
                    scan.valid_after_bad = true;
                    scan.durable_len = scan.durable_len.max(record.synced_len);
                }
                break;
            }
        }
    }
    if scan.header.as_ref().is_some_and(|header| header.salt != id.salt) {
        let detail = "it is a log of another store".to_owned();
        return Err(StoreError::Damaged { path, offset: 0, detail });
    }
    if scan.header.is_none() && scan.good_len > 0 {
        return Err(StoreError::Damaged { path, offset: 0, detail: "no log header".to_owned() });
    }
    Ok(scan)
}

fn note_record(scan: &mut LogScan, record: &Record) -> Result<(), FormatError> {
    let base = record.offset + varve_format::log::HEADER_BYTES as u64;
    scan.durable_len = scan.durable_len.max(record.synced_len);
    match record.kind {
        RecordKind::Header if record.offset == 0 => {
            let header = LogHeader::decode(&record.payload).map_err(|e| e.shifted(base))?;
            if header.kind != LogKind::Wal {
                let rule = "the header of another kind of log";
                return Err(FormatError::new(base, varve_format::Problem::Invalid(rule)));
            }
            scan.header = Some(header);
        }
        RecordKind::Batch if record.external => {
            let batch = decode_batch(&record.payload).map_err(|e| e.shifted(base))?;
            let last_seq = SeqNo::new(batch.first_seq.get() + batch.writes.len() as u64 - 1);
            scan.externals.push(ExternalBatch { offset: record.offset, last_seq });
        }
        RecordKind::Barrier => {
            let barrier =
                Barrier { offset: record.offset, covered: decode_barrier(&record.payload) };
            scan.barriers.push(barrier);
        }
        RecordKind::Batch | RecordKind::Marker | RecordKind::CloseClean => {}
        RecordKind::Header | RecordKind::Edit => {
            let rule = "a record that has no place in a write-ahead log";
            return Err(FormatError::new(record.offset, varve_format::Problem::Invalid(rule)));
        }
    }
    Ok(())
}
