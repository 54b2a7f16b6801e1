//! Lets clients in, and answers those who only want to know how the server is.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use varve_types::{FileName, InodeId};
use varve_vfs::{FileType, FsError, FsResult, Vfs};
use varve_wire::frame::{self, Kind};
use varve_wire::{DATA_BYTES_MAX, FrameError, Header, Hello, Inquiry, Refused, VERSION, Welcome};

use crate::calls::Service;
use crate::connection::Connection;
use crate::host::NOBODY;
use crate::journal::{Subject, on_one_line, time};
use crate::reactor::Ended;
use crate::server::Shared;
use crate::session::{Arrival, Introduction, SLOTS, Session};
use crate::status::Status;

const UNKNOWN_TOKEN: &str = "the server does not know the client's token";
/// The most inquiries at a time.
pub(crate) const INQUIRIES_MAX: usize = 64;

impl Shared {
    /// Does not let a client in, and says why.
    fn refuse(
        &self,
        connection: &Connection,
        name: &str,
        is_temporary: bool,
        reason: &str,
    ) -> Result<(), Ended> {
        let refused = Refused { is_temporary, reason: reason.to_owned() };
        connection.put(Header::new(Kind::Refused, self.options.epoch), &refused, &[]);
        let _ = connection.flush();
        self.note_refusal(connection, name, reason);
        Err(Ended::Io(io::Error::new(ErrorKind::PermissionDenied, reason)))
    }

    fn note_refusal(&self, connection: &Connection, name: &str, reason: &str) {
        self.meters.refused_hellos.add(1);
        self.journal.write(Subject::Refused, || {
            let (name, reason) = (on_one_line(name), on_one_line(reason));
            format!("{} {name}: not let in: {reason}", connection.address)
        });
    }

    /// The bytes of a connection are no message. If the client speaks another version of the protocol, refuses it in that version:
    /// headers and refusals are the same in all.
    pub(crate) fn not_understood(&self, connection: &Connection, error: &FrameError) {
        let FrameError::Version(version) = *error else { return };
        if connection.silent_since_ms().is_none() {
            return;
        }
        let reason = format!(
            "the server speaks version {VERSION} of the protocol (varve {}), and the client version {version}: \
             use programs of one version on both machines",
            env!("CARGO_PKG_VERSION")
        );
        let refused = Refused { is_temporary: false, reason };
        let mut message = Vec::new();
        varve_wire::encode(
            &mut message,
            Header::new(Kind::Refused, self.options.epoch),
            &refused,
            &[],
        );
        frame::set_version(&mut message, version);
        connection.put_again(&message);
        let _ = connection.flush();
        self.note_refusal(connection, "", &refused.reason);
    }

    /// Tells somebody what the server has and does.
    pub(crate) fn inquiry(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        inquiry: &Inquiry<'_>,
    ) -> Result<(), Ended> {
        const WHO: &str = "who asks for the status";
        if !same_secret(inquiry.token, &self.options.token) {
            return self.refuse(connection, WHO, false, UNKNOWN_TOKEN);
        }
        if self.views.host().is_none() {
            return self.refuse(
                connection,
                WHO,
                false,
                "this server has nothing to tell of itself",
            );
        }
        let Some(share) = self.inquiries.take(connection.address.ip()) else {
            return self.refuse(
                connection,
                WHO,
                true,
                "the server answers too many such questions already",
            );
        };
        if !connection.inquires(share) {
            return Err(FrameError::Unexpected("one question on a connection is answered").into());
        }
        let (shared, connection) = (Arc::clone(self), Arc::clone(connection));
        let answer = move || {
            let Some(host) = shared.views.host() else { return };
            let report = host.report(&Status::of(&shared));
            if report.len() > DATA_BYTES_MAX {
                let reason = format!(
                    "what the server tells takes {} bytes, and a message holds {DATA_BYTES_MAX}: ask on the machine that has \
                     the store",
                    report.len()
                );
                // The reason is sent; nothing else may come from here.
                let _ = shared.refuse(&connection, WHO, false, &reason);
                return connection.end();
            }
            connection.put(Header::new(Kind::Report, shared.options.epoch), &(), &report);
            if connection.flush().is_err() {
                connection.end();
            }
        };
        // The file system may take long.
        self.workers.run(NOBODY, Box::new(answer));
        Ok(())
    }

