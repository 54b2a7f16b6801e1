//! Reads the rows about requests of clients.

use bytes::Bytes;
use varve_engine::{Direction, KeyRange};
use varve_schema::{ClientRow, REQUESTS, RequestRow, RequestsKey};
use varve_vfs::FsResult;

use super::Check;
use crate::error;

impl Check<'_> {
    pub(super) fn check_requests(&mut self) -> FsResult<()> {
        let Some(space) = self.volume.requests else { return Ok(()) };
        self.begin(REQUESTS);
        let rows = self.snapshot.scan(space, KeyRange::all(), Direction::Forward);
        for row in rows.map_err(error::store)? {
            let (key, value): (Bytes, Bytes) = row.map_err(error::store)?;
            self.step(REQUESTS);
            let read = match RequestsKey::from_bytes(&key) {
                Some(RequestsKey::Client(_)) => ClientRow::decode(&value).map(drop),
                Some(RequestsKey::Slot(..)) => RequestRow::decode(&value).map(drop),
                None => {
                    self.unknown(REQUESTS, key)?;
                    continue;
                }
            };
            if let Err(cause) = read {
                self.unreadable(REQUESTS, key, &cause)?;
            }
        }
        Ok(())
    }
}
