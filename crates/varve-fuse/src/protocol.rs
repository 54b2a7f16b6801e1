//! The kernel's FUSE protocol: decodes requests and encodes answers, without any I/O.
//!
//! Structures and numbers come from `include/uapi/linux/fuse.h`, protocol 7.45 (Linux 6.18), under the kernel's
//! names. All integers are in the machine's byte order.
//!
//! 1. [`request::Header::decode`] and [`request::Request::decode`] read what the kernel has sent. Names and
//!    data stay in its buffer.
//! 2. [`reply::Reply`] builds an answer in a buffer that is used again and again.
//! 3. [`ring`] lays both out in the memory of a ring entry, where they travel over io_uring.

pub(crate) mod constants;
pub(crate) mod reply;
pub(crate) mod request;
pub(crate) mod ring;

#[cfg(test)]
mod tests;
