//! The memory of this process, and the part that its allocator keeps.
//!
//! The C library's allocator has several arenas, so that threads do not wait for each other. Freed memory stays with
//! its arena, and mostly with the process. Without glibc the functions here that change something do nothing.

#![allow(unsafe_code, reason = "functions of the C library")]

use std::fs;
use std::io;

use rustix::param::page_size;

/// Returns the bytes of memory that belong to this process and to no file.
pub fn resident_bytes() -> io::Result<u64> {
    // `size resident shared text lib data dirty`, in pages (proc_pid_statm(5)).
    let text = fs::read_to_string("/proc/self/statm")?;
    let pages: Vec<u64> = text.split_whitespace().map_while(|field| field.parse().ok()).collect();
    match pages[..] {
        [_, resident, shared, ..] => Ok(resident.saturating_sub(shared) * page_size() as u64),
        _ => Err(io::Error::other(format!("unexpected /proc/self/statm: {text}"))),
    }
}

/// Limits the allocator to `arenas` arenas; existing arenas stay. False if it refuses.
pub fn limit_arenas(arenas: u16) -> bool {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt(3) may be called at any time, and takes numbers alone.
    return unsafe { libc::mallopt(libc::M_ARENA_MAX, i32::from(arenas)) == 1 };
    #[cfg(not(target_env = "gnu"))]
    return arenas > 0;
}

/// Gives whole free pages of the allocator back to the kernel. Takes some microseconds for each free piece, and
/// blocks threads that use the same arena meanwhile.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) may be called at any time, and takes a number alone.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Holes between pieces that stay are not given back by free(3).
    #[cfg(target_env = "gnu")]
    #[test]
    fn memory_between_what_is_in_use_is_given_back() {
        const PIECES: usize = 4096;
        const PIECE_BYTES: usize = 16 << 10;
        let taken: Vec<Vec<u8>> = (0..PIECES).map(|_| vec![1; PIECE_BYTES]).collect();
        let full = resident_bytes().expect("it is told");
        assert!(full as usize > PIECES * PIECE_BYTES);
        let kept: Vec<Vec<u8>> = taken.into_iter().step_by(16).collect();
        give_back();
        let left = resident_bytes().expect("it is told");
        assert!((full - left) as usize > PIECES * PIECE_BYTES / 2, "{full} {left}");
        assert!(kept.iter().all(|piece| piece.iter().all(|byte| *byte == 1)));
    }

    #[test]
    fn arenas_can_be_limited() {
        assert!(limit_arenas(8));
    }
}
