//! Set-id bits, which writes to large files take.

use std::sync::Arc;

use varve_env::sim::{FaultRule, SimEnv, SimOp};
use varve_fs::{FormatOptions, VarveFs};
use varve_types::InodeId;
use varve_vfs::{Caller, Handle, SetAttr, Vfs};

use crate::crash::{open, sim_store};
use crate::data::fill;
use crate::support::{BOTH, Calls, ROOT};

/// A large file that runs as its owner, open to be changed.
fn open_program(env: &Arc<SimEnv>) -> (VarveFs, InodeId, Handle) {
    let fs = open(env);
    let ino = fs.mk(ROOT, "program");
    fs.put_at(ino, 0, &[1; 100_000]);
    let set = SetAttr { perm: Some(0o4777), ..SetAttr::default() };
    fs.setattr(Caller::ROOT, ino, set).unwrap();
    let handle = fs.open_as(ino, BOTH);
    (fs, ino, handle)
}

/// Whoever may write to a program that runs as its owner could change it and leave it so, where its row could not follow.
#[test]
fn set_id_bits_go_before_the_bytes_of_a_large_file_change() {
    let env = sim_store(11, &FormatOptions::default());
    let (fs, ino, handle) = open_program(&env);
    let path_suffix = ".wal".to_owned();
    env.fail(FaultRule { path_suffix, op: SimOp::Write, nth: 1, errno: 5, sticky: true });
    fs.write(ino, handle, 0, b"other", true).unwrap_err();
    assert_eq!(fs.getattr(ino).unwrap().perm, 0o4777);
    assert_eq!(fs.read(ino, handle, 0, 5).unwrap(), [1; 5][..]);
}

#[test]
fn set_id_bits_go_though_the_disk_is_nearly_full() {
    let env = sim_store(11, &FormatOptions::default());
    let (fs, ino, handle) = open_program(&env);
    fill(&env, &fs);
    assert_eq!(fs.write(ino, handle, 0, b"other", true).unwrap().bytes, 5);
    assert_eq!(fs.getattr(ino).unwrap().perm, 0o777);
}

/// The bit stays where the group may not execute: each write committed the row as it was, on a full disk out of what is kept for
/// that which makes room.
#[test]
fn a_write_that_takes_no_set_id_bit_writes_no_row() {
    let env = sim_store(11, &FormatOptions::default());
    let (fs, ino, handle) = open_program(&env);
    let set = SetAttr { perm: Some(0o2664), ..SetAttr::default() };
    fs.setattr(Caller::ROOT, ino, set).unwrap();
    let path_suffix = ".wal".to_owned();
    env.fail(FaultRule { path_suffix, op: SimOp::Write, nth: 1, errno: 5, sticky: true });
    assert_eq!(fs.write(ino, handle, 0, b"other", true).unwrap().bytes, 5);
    assert_eq!(fs.read(ino, handle, 0, 5).unwrap(), b"other"[..]);
    assert_eq!(fs.getattr(ino).unwrap().perm, 0o2664);
}
