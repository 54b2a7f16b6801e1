//! Receives a sent snapshot: the tree becomes what was sent, at once, and gets its name.
//!
//! 1. The header is compared with the store: names must be hashed in the same way, the snapshot that was the base must be
//!    here, and nothing may have changed since it; without a base the store must be empty.
//! 2. A transaction begins that nobody sees. What the store itself has changed since the base is undone in it, so that
//!    it is the base in its plain form; then it takes what comes ([`super::apply`]).
//! 3. When all has come the transaction is committed, if still nothing has changed, and the snapshot is made
//!    ([`super::receipt`]).
//!
//! Inode ids stay what they are. So that no two stores give one id to two files, a store that receives goes on with ids far
//! above those of the sender, which goes on with what is between; by chance how far, for all that receive the same. What was received
//! whole may be received so in many places, each of which may then go its own way for long. What has changed since a base
//! is exchanged by stores that have jumped apart before, again and again: ids have an end, so these jumps are shorter.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use varve_engine::{Batch, Branch, Store};
use varve_namespace::merge::same_but_access_times;
use varve_schema::{EntrySuffix, RowKey};
use varve_types::{InodeId, KeyspaceId};
use varve_vfs::{FsError, FsResult};

use super::META_SPACE;
use super::apply::Receiving;
use super::differences::Differences;
use super::frame::{Frame, FrameReader, Header, STREAM_VERSION, SnapshotId};
use super::outcome::{Progress, ReceiveError, Received};
use super::pieces::Seen;
use super::plain::{Plain, objects_in};
use super::receipt::Receipt;
use crate::commit::{Committed, Ending};
use crate::epoch::Epoch;
use crate::error;
use crate::fs::VarveFs;
use crate::ids::IDS_END;
use crate::snapshots::stored_name::{HIDDEN_NAME, check_name, parse_name, stored_id};
use crate::superblock::{LARGE_FILE_THRESHOLDS, views_dir};
use crate::transactions::{Purpose, Transaction, TransactionOptions};

/// The longest id of a snapshot, in bytes.
const SNAPSHOT_ID_MAX: usize = 64;
/// Digits of the key of the name hash.
const HASH_KEY_DIGITS: usize = 32;
/// Ids that are left to the sender of a whole snapshot at least, and the most that chance adds before the receiver's begin.
const WHOLE_GAP: Gap = Gap { left: 1 << 40, chance: 1 << 48 };
/// The same where a base is here: so a tree goes back and forth half a million times before ids are used up.
const SINCE_GAP: Gap = Gap { left: 1 << 39, chance: 1 << 39 };
/// Ids of a stream are below this, so that enough are left.
const STREAM_IDS_END: u64 = IDS_END / 2;
/// How often a transaction is begun until it finds the store at rest, and the wait between.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// Ids between those of the sender and those that the receiver goes on with.
struct Gap {
    left: u64,
    chance: u64,
}

/// Takes a row: its key space, its key and its value.
type EachRow<'a> = dyn FnMut(KeyspaceId, &[u8], &Bytes) -> FsResult<()> + 'a;

/// Reads what a stream says first.
pub fn read_header(stream: &mut FrameReader<'_>) -> Result<Header, ReceiveError> {
    match stream.next_frame().map_err(ReceiveError::Interrupted)? {
        Frame::Header(header) if (1..=STREAM_VERSION).contains(&header.version) => {
            match makes_sense(&header) {
                true => Ok(header),
                false => Err(ReceiveError::Stream("its header makes no sense".to_owned())),
            }
        }
        Frame::Header(header) => Err(ReceiveError::Refused(
            format!(
                "the stream is of version {}, this program knows 1 to {STREAM_VERSION}",
                header.version
            ),
            "receive it with the version of varve that sent it, or send it with this one",
        )),
        _ => Err(ReceiveError::Stream("the stream does not begin with its header".to_owned())),
    }
}

