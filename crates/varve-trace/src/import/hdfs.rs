//! The audit log of an HDFS name node:
//!
//! ```text
//! 2015-07-09 04:05:08,123 INFO FSNamesystem.audit: allowed=true  ugi=hdfs (auth:SIMPLE)  ip=/10.0.0.7  cmd=rename  src=/a  dst=/b  perm=...
//! ```
//!
//! Tabs separate the fields. A command is one operation on the object of its path.

use std::collections::HashMap;

use super::paths::Paths;
use super::{BadLine, Line, Lines, client};
use crate::record::{Op, Record};

/// The errno of a refused operation.
const EACCES: u32 = 13;

#[derive(Default)]
pub(super) struct Hdfs {
    paths: Paths,
}

fn op(command: &str) -> Op {
    match command.split([' ', '(']).next().unwrap_or_default() {
        "open" => Op::Open,
        "create" => Op::Create,
        "append" | "concat" | "truncate" => Op::Write,
        "delete" => Op::Unlink,
        "rename" => Op::Rename,
        "mkdirs" => Op::Mkdir,
        "listStatus" => Op::Readdir,
        "getfileinfo" | "contentSummary" | "isFileClosed" => Op::Getattr,
        "setPermission" | "setOwner" | "setTimes" | "setReplication" => Op::Setattr,
        "checkAccess" => Op::Access,
        "createSymlink" => Op::Symlink,
        "fsync" => Op::Fsync,
        "getAclStatus" | "setAcl" | "modifyAclEntries" | "removeAcl" | "getXAttrs" | "setXAttr"
        | "removeXAttr" | "listXAttrs" => Op::Xattr,
        _ => Op::Other,
    }
}

impl Lines for Hdfs {
    fn line(&mut self, line: &str, records: &mut Vec<Record>) -> Result<Line, BadLine> {
        let Some((head, fields)) = line.split_once(" FSNamesystem.audit: ") else {
            return Ok(Line::LeftOut);
        };
        let at_us = time(head).ok_or_else(|| BadLine(format!("no time at its begin: {head}")))?;
        let fields: HashMap<&str, &str> =
            fields.split('\t').filter_map(|field| field.trim().split_once('=')).collect();
        let field = |name: &str| {
            fields.get(name).copied().ok_or_else(|| BadLine(format!("it has no field {name}=")))
        };
        let who = fields.get("ip").or(fields.get("ugi")).copied().unwrap_or_default();
        let mut record = Record::new(at_us, client(who), op(field("cmd")?));
        if field("allowed")? != "true" {
            record.error = EACCES;
        }
        let (from, to) = (field("src")?, fields.get("dst").filter(|to| **to != "null"));
        if !from.starts_with('/') {
            records.push(record);
            return Ok(Line::Used);
        }
        self.paths.name(&mut record, from);
        record.is_dir = matches!(record.op, Op::Mkdir | Op::Readdir);
        match (record.op, to) {
            (Op::Rename, Some(to)) => {
                self.paths.name_again(&mut record, to);
                if record.error == 0 {
                    self.paths.moved(&record, from);
                }
            }
            (Op::Unlink, _) if record.error == 0 => self.paths.remove(from),
            _ => {}
        }
        self.paths.put(record, records);
        Ok(Line::Used)
    }
}

/// Converts a time such as `2015-07-09 04:05:08,123` to microseconds since 1970.
fn time(head: &str) -> Option<u64> {
    let number = |range: std::ops::Range<usize>| head.get(range)?.parse::<u64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second, thousandth) =
        (number(11..13)?, number(14..16)?, number(17..19)?, number(20..23).unwrap_or(0));
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years begin in March, so that a leap day is the last one.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year / 4 - year / 100 + year / 400;
    let days = 365 * year + leap_days + (153 * month + 2) / 5 + day - 719_469;
    let seconds = ((days * 24 + hour) * 60 + minute) * 60 + second;
    Some(seconds * 1_000_000 + thousandth * 1000)
}

#[cfg(test)]
mod tests {
    use super::super::{Source, all};
    use super::*;

    #[test]
    fn dates_are_days_since_1970() {
        assert_eq!(time("1970-01-01 00:00:00,000 INFO"), Some(0));
        assert_eq!(time("2000-02-29 12:00:00,500"), Some(951_825_600_500_000));
        assert_eq!(time("2024-12-31 23:59:59"), Some(1_735_689_599_000_000));
        assert_eq!((time("2024-13-01 00:00:00"), time("hello")), (None, None));
    }

    #[test]
    fn commands_become_operations() {
        let line = |second: u32, cmd: &str, src: &str, dst: &str| {
            format!(
                "2015-07-09 04:05:{second:02},123 INFO FSNamesystem.audit: allowed=true\tugi=u (auth:SIMPLE)\t\
                 ip=/10.0.0.7\tcmd={cmd}\tsrc={src}\tdst={dst}\tperm=null\tproto=rpc\n"
            )
        };
        let log = [
            line(1, "mkdirs", "/user/a b", "null"),
            line(2, "create", "/user/a b/_tmp", "null"),
            line(3, "rename", "/user/a b/_tmp", "/user/part-0"),
            line(4, "open", "/user/part-0", "null"),
            "2015-07-09 04:05:05,000 WARN something else\n".to_owned(),
            line(6, "delete (options=[])", "/user/part-0", "null")
                .replace("allowed=true", "allowed=false"),
            line(7, "delete", "/user/part-0", "null"),
            line(8, "create", "/user/part-0", "null"),
        ];
        let (records, imported) = all(Source::Hdfs, &log.concat()).expect("imported");
        assert_eq!((imported.records, imported.left_out), (7, 1));
        let ops: Vec<Op> = records.iter().map(|record| record.op).collect();
        let expected =
            [Op::Mkdir, Op::Create, Op::Rename, Op::Open, Op::Unlink, Op::Unlink, Op::Create];
        assert_eq!(ops, expected);
        let file = records[1].object;
        assert!(records[2..=5].iter().all(|record| record.object == file), "one file");
        assert_eq!((records[4].error, records[5].error), (EACCES, 0));
        assert_ne!(records[6].object, file, "another one by the same name");
        assert_eq!(records[2].new_dir, records[0].dir);
        assert_eq!(records[2].at_us - records[1].at_us, 1_000_000);
        let error = all(Source::Hdfs, "x FSNamesystem.audit: cmd=open\n").expect_err("no time");
        assert!(error.to_string().starts_with("line 1: no time"), "{error}");
    }
}
