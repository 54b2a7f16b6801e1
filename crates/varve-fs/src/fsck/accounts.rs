//! What directories say of the trees below them ([`crate::usage`]).
//!
//! Each directory is checked by itself: its usage is what lies directly in it and what its subdirectories have
//! told. Where that holds everywhere, every total is right. What each row says and what each file and
//! directory adds comes from the scan of the names, and is sorted by directory.

use varve_schema::{DecodeError, Reader, Usage, UsageChange, put_varint};
use varve_types::InodeId;
use varve_vfs::FsResult;

use super::sorter::{Record, Sorted};
use super::{At, Check, Finding};

const PHASE: &str = "totals";

/// A part of a directory's account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Account {
    dir: u64,
    /// It is something that lies in the directory; else what its row says.
    is_share: bool,
    bytes: u64,
    files: u64,
    dirs: u64,
}

impl Account {
    /// What the row of `dir` says.
    pub(super) fn recorded(dir: InodeId, usage: Usage) -> Account {
        let Usage { bytes, files, dirs } = usage;
        Account { dir: dir.get(), is_share: false, bytes, files, dirs }
    }

    /// What something in `dir` adds.
    pub(super) fn share(dir: InodeId, change: UsageChange) -> Account {
        let usage = Usage::default().plus(change);
        Account { is_share: true, ..Account::recorded(dir, usage) }
    }

    fn change(&self) -> UsageChange {
        Usage { bytes: self.bytes, files: self.files, dirs: self.dirs }.as_change()
    }
}

impl Record for Account {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.dir);
        out.push(u8::from(self.is_share));
        for number in [self.bytes, self.files, self.dirs] {
            put_varint(out, number);
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Account, DecodeError> {
        let (dir, is_share) = (reader.varint()?, reader.u8()? != 0);
        let (bytes, files) = (reader.varint()?, reader.varint()?);
        Ok(Account { dir, is_share, bytes, files, dirs: reader.varint()? })
    }
}

impl Check<'_> {
    pub(super) fn check_accounts(&mut self, accounts: &Sorted<Account>) -> FsResult<()> {
        self.begin(PHASE);
        self.report.spilled_bytes += accounts.spilled_bytes();
        let (all, mut walked) = (accounts.len(), 0);
        let mut recorded: Option<Account> = None;
        let mut counted = Usage::default();
        for account in accounts.iter()? {
            let account = account?;
            walked += 1;
            self.at(walked, all);
            self.step(PHASE);
            if !account.is_share {
                self.compare(recorded.take(), counted)?;
                (recorded, counted) = (Some(account), Usage::default());
            } else if recorded.is_some_and(|recorded| recorded.dir == account.dir) {
                counted = counted.plus(account.change());
            }
        }
        self.compare(recorded, counted)
    }

    fn compare(&mut self, recorded: Option<Account>, counted: Usage) -> FsResult<()> {
        let Some(Account { dir, bytes, files, dirs, .. }) = recorded else { return Ok(()) };
        let sums = [
            ("bytes", bytes, counted.bytes),
            ("files", files, counted.files),
            ("directories", dirs, counted.dirs),
        ];
        for (what, recorded, counted) in sums {
            if recorded != counted {
                self.found(Finding::WrongUsage { dir, what, recorded, counted }, At::Own)?;
            }
        }
        Ok(())
    }
}
