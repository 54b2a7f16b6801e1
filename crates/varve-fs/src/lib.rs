//! The file system on the engine
