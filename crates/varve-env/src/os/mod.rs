//! The real operating system.