    pub(crate) fn hello(
        &self,
        connection: &Arc<Connection>,
        hello: &Hello<'_>,
    ) -> Result<(), Ended> {
        let refuse = |is_temporary: bool, reason: &str| {
            self.refuse(connection, hello.name, is_temporary, reason)
        };
        if !same_secret(hello.token, &self.options.token) {
            return refuse(false, UNKNOWN_TOKEN);
        }
        let Hello { client, connection: number, name, path, .. } = *hello;
        let read_only = hello.read_only || self.options.read_only;
        // A server that may change nothing knows no clients of the one before, and no file goes under it.
        let may_reopen = self.options.read_only || self.is_grace.load(Ordering::Acquire);
        let root = InodeId::ROOT;
        let who = Introduction { client, connection: number, name, root, read_only, may_reopen };
        let view = trimmed(path);
        let make = |view| self.view_service(view);
        let entered = self.views.enter(view, make, |service| self.enter(service, &who, connection));
        let entered = entered.unwrap_or_else(|| {
            // The root of a session stays, whatever becomes of its path.
            let known = self.main.sessions.root(client);
            let root = known.map_or_else(|| walk(&*self.main.vfs, path), Ok)?;
            Ok(self.enter(&self.main, &Introduction { root, ..who }, connection))
        });
        let session = match entered {
            Ok(Some(session)) => session,
            Ok(None) => {
                return refuse(
                    true,
                    "the server has as many clients or connections as it can have",
                );
            }
            Err(error) => {
                let path = String::from_utf8_lossy(path);
                return refuse(false, &format!("/{path} cannot be mounted: {error}"));
            }
        };
        let welcome = Welcome {
            features: 0,
            file_system: self.options.file_system,
            session: session.id.0,
            root: session.root.get(),
            slots: SLOTS,
            session_ms: u32::try_from(self.options.session.as_millis()).unwrap_or(u32::MAX),
            read_only: session.read_only,
        };
        connection.put(Header::new(Kind::Welcome, self.options.epoch), &welcome, &[]);
        Ok(())
    }

    /// Finds or begins the session of a client with a file system. `None` if there are too many.
    fn enter(
        &self,
        service: &Arc<Service>,
        who: &Introduction<'_>,
        connection: &Arc<Connection>,
    ) -> Option<Arc<Session>> {
        let now_ms = self.clock.now_ms();
        let who = Introduction {
            root: service.root.unwrap_or(who.root),
            read_only: who.read_only || service.read_only,
            // Nobody has noted who used a view: who comes this early may have had a session at the server before.
            may_reopen: who.may_reopen || (service.root.is_some() && now_ms < self.session_ms()),
            ..*who
        };
        let (session, arrival) = service.sessions.connect(&who, connection, now_ms)?;
        connection.belongs_to(&session, service);
        match arrival {
            Arrival::New => {
                let how = if session.read_only { ", read-only" } else { "" };
                let line = || format!("{}: a session begins{how}", session.described());
                self.journal.write(Subject::Sessions, line);
                remember(service, &session);
            }
            Arrival::Back { away_ms } => self.journal.write(Subject::Sessions, || {
                format!("{}: is back after {}", session.described(), time(away_ms))
            }),
            Arrival::Again => {}
        }
        Some(session)
    }
}

/// Has the file system keep notes of the client's requests over a restart.
fn remember(service: &Service, session: &Session) {
    match service.vfs.remember_client(session.client_id()) {
        Ok(()) | Err(FsError::NotSupported(_) | FsError::ReadOnly) => {}
        Err(error) => log::error!(
            "{}: requests may be executed twice after a restart of the server: {error}",
            session.name
        ),
    }
}

/// A path without slashes at its ends.
fn trimmed(path: &[u8]) -> &[u8] {
    let is_slash = |byte: &u8| *byte == b'/';
    let begin = path.iter().position(|byte| !is_slash(byte)).unwrap_or(path.len());
    let end = path.iter().rposition(|byte| !is_slash(byte)).map_or(begin, |last| last + 1);
    &path[begin..end]
}

/// Compares secrets in a time that depends only on their lengths.
fn same_secret(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len()
        && one.iter().zip(other).fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
}

/// Finds a directory by its path.
fn walk(vfs: &dyn Vfs, path: &[u8]) -> FsResult<InodeId> {
    let mut dir = InodeId::ROOT;
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        let found = vfs.lookup(dir, FileName::new(name)?)?;
        vfs.forget(found.attr.ino, 1);
        if found.attr.kind != FileType::Directory {
            return Err(FsError::NotDirectory);
        }
        dir = found.attr.ino;
    }
    Ok(dir)
}
