//! A server with a real file system, and clients over the loopback interface.
#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods)]

mod against_model;
mod departed;
mod hostile;
mod inquiries;
mod leases;
mod restarts;
mod soft;
mod stuck;
mod support;
mod versions;
