//! Reads the state of a store: its newest root, and the records behind it.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use crate::record::{
    JOURNAL, Kind, Owner, ROOT, Record, Root, decode, journal_name, journal_seq, root_seq,
};
use crate::requests::Requests;
use crate::store::Live;
use crate::tree::Tree;

/// Records that are read at the same time.
const REPLAY_AT_ONCE: usize = 16;

/// The state of a store, as its newest root and the records behind it say.
pub(crate) struct Loaded {
    pub(crate) live: Live,
    pub(crate) epoch: u64,
    pub(crate) owner: Owner,
    pub(crate) is_closed: bool,
    next_number: u64,
}

/// The error for the object `name`, whose content is wrong.
pub(crate) fn damaged(requests: &Requests, name: &str, what: &str) -> io::Error {
    let text = format!("{name} of {} is damaged: {what}", requests.address());
    io::Error::new(io::ErrorKind::InvalidData, text)
}

impl Loaded {
    /// The newest state; `None` if there is nothing below the prefix that begins one.
    pub(crate) fn read(requests: &Arc<Requests>) -> io::Result<Option<Loaded>> {
        let newest = requests.list(ROOT, None)?.into_iter().next();
        let mut loaded = match newest {
            None => Loaded::new(requests, None),
            Some(info) => {
                let name = info.name;
                let root: Root = decode(&name, &requests.read(&name, None)?)
                    .map_err(|what| damaged(requests, &name, &what))?;
                if root_seq(&name) != Some(root.seq) {
                    return Err(damaged(requests, &name, "it is the root of another record"));
                }
                Loaded::new(requests, Some(root))
            }
        };
        let is_empty = loaded.live.root.is_none() && loaded.replay(requests)? == 0;
        if !is_empty {
            while loaded.replay(requests)? > 0 {}
        }
        Ok((!is_empty).then_some(loaded))
    }

    fn new(requests: &Arc<Requests>, root: Option<Root>) -> Loaded {
        let root_seq = root.as_ref().map(|root| root.seq);
        let root = root.unwrap_or(Root {
            store: 0,
            seq: 0,
            epoch: 0,
            owner: Owner::default(),
            closed: true,
            next_number: 0,
            table: None,
            garbage: Vec::new(),
            fences: Vec::new(),
        });
        let tree = Tree::new(Arc::clone(requests), root.table, root.seq, root.garbage);
        let live = Live {
            tree,
            pending: Vec::new(),
            dirty: Vec::new(),
            store: root.store,
            seq: root.seq,
            unsent: None,
            records_since_root: 0,
            bytes_since_root: 0,
            root: root_seq,
            checkpoint: None,
            fences: root.fences,
            is_closed: false,
        };
        let (epoch, owner, is_closed) = (root.epoch, root.owner, root.closed);
        Loaded { live, epoch, owner, is_closed, next_number: root.next_number }
    }

    /// Applies the records behind the newest one that was applied; returns how many there were.
    pub(crate) fn replay(&mut self, requests: &Requests) -> io::Result<usize> {
        let after = journal_name(self.live.seq);
        let mut count = 0;
        let infos = requests.list(JOURNAL, Some(&after))?;
        let mut names: Vec<(String, u64)> = Vec::new();
        for info in infos {
            let seq = journal_seq(&info.name)
                .ok_or_else(|| damaged(requests, &info.name, "its name is no number"))?;
            if seq != self.live.seq + 1 + names.len() as u64 {
                let missing = journal_name(self.live.seq + 1 + names.len() as u64);
                return Err(damaged(requests, &missing, "it is missing, and later ones are there"));
            }
            names.push((info.name, info.bytes));
        }
        for part in names.chunks(REPLAY_AT_ONCE) {
            let ranges: Vec<_> =
                part.iter().map(|(name, bytes)| (name.clone(), 0..*bytes)).collect();
            for ((name, _), bytes) in part.iter().zip(requests.read_all(&ranges)?) {
                self.apply(requests, name, &bytes)?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// Applies the next record.
    pub(crate) fn apply(
        &mut self,
        requests: &Requests,
        name: &str,
        bytes: &Bytes,
    ) -> io::Result<()> {
        let record: Record = decode(name, bytes).map_err(|what| damaged(requests, name, &what))?;
        let live = &mut self.live;
        if live.seq == 0 && live.store == 0 {
            live.store = record.store;
        }
        let is_next_epoch = matches!(record.kind, Kind::Fence(_));
        let epoch = self.epoch + u64::from(is_next_epoch);
        if (record.store, record.seq, record.epoch) != (live.store, live.seq + 1, epoch) {
            let what = format!(
                "it is record {} of epoch {} of store {:x}, in place of record {} of epoch {epoch} of store {:x}",
                record.seq,
                record.epoch,
                record.store,
                live.seq + 1,
                live.store
            );
            return Err(damaged(requests, name, &what));
        }
        live.seq = record.seq;
        (live.tree.seq, live.tree.at) = (record.seq, record.at);
        live.records_since_root += 1;
        live.bytes_since_root += bytes.len() as u64;
        self.next_number = record.next_number;
        match record.kind {
            Kind::Fence(owner) => {
                if !self.is_closed {
                    live.fences.push(record.seq);
                }
                (self.epoch, self.owner, self.is_closed) = (record.epoch, owner, false);
            }
            Kind::Close => self.is_closed = true,
            Kind::Changes(changes) => {
                for change in &changes {
                    live.tree.apply(change).map_err(|error| {
                        damaged(requests, name, &format!("a change cannot be done: {error}"))
                    })?;
                }
            }
        }
        live.tree.seq = record.seq + 1;
        Ok(())
    }
}
