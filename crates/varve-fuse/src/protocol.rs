//! The kernel's FUSE protocol: bytes to requests and answers to bytes, without any I/O.
//!
//! Structures and numbers are those of `include/uapi/linux/fuse.h`, protocol 7.45 (Linux 6.18), under the
//! kernel's names. Everything is in the machine's byte order.
//!
//! 1. [`request::Header::decode`] and [`request::Request::decode`] read what the kernel has sent. Names and
//!    data stay in its buffer.
//! 2. [`reply::Reply`] builds what goes back, in a buffer that is used again and again.
//! 3. [`ring`] lays both out in the memory of a ring entry, where they travel over io_uring.

pub(crate) mod constants;
pub(crate) mod reply;
pub(crate) mod request;
pub(crate) mod ring;

#[cfg(test)]
mod tests;
