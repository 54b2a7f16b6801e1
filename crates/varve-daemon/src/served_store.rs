//! Answers commands about a store that is served, on the machine that has it: by the sockets in the store, as the daemon of a mount does.
//!
//! Invariant: no request is under way when the store is closed ([`ServedStore::end`]).

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard};
use serde_json::Value;
use varve::{Error, Result};
use varve_fs::fsck::Progress;
use varve_server::Server;
use varve_vfs::FsError;

use crate::control::{Answers, Report, ViewRequest, answer};
use crate::kv::protocol::{Failure, Request, Response};
use crate::kv::{self, DictionaryHost};
use crate::served_views::ServedViews;
use crate::service::{Admitted, GateClosed};
use crate::transfer;

/// A store that is served.
pub(crate) struct ServedStore {
    server: Arc<Server>,
    views: Arc<ServedViews>,
    read_only: bool,
    has_ended: RwLock<bool>,
}

impl ServedStore {
    pub(crate) fn new(
        server: &Arc<Server>,
        views: &Arc<ServedViews>,
        read_only: bool,
    ) -> Arc<ServedStore> {
        let (server, views) = (Arc::clone(server), Arc::clone(views));
        Arc::new(ServedStore { server, views, read_only, has_ended: RwLock::new(false) })
    }

    /// Waits for requests that are under way, and refuses others from now on.
    pub(crate) fn end(&self) {
        *self.has_ended.write() = true;
    }

    /// The store stays open until the result is dropped.
    fn open(&self) -> Result<RwLockReadGuard<'_, bool>> {
        // Not behind one who waits for the end: a commit may wait for the locks that another one releases.
        let ended = self.has_ended.read_recursive();
        match *ended {
            false => Ok(ended),
            true => Err(Error::failed("the server ends").hint("ask again when it is back")),
        }
    }
}

impl Answers for ServedStore {
    fn enter(&self) -> Result<Option<Admitted>> {
        Ok(None)
    }

    fn admit(&self, is_change: bool) -> Result<()> {
        if is_change && self.read_only { Err(FsError::ReadOnly.into()) } else { Ok(()) }
    }

    fn answer(
        self: Arc<Self>,
        request: &ViewRequest,
        _progress: &mut dyn FnMut(Progress),
    ) -> Result<Value> {
        let _open = self.open()?;
        self.server.ask(|asked| self.views.answered(request, asked))
    }

    fn transfer(&self, request: &ViewRequest, client: &mut UnixStream) {
        let open = self.open().and_then(|open| match request {
            ViewRequest::Send(_) => Ok(open),
            _ => Err(Error::failed("a store receives no snapshots while it is served")
                .hint("stop the server for that; its mounts wait until it is back")),
        });
        match open {
            Ok(_open) => transfer::serve(self.views.fs(), request, client, |_, _| ()),
            Err(error) => answer(client, &Report::of(&error)),
        }
    }

    fn redesign(&self) -> Result<Value> {
        let _open = self.open()?;
        serde_json::to_value(self.views.fs().redesign()?)
            .map_err(|error| Error::failed(format!("cannot write the result as JSON: {error}")))
    }

    fn server(&self) -> Result<Value> {
        let _open = self.open()?;
        Ok(self.views.told(&self.server.status()))
    }

    fn promise_end(&self) -> Result<()> {
        Err(Error::failed("this store is served, and not mounted")
            .hint("a signal ends the server: SIGTERM, SIGINT or SIGHUP"))
    }

    fn leave(&self) -> Result<GateClosed> {
        Err(Error::failed("a server is not replaced while it runs")
            .hint("stop it and start the new program: mounts wait meanwhile and go on"))
    }
}

impl DictionaryHost for ServedStore {
    fn admit(&self, is_change: bool) -> Result<()> {
        Answers::admit(self, is_change)
    }

    fn answer(&self, transaction: u64, request: &Request) -> Response {
        match self.open() {
            Ok(_open) => kv::answer(self.views.fs(), transaction, request),
            Err(error) => kv::failed(Failure::Storage, &error),
        }
    }
}