/// Whether a store may have sent it, so that another can be made for what comes.
fn makes_sense(header: &Header) -> bool {
    let SnapshotId { id, name } = &header.snapshot;
    let is_hex = |letter: char| letter.is_ascii_hexdigit();
    let is_id = |letter: char| is_hex(letter) || letter == '-';
    let is_one_of = |text: &str, max, is_letter: &dyn Fn(char) -> bool| {
        (1..=max).contains(&text.len()) && text.chars().all(is_letter)
    };
    is_one_of(id, SNAPSHOT_ID_MAX, &is_id)
        && check_name(name).is_ok()
        && is_one_of(&header.name_hash_key, HASH_KEY_DIGITS, &is_hex)
        && (1..=EntrySuffix::HASH_BITS_MAX).contains(&header.name_hash_bits)
        && LARGE_FILE_THRESHOLDS.contains(&header.large_file_threshold_bytes)
        && header.inodes_end <= IDS_END
}

fn refused<T>(text: impl Into<String>, hint: &'static str) -> Result<T, ReceiveError> {
    Err(ReceiveError::Refused(text.into(), hint))
}

impl VarveFs {
    /// Takes over the snapshot that `stream` sends, whose header was read. Nothing changes before all of it has come.
    pub fn receive_snapshot(
        &self,
        header: &Header,
        stream: &mut FrameReader<'_>,
        progress: Progress<'_>,
    ) -> Result<Received, ReceiveError> {
        self.writable()?;
        let _alone = self.receive_alone()?;
        self.check_header(header)?;
        let base = self.find_base(header)?;
        let _held = self.hold_snapshots(&[base.as_deref()])?;
        let mut receiving = self.begin_receiving(header, base.as_deref())?;
        let came = receiving.take_all(stream, progress).and_then(|()| receiving.finish());
        match &came {
            Err(ReceiveError::Interrupted(_)) => receiving.note_all()?,
            Err(ReceiveError::Stream(_)) => self.drop_receipt()?,
            _ => {}
        }
        came?;
        let committed = self.commit_received(header, &receiving)?;
        let totals = receiving.totals;
        Ok(Received { snapshot: header.snapshot.clone(), totals, committed })
    }

    /// Step 1, but for the base.
    fn check_header(&self, header: &Header) -> Result<(), ReceiveError> {
        let own = &self.superblock;
        if (&own.name_hash_key, own.name_hash_bits, own.large_file_threshold_bytes)
            != (&header.name_hash_key, header.name_hash_bits, header.large_file_threshold_bytes)
        {
            return refused(
                "the store was not made to receive this snapshot: it hashes names in its own way",
                "receive into a directory that does not exist yet; it becomes a store",
            );
        }
        let SnapshotId { id, name } = &header.snapshot;
        if header.inodes_end > STREAM_IDS_END {
            return refused(
                "the ids of inodes are used up: the snapshot's have come as far as none may that are received",
                "copy its files into a new store, where they get other inode numbers, and send snapshots of that",
            );
        }
        let known = self.views()?.db().snapshots();
        let same = known.iter().find(|known| stored_id(&known.name, &own.uuid) == *id);
        let same = same.and_then(|same| Some(parse_name(&same.name)?.1.to_owned()));
        if let Some(same) = same.or(self.find_snapshot(name)?.map(|_| name.clone())) {
            return refused(
                format!("there is a snapshot `{same}` already"),
                "delete it with `varve snapshot delete` to receive it again",
            );
        }
        Ok(())
    }

    /// The name of the snapshot that the stream begins with, if it is a part.
    fn find_base(&self, header: &Header) -> Result<Option<String>, ReceiveError> {
        let Some(base) = &header.base else { return Ok(None) };
        let known = self.views()?.db().snapshots();
        let is_base = |stored: &str| stored_id(stored, &self.superblock.uuid) == base.id;
        let known = known.iter().filter(|known| is_base(&known.name));
        let mut names = known.filter_map(|known| Some(parse_name(&known.name)?.1));
        match names.find(|name| *name != HIDDEN_NAME) {
            Some(name) => Ok(Some(name.to_owned())),
            None => refused(
                format!(
                    "the stream has what changed since snapshot `{}`, which is not here",
                    base.name
                ),
                "send and receive that one first, or send this one without --since",
            ),
        }
    }

