//! Attributes that stand for what the file system knows of directory trees. Any program can ask for them by name;
//! no listing shows them, so that no copy takes them along.
//!
//! | name | value |
//! | --- | --- |
//! | `varve.usage` | what lies below: `{"bytes":N,"files":N,"directories":N}` |
//! | `varve.limits` | the limits that hold for a directory, and those below it: a list of objects with `path` (from the mount's root on), `bytes_max`, `inodes_max` (or null), `bytes`, `files`, `directories` |
//!
//! `varve.limits` is set to words like `bytes=N inodes=N`, of which one may be absent, and removed.
//!
//! They lie outside the kernel's namespaces for attributes, where whoever may read a directory may read them. Limits
//! are set by the superuser and by the user who mounted, who runs this program.

use varve_types::InodeId;
use varve_vfs::{FsError, FsResult, TreeLimits, TreeQuota, TreeUsage};

use super::Adapter;
use super::said::limits_in;

/// What all their names begin with.
const PREFIX: &[u8] = b"varve.";
/// The limits on trees.
const LIMITS: &[u8] = b"varve.limits";

/// Whether `name` stands for something that is known of a tree.
pub(super) fn is_of_tree(name: &[u8]) -> bool {
    name.starts_with(PREFIX)
}

/// `NotPermitted` unless `uid` is the superuser or the user who mounted.
pub(super) fn check_may_manage(uid: u32) -> FsResult<()> {
    match uid == 0 || uid == rustix::process::geteuid().as_raw() {
        true => Ok(()),
        false => Err(FsError::NotPermitted),
    }
}

impl Adapter {
    /// The value of the attribute `name` of `ino`.
    pub(super) fn get_of_tree(&self, ino: InodeId, name: &[u8]) -> FsResult<String> {
        match name {
            b"varve.usage" => Ok(usage_json(&self.vfs.usage(ino)?)),
            LIMITS => Ok(quotas_json(&self.vfs.quotas(ino)?)),
            _ => Err(FsError::NoXattr),
        }
    }

    /// Sets the attribute `name` of `ino` for the user `uid`; without a value, removes it.
    pub(super) fn set_of_tree(
        &self,
        uid: u32,
        ino: InodeId,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> FsResult<()> {
        if name != LIMITS {
            return Err(FsError::NotSupported("a change of this attribute"));
        }
        check_may_manage(uid)?;
        let limits = match value {
            Some(value) => limits_in(value).ok_or(FsError::Invalid("these are no limits"))?,
            None => TreeLimits::default(),
        };
        self.vfs.set_limits(ino, limits)
    }
}

fn quotas_json(quotas: &[TreeQuota]) -> String {
    let limit = |limit: Option<u64>| limit.map_or("null".to_owned(), |limit| limit.to_string());
    let objects = quotas.iter().map(|quota| {
        let TreeQuota { path, limits, usage: TreeUsage { bytes, files, dirs } } = quota;
        let (path, bytes_max, inodes_max) =
            (json_text(path), limit(limits.bytes), limit(limits.inodes));
        format!(
            r#"{{"path":{path},"bytes_max":{bytes_max},"inodes_max":{inodes_max},"bytes":{bytes},"files":{files},"directories":{dirs}}}"#
        )
    });
    format!("[{}]", objects.collect::<Vec<_>>().join(","))
}

/// Bytes as a JSON string; what is no UTF-8 is replaced.
fn json_text(bytes: &[u8]) -> String {
    let mut text = String::from("\"");
    for letter in String::from_utf8_lossy(bytes).chars() {
        match letter {
            '"' | '\\' => text.extend(['\\', letter]),
            control if u32::from(control) < 0x20 => {
                text.push_str(&format!("\\u{:04x}", u32::from(control)));
            }
            other => text.push(other),
        }
    }
    text.push('"');
    text
}

fn usage_json(usage: &TreeUsage) -> String {
    let TreeUsage { bytes, files, dirs } = usage;
    format!(r#"{{"bytes":{bytes},"files":{files},"directories":{dirs}}}"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_json() {
        assert_eq!(json_text(b"/a\"b\\c\n\xff"), "\"/a\\\"b\\\\c\\u000a\u{fffd}\"");
    }
}
