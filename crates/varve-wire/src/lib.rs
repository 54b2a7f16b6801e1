//! Messages between metadata servers and their clients, as bytes. This crate does no I/O.
