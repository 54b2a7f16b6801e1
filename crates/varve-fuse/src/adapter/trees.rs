//! Serves attributes about directory trees. Any program can ask for them by name. No listing shows them, so that no
//! copy of a file takes them along.
//!
//! | name | value |
//! | --- | --- |
//! | `varve.usage` | what lies below: `{"bytes":N,"files":N,"directories":N}` |
//! | `varve.limits` | the limits that hold for a directory, and those below it: a list of objects with `path` (from the mount's root on; a list of its bytes if it is no text), `bytes_max`, `inodes_max` (or null), `bytes`, `files`, `directories` |
//! | `varve.limits.N` | the same list without its first N entries, as many as an attribute can hold |
//!
//! A program sets `varve.limits` to words like `bytes=N inodes=N`, of which one may be absent, or removes it.
//!
//! These names are outside of the kernel's namespaces for attributes, so a user who may read a directory may read
//! them. The superuser and the user who mounted (and runs this program) may set limits and see all. Other users see
//! only the limits on the directory itself, because they may have no access to directories below.

use varve_types::InodeId;
use varve_types::limits::XATTR_VALUE_BYTES_MAX;
use varve_vfs::{FsError, FsResult, TreeLimits, TreeQuota, TreeUsage};

use super::Adapter;
use super::said::limits_in;
use crate::groups::user_of;
use crate::protocol::request::Header;

/// The prefix of all their names.
const PREFIX: &[u8] = b"varve.";
/// The attribute of the limits on trees.
const LIMITS: &[u8] = b"varve.limits";
/// The prefix of a part of the limits; the rest of the name is a number.
const LIMITS_FROM: &[u8] = b"varve.limits.";

/// Returns whether `name` is an attribute about a tree.
pub(super) fn is_of_tree(name: &[u8]) -> bool {
    name.starts_with(PREFIX)
}

/// Fails as `NotPermitted` unless the superuser or the user who mounted makes the request.
pub(super) fn check_may_manage(header: &Header) -> FsResult<()> {
    let user = user_of(header);
    match user == Some(0) || user == Some(rustix::process::geteuid().as_raw()) {
        true => Ok(()),
        false => Err(FsError::NotPermitted),
    }
}

impl Adapter {
    /// Returns the value of the attribute `name` of `ino` for the user who makes the request.
    pub(super) fn get_of_tree(
        &self,
        header: &Header,
        ino: InodeId,
        name: &[u8],
    ) -> FsResult<String> {
        let quotas = || match check_may_manage(header) {
            Ok(()) => self.vfs.quotas(ino),
            Err(_) => self.vfs.quotas_of(ino),
        };
        match name {
            b"varve.usage" => Ok(usage_json(&self.vfs.usage(ino)?)),
            LIMITS => Ok(quotas_json(&quotas()?)),
            _ => {
                let first = name
                    .strip_prefix(LIMITS_FROM)
                    .and_then(|at| std::str::from_utf8(at).ok()?.parse().ok());
                let first = first.ok_or(FsError::NoXattr)?;
                Ok(some_quotas_json(&quotas()?, first))
            }
        }
    }

    /// Sets the attribute `name` of `ino` for the user who makes the request; without a value, removes it.
    pub(super) fn set_of_tree(
        &self,
        header: &Header,
        ino: InodeId,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> FsResult<()> {
        if name != LIMITS {
            return Err(FsError::NotSupported("a change of this attribute"));
        }
        check_may_manage(header)?;
        let limits = match value {
            Some(value) => limits_in(value).ok_or(FsError::Invalid("these are no limits"))?,
            None => TreeLimits::default(),
        };
        self.vfs.set_limits(ino, limits)
    }
}

fn quotas_json(quotas: &[TreeQuota]) -> String {
    format!("[{}]", quotas.iter().map(quota_json).collect::<Vec<_>>().join(","))
}

/// Returns as many limits as an attribute can hold, after the `first` ones: at least one, unless none is left.
fn some_quotas_json(quotas: &[TreeQuota], first: usize) -> String {
    let mut text = String::from("[");
    for object in quotas.iter().skip(first).map(quota_json) {
        let is_first = text.len() == 1;
        if !is_first && text.len() + object.len() + ",]".len() > XATTR_VALUE_BYTES_MAX {
            break;
        }
        text.push_str(if is_first { "" } else { "," });
        text.push_str(&object);
    }
    text + "]"
}

fn quota_json(quota: &TreeQuota) -> String {
    let limit = |limit: Option<u64>| limit.map_or("null".to_owned(), |limit| limit.to_string());
    let TreeQuota { path, limits, usage: TreeUsage { bytes, files, dirs } } = quota;
    let (path, bytes_max, inodes_max) =
        (json_text(path), limit(limits.bytes), limit(limits.inodes));
    format!(
        r#"{{"path":{path},"bytes_max":{bytes_max},"inodes_max":{inodes_max},"bytes":{bytes},"files":{files},"directories":{dirs}}}"#
    )
}

/// Returns bytes as a JSON string, or as a list of numbers if they are not UTF-8.
fn json_text(bytes: &[u8]) -> String {
    let Ok(letters) = std::str::from_utf8(bytes) else { return format!("{bytes:?}") };
    let mut text = String::from("\"");
    for letter in letters.chars() {
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
        assert_eq!(json_text(b"/a\"b\\c\n"), "\"/a\\\"b\\\\c\\u000a\"");
        assert_eq!(json_text(b"/a\xff"), "[47, 97, 255]");
    }

    #[test]
    fn parts_fit_an_attribute_and_leave_nothing_out() {
        let quota = |n: usize| TreeQuota {
            path: format!("/{n:0>600}").into_bytes(),
            limits: TreeLimits { bytes: None, inodes: Some(7) },
            usage: TreeUsage::default(),
        };
        let quotas: Vec<TreeQuota> = (0..1000).map(quota).collect();
        let (mut told, mut parts) = (String::new(), 0);
        loop {
            let part = some_quotas_json(&quotas, told.matches("path").count());
            assert!(part.len() <= XATTR_VALUE_BYTES_MAX);
            if part == "[]" {
                break;
            }
            parts += 1;
            told = [told.as_str(), &part].concat();
        }
        assert_eq!(told.replace("][", ","), quotas_json(&quotas));
        assert!((10..20).contains(&parts), "{parts} parts");
    }
}
