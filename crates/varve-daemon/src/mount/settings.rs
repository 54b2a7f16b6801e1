//! Translates mount options for the kernel, the session and the file system.

use std::path::Path;

use rustix::process::{Resource, Rlimit};
use varve_fs::MountOptions as FsOptions;
use varve_fuse::{IdlePoll, MountMethod, MountOptions, SessionOptions};

use super::options::Choices;

/// More descriptors make nothing faster.
const OPEN_FILES_MAX: usize = 4096;
/// Fewer descriptors are not enough to work with.
const OPEN_FILES_MIN: usize = 16;

/// The options for the kernel, to mount `store`.
pub(crate) fn mount_options(store: &Path, choices: &Choices) -> MountOptions {
    let defaults = MountOptions::new(store);
    let methods = MountMethod::ALL.into_iter();
    MountOptions {
        read_only: choices.read_only,
        allow_other: choices.allow_other.unwrap_or(defaults.allow_other),
        default_permissions: choices.default_permissions,
        no_suid: choices.no_suid,
        no_dev: choices.no_dev,
        no_exec: choices.no_exec,
        no_symfollow: choices.no_symfollow,
        synchronous: choices.synchronous,
        methods: methods
            .filter(|method| *method != MountMethod::Namespace || !choices.no_private)
            .collect(),
        ..defaults
    }
}

/// The options of the session that serves the requests.
pub(crate) fn session_options(choices: &Choices) -> SessionOptions {
    SessionOptions {
        transport: choices.transport,
        threads: choices.threads,
        passthrough: !choices.no_passthrough,
        acl: !choices.no_acl,
        sync_writes: choices.synchronous,
        sync_dirs: choices.synchronous || choices.synchronous_dirs,
        idle_poll: match choices.idle_poll {
            None => IdlePoll::Auto,
            Some(true) => IdlePoll::Always,
            Some(false) => IdlePoll::Never,
        },
        give_way: !choices.no_give_way,
        ..SessionOptions::default()
    }
}

/// Descriptors that tables and objects may take: half of what the process may have, after asking for all the
/// machine grants. The rest is for the connection, logs, and what operations hold for a moment.
fn open_files_max() -> usize {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let granted = match rustix::process::setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    let granted = granted.and_then(|granted| usize::try_from(granted).ok());
    (granted.unwrap_or(usize::MAX) / 2).clamp(OPEN_FILES_MIN, OPEN_FILES_MAX)
}

/// The options of the file system that is mounted on `dir`.
pub(super) fn fs_options(choices: &Choices, dir: &Path) -> FsOptions {
    let defaults = FsOptions::default();
    let memory_budget_bytes = choices
        .memory_bytes
        .map_or(defaults.memory_budget_bytes, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    FsOptions {
        read_only: choices.read_only,
        atime: choices.atime,
        dir_atime: !choices.no_dir_atime,
        acl: !choices.no_acl,
        memory_budget_bytes,
        passthrough: !choices.no_passthrough,
        new_files: choices.new_files,
        open_files_max: open_files_max(),
        mount_point: Some(dir.to_path_buf()),
        ..defaults
    }
}

/// The next step for a change of a mount on `dir` that was mounted with `ro`.
pub(crate) fn mount_again(dir: &Path) -> String {
    format!("`varve umount {}`, and mount it again without `ro`", dir.display())
}
