//! Adapts any Vfs to the kernel through FUSE
