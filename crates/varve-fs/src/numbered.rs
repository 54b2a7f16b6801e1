//! Numbered requests: a call leaves a row that says that it was done, in the batch that makes its effect visible.
//!
//! 1. [`VarveFs::do_numbered`] notes the request for its thread and runs the call.
//! 2. The call decides as ever. Batches that prepare it (names of a clone that are copied, a file that moves to an object)
//!    are written by [`VarveFs::commit`]; the one that makes its effect visible by [`VarveFs::commit_call`], which adds the row.
//! 3. That batch is written or not, and the row with it. Then the thread has no request any more.
//!
//! The rows are in [a key space of their own](crate::requests), of the main tree alone.

use std::cell::Cell;

use bytes::Bytes;
use varve_engine::{Batch, Direction, KeyRange};
use varve_namespace::Changes;
use varve_schema::{ClientRow, DecodeError, REQUESTS, RequestResult, RequestRow, RequestsKey};
use varve_types::{ClientId, KeyspaceId};
use varve_vfs::{FsError, FsResult, Gave, RequestDone, RequestId, SetIdTaken, Written};

use crate::error;
use crate::fs::VarveFs;
use crate::requests::Requests;
use crate::rows::AlsoRow;

/// Rows that one batch removes.
const REMOVED_ROWS_MAX: usize = 1000;

thread_local! {
    /// The request that this thread does, and the address of the file system that does it.
    static DOING: Cell<Option<(usize, RequestId)>> = const { Cell::new(None) };
}

/// Has the thread do what it did before.
struct Before(Option<(usize, RequestId)>);

impl Drop for Before {
    fn drop(&mut self) {
        DOING.set(self.0);
    }
}

impl VarveFs {
    pub(crate) fn do_numbered(&self, request: RequestId, call: &mut dyn FnMut()) {
        let _before = Before(DOING.replace(Some((self.address(), request))));
        call();
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// [`VarveFs::commit`] of the batch that makes the effect of a call of `Vfs` visible, which gives `gave`: with the row of the
    /// request, if the call is numbered.
    pub(crate) fn commit_call(&self, changes: &mut Changes, gave: Gave) -> FsResult<()> {
        let request = DOING.get().filter(|(fs, _)| *fs == self.address());
        let (Some((_, request)), Some(requests)) = (request, &self.requests) else {
            return self.commit(changes);
        };
        let RequestId { client, slot, number } = request;
        let row = AlsoRow {
            space: requests.space()?,
            key: RequestsKey::Slot(client, slot).to_bytes(),
            value: RequestRow { number, result: stored(gave) }.encode(),
        };
        self.commit_also(changes, Some(row))?;
        DOING.set(None);
        Ok(())
    }

    pub(crate) fn do_request_done(
        &self,
        client: ClientId,
        slot: u32,
    ) -> FsResult<Option<RequestDone>> {
        let Some(space) = self.requests_space() else { return Ok(None) };
        let key = RequestsKey::Slot(client, slot);
        let Some(row) = self.store.get(space, &key.to_bytes()).map_err(error::store)? else {
            return Ok(None);
        };
        let RequestRow { number, result } =
            RequestRow::decode(&row).map_err(|cause| unreadable(key, &cause))?;
        Ok(Some(RequestDone { number, gave: given(result) }))
    }

    pub(crate) fn do_remember_client(&self, client: ClientId) -> FsResult<()> {
        self.writable()?;
        let requests = self.requests.as_ref().ok_or(FsError::NotSupported("clients of a view"))?;
        let mut batch = Batch::new();
        batch.put(requests.space()?, RequestsKey::Client(client).to_bytes(), ClientRow.encode());
        self.store.write(batch).map_err(error::store)
    }

    pub(crate) fn do_remembered_clients(&self) -> FsResult<Vec<ClientId>> {
        let Some(space) = self.requests_space() else { return Ok(Vec::new()) };
        let range = KeyRange::prefix(&RequestsKey::clients_prefix());
        let mut clients = Vec::new();
        for row in self.store.scan(space, range, Direction::Forward).map_err(error::store)? {
            let (key, row) = row.map_err(error::store)?;
            let Some(key @ RequestsKey::Client(client)) = RequestsKey::from_bytes(&key) else {
                continue;
            };
            ClientRow::decode(&row).map_err(|cause| unreadable(key, &cause))?;
            clients.push(client);
        }
        Ok(clients)
    }

    pub(crate) fn do_forget_client(&self, client: ClientId) -> FsResult<()> {
        let Some(space) = self.requests_space() else { return Ok(()) };
        self.writable()?;
        let slots = KeyRange::prefix(&RequestsKey::slots_prefix(client));
        let keys = self.store.keys(space, slots).map_err(error::store)?;
        // The client last: whoever finds it after a crash forgets the rest.
        let own = Ok(Bytes::from(RequestsKey::Client(client).to_bytes()));
        let mut batch = Batch::new();
        for key in keys.chain([own]) {
            batch.delete(space, key.map_err(error::store)?);
            if batch.ops().len() >= REMOVED_ROWS_MAX {
                batch.reclaims_space();
                self.store.write(std::mem::take(&mut batch)).map_err(error::store)?;
            }
        }
        batch.reclaims_space();
        self.store.write(batch).map_err(error::store)
    }

    /// The key space of the rows, if there are any.
    fn requests_space(&self) -> Option<KeyspaceId> {
        self.requests.as_ref().and_then(Requests::known_space)
    }
}

fn unreadable(key: RequestsKey, cause: &DecodeError) -> FsError {
    let of = match key {
        RequestsKey::Client(client) => format!("client {client}"),
        RequestsKey::Slot(client, slot) => format!("slot {slot} of client {client}"),
    };
    FsError::Damaged(format!(
        "the row of {of} in key space {REQUESTS} cannot be read: {cause}; run `varve fsck`"
    ))
}

/// What a request gave, as its row says it.
fn stored(gave: Gave) -> RequestResult {
    match gave {
        Gave::Nothing => RequestResult::Nothing,
        Gave::Inode(ino) => RequestResult::Inode(ino),
        Gave::Written(Written { offset, bytes, set_id }) => {
            let set_id = match set_id {
                SetIdTaken::None => 0,
                SetIdTaken::All => 1,
                SetIdTaken::AllButGroup => 2,
            };
            RequestResult::Written { offset, bytes: bytes as u64, set_id }
        }
    }
}

/// What a row says that a request gave.
fn given(result: RequestResult) -> Gave {
    match result {
        RequestResult::Nothing => Gave::Nothing,
        RequestResult::Inode(ino) => Gave::Inode(ino),
        RequestResult::Written { offset, bytes, set_id } => {
            let set_id = match set_id {
                0 => SetIdTaken::None,
                1 => SetIdTaken::All,
                _ => SetIdTaken::AllButGroup,
            };
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            Gave::Written(Written { offset, bytes, set_id })
        }
    }
}
