//! The file system's rows and keys