    /// Step 2: goes on with what was interrupted, or begins anew.
    fn begin_receiving(
        &self,
        header: &Header,
        base: Option<&str>,
    ) -> Result<Receiving<'_>, ReceiveError> {
        let receipt = Receipt {
            snapshot: header.snapshot.clone(),
            base: header.base.clone(),
            position: header.from.clone(),
        };
        // Ids come back with what is received.
        self.reaper.remove_all()?;
        let open = self.open_receipt()?;
        let open = open.filter(|(_, open)| header.from.is_some() && *open == receipt);
        if header.from.is_some() && open.is_none() {
            return refused(
                "the stream goes on where nothing was interrupted",
                "`varve snapshot receive --token` tells where it is to go on",
            );
        }
        if let Some((txn, _)) = open {
            let branch = self.views()?.db().open_branch(txn.branch).map_err(error::store)?;
            return Ok(self.receiving(txn, branch, receipt, header));
        }
        self.drop_receipt()?;
        let Gap { left, chance } = if base.is_some() { SINCE_GAP } else { WHOLE_GAP };
        self.ids.pass(header.inodes_end, left + self.env.random() % chance)?;
        let (txn, branch) = self.begin_at_rest()?;
        let mut receiving = self.receiving(txn, branch, receipt, header);
        let begun = self.become_base(&receiving, base).and_then(|()| Ok(receiving.note_all()?));
        if begun.is_err() {
            self.drop_receipt()?;
        }
        begun.map(|()| receiving)
    }

    fn receiving(
        &self,
        txn: Transaction,
        branch: Branch,
        receipt: Receipt,
        header: &Header,
    ) -> Receiving<'_> {
        let own = views_dir(&self.dir).join(txn.epoch.get().to_string());
        let staged = Arc::new(self.objects.of_view(own, Some(txn.epoch)));
        Receiving::new(self, txn, branch, staged, receipt, header)
    }

    /// A transaction that begins when every directory has told what lies below it.
    fn begin_at_rest(&self) -> Result<(Transaction, Branch), ReceiveError> {
        for _ in 0..ATTEMPTS {
            let options = TransactionOptions::default();
            let txn = self.begin_transaction_for(InodeId::ROOT, &options, Purpose::Receive)?;
            let branch = self.views()?.db().open_branch(txn.branch).map_err(error::store)?;
            let now = branch.base().map_err(error::store);
            let now = now.and_then(|now| self.plain(now, txn.epoch));
            match now.map(|now| now.is_settled()) {
                Ok(true) => return Ok((txn, branch)),
                other => self.drop_receipt().and(other.map(drop))?,
            }
            self.env.sleep(PAUSE);
        }
        refused("the store is being changed", "stop the programs that change it, and receive again")
    }

    /// Makes the transaction what the base is in its plain form, if that is what users see in it.
    fn become_base(
        &self,
        receiving: &Receiving<'_>,
        base: Option<&str>,
    ) -> Result<(), ReceiveError> {
        let Receiving { txn, branch, .. } = receiving;
        let now = || branch.base().map_err(error::store);
        let after = self.plain(now()?, txn.epoch)?;
        let Some(name) = base else { return self.check_empty(txn, after) };
        let (epoch, stored) = self.find_snapshot(name)?.ok_or(FsError::NotFound)?;
        let before = self.views()?.db().open_snapshot(&stored).map_err(error::store)?;
        let before = Some(self.plain(before, epoch)?);
        let written = self.written_between(epoch, Some(txn.epoch))?;
        let differences = Differences { before, after };
        let now = now()?;
        let undone = self.same_but_access(&differences, &written, &mut |keyspace, key, was| {
            let mut batch = Batch::new();
            if now.get(keyspace, key).map_err(error::store)?.as_ref() != Some(was) {
                batch.put(keyspace, Bytes::copy_from_slice(key), was.clone());
                branch.write(batch).map_err(error::store)?;
            }
            Ok(())
        })?;
        match undone {
            true => Ok(()),
            false => refused(
                format!("the store has changed since snapshot `{name}`"),
                "`varve snapshot diff` tells what; `varve snapshot rollback` undoes it",
            ),
        }
    }

    /// A whole snapshot comes only where there is nothing, not even in views.
    fn check_empty(&self, txn: &Transaction, after: Plain<'_>) -> Result<(), ReceiveError> {
        let all = Differences { before: None, after };
        let others = self.all_transactions()?.len() - 1 + self.views()?.db().snapshots().len();
        let mut is_empty = others == 0 && txn.purpose == Purpose::Receive;
        for space in all.spaces(self)? {
            let root = RowKey::inode(InodeId::ROOT).to_bytes();
            let walked = all.each(space, std::ops::Bound::Unbounded, &mut |key, _, _| {
                is_empty &= space.0 == META_SPACE && key == root;
                if is_empty { Ok(()) } else { Err(FsError::NotEmpty) }
            });
            if is_empty {
                walked?;
            }
        }
        match is_empty {
            true => Ok(()),
            false => refused(
                "the stream is a whole snapshot, and the store is not empty",
                "receive into a directory that does not exist yet, or send with --since",
            ),
        }
    }

    /// Whether two states differ at most by times of last access; `each` is called with the rows of the earlier one that may
    /// be others in the later one. `written` are large files that may have been written to in between.
    fn same_but_access(
        &self,
        differences: &Differences<'_>,
        written: &BTreeSet<InodeId>,
        each: &mut EachRow<'_>,
    ) -> FsResult<bool> {
        let Some(before) = &differences.before else { return Ok(false) };
        let mut same = true;
        for space in differences.spaces(self)? {
            let walked =
                differences.each(space, std::ops::Bound::Unbounded, &mut |key, was, is| {
                    let is_meta = space.0 == META_SPACE;
                    let kind = RowKey::from_bytes(key).filter(|_| is_meta).map(RowKey::meta_kind);
                    same &= was == is || same_but_access_times(kind, was.as_ref(), is.as_ref());
                    for (ino, _) in if is_meta { objects_in(key, is.as_ref())? } else { Vec::new() }
                    {
                        same = same
                            && (!written.contains(&ino)
                                || same_bytes(before, &differences.after, ino)?);
                    }
                    match &was {
                        _ if !same => Err(FsError::Stale),
                        Some(was) => each(space.1, key, was),
                        None => Ok(()),
                    }
                });
            if !same {
                return Ok(false);
            }
            walked?;
        }
        Ok(true)
    }

    /// Step 3.
    fn commit_received(
        &self,
        header: &Header,
        receiving: &Receiving<'_>,
    ) -> Result<Committed, ReceiveError> {
        let Receiving { txn, branch, .. } = receiving;
        let view = self.open_transaction(txn)?;
        let mut failed = None;
        let mut check = || {
            let unchanged = || {
                let present = self.views()?.db().present().map_err(error::store)?;
                let before = branch.base().map_err(error::store)?;
                let before = Some(self.plain(before, txn.epoch)?);
                let differences = Differences { before, after: self.plain(present, None)? };
                let written = self.written_between(txn.epoch, None)?;
                self.same_but_access(&differences, &written, &mut |_, _, _| Ok(()))
            };
            match unchanged() {
                // Somebody may have made a snapshot of that name meanwhile.
                Ok(true) => failed = self.check_header(header).err(),
                Ok(false) => {
                    let text = "the store has changed while the snapshot was received".to_owned();
                    let hint = "undo that with `varve snapshot rollback`, then go on with what `varve snapshot receive --token` prints";
                    failed = Some(ReceiveError::Refused(text, hint));
                }
                Err(error) => failed = Some(error.into()),
            }
            failed.is_none()
        };
        let then = || match self.name_received() {
            Ok(None) => Ok(()),
            Ok(Some(error)) => Err(FsError::Storage(format!(
                "all of the snapshot is received, but cannot be named: {error}; roll back to the last one, and receive it again"
            ))),
            Err(error) => {
                let cause = format!(
                    "a snapshot is received, but cannot be named: {error}; mount the store again, which does that"
                );
                Err(error::store(self.views()?.db().refuse_writes(&cause)))
            }
        };
        // What is not in the base nobody here can know.
        let new_from = Some(Epoch::new(header.new_from));
        let (check, then) = (Some(&mut check as _), Some(&then as _));
        let ending = Ending { check, then, new_from, ..Ending::default() };
        let committed = self.commit_with(&txn.name().name, &view, ending);
        match failed {
            Some(failed) => Err(failed),
            None => committed.map_err(ReceiveError::Commit),
        }
    }
}

/// Whether a large file has the same bytes in two states.
fn same_bytes(one: &Plain<'_>, other: &Plain<'_>, ino: InodeId) -> FsResult<bool> {
    let len = |state: &Plain<'_>| state.read_object(ino, |file| Ok(file.stat()?.len));
    let one = Seen { state: one, ino, len: len(one)? };
    one.is_same(&Seen { state: other, ino, len: len(other)? })
}
