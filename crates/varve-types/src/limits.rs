//! Limits on which more than one crate must agree.

/// The longest file name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// The longest symbolic link target, in bytes (PATH_MAX less its NUL).
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// The most names one inode may have.
pub const LINKS_MAX: u32 = 1 << 30;
/// The largest file, in bytes: the largest offset the kernel can express.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// The longest name of an extended attribute, in bytes (the kernel's XATTR_NAME_MAX).
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// The longest value of an extended attribute, in bytes (the kernel's XATTR_SIZE_MAX).
pub const XATTR_VALUE_BYTES_MAX: usize = 65_536;
/// The longest list of attribute names of one inode, in bytes (the kernel's XATTR_LIST_MAX).
pub const XATTR_LIST_BYTES_MAX: usize = 65_536;
/// The most bytes that the names and values of all extended attributes of one inode take together. They fit into one
/// batch.
pub const XATTRS_BYTES_MAX: usize = 1 << 20;
/// The longest key of a key space, in bytes.
pub const KEY_BYTES_MAX: usize = 1 << 16;
/// The longest value of a key space, in bytes.
pub const VALUE_BYTES_MAX: usize = 1 << 24;
/// The most bytes of one atomic batch.
pub const BATCH_BYTES_MAX: usize = 1 << 28;
