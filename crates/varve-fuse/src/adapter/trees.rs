//! Attributes that stand for what the file system knows of directory trees. Any program can ask for them by name;
//! no listing shows them, so that no copy takes them along.
//!
//! | name | value |
//! | --- | --- |
//! | `varve.usage` | what lies below: `{"bytes":N,"files":N,"directories":N}` |
//!
//! They lie outside the kernel's namespaces for attributes, where whoever may read a directory may read them.

use varve_vfs::{FsError, FsResult, TreeUsage};

use super::Adapter;
use varve_types::InodeId;

/// What all their names begin with.
const PREFIX: &[u8] = b"varve.";

/// Whether `name` stands for something that is known of a tree.
pub(super) fn is_of_tree(name: &[u8]) -> bool {
    name.starts_with(PREFIX)
}

impl Adapter {
    /// The value of the attribute `name` of `ino`.
    pub(super) fn get_of_tree(&self, ino: InodeId, name: &[u8]) -> FsResult<String> {
        match name {
            b"varve.usage" => Ok(usage_json(&self.vfs.usage(ino)?)),
            _ => Err(FsError::NoXattr),
        }
    }
}

fn usage_json(usage: &TreeUsage) -> String {
    let TreeUsage { bytes, files, dirs } = usage;
    format!(r#"{{"bytes":{bytes},"files":{files},"directories":{dirs}}}"#)
}
