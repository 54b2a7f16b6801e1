//! `fio` with verification: several ways of doing I/O, direct and buffered, in order and at random, with and
//! without fsync between, on files that stay small and on files that outgrow the row.

use super::{Effort, Ground, Tally, tools};
use crate::run::{Outcome, Step};

/// Ways of doing I/O; mapped I/O cannot be direct.
const ENGINES: &[(&str, bool)] = &[
    ("sync", true),
    ("psync", true),
    ("pvsync2", true),
    ("mmap", false),
    ("libaio", true),
    ("posixaio", true),
    ("io_uring", true),
];

/// Sizes of the files, in bytes: below and above 64 KiB.
const SIZES: &[u64] = &[48 << 10, 6 << 20];

/// Writes between two calls of fsync; 0 is none.
const FSYNC_EVERY: &[u32] = &[0, 16];

/// How much larger files of a soak are.
const LONG_FACTOR: u64 = 16;

/// Runs each combination as two jobs at once, each on its own file, and reads everything back.
pub(super) fn run(ground: &mut Ground, effort: &mut Effort, tally: &mut Tally) -> Outcome {
    let Some(program) = tools::find("fio") else {
        tally.not_run(tools::missing("fio"));
        return Ok(());
    };
    let dir = ground.dir().join("fio");
    std::fs::create_dir(&dir)?;
    loop {
        for (engine, may_be_direct) in ENGINES {
            for is_direct in [false, true] {
                if is_direct && !may_be_direct {
                    continue;
                }
                for (order, size, fsync) in combinations() {
                    let large = if effort.is_long() && size > 64 << 10 { LONG_FACTOR } else { 1 };
                    let name =
                        format!("{engine} direct={is_direct} {order} size={size} fsync={fsync}");
                    let outcome = Step::new("timeout")
                        .args(["-k", "5", "300"])
                        .arg(&program)
                        .args(["--name=job", "--numjobs=2", "--bs=4k", "--iodepth=8"])
                        .args([
                            "--verify=crc32c",
                            "--verify_fatal=1",
                            "--do_verify=1",
                            "--verify_state_save=0",
                        ])
                        .arg(format!("--directory={}", dir.display()))
                        .arg(format!("--ioengine={engine}"))
                        .arg(format!("--direct={}", u8::from(is_direct)))
                        .arg(format!("--rw={order}"))
                        .arg(format!("--size={}", size * large))
                        .arg(format!("--fsync={fsync}"))
                        .arg(format!("--randseed={}", effort.seed()))
                        .arg("--output-format=terse")
                        .quiet();
                    tally.case(&name, outcome);
                    for entry in std::fs::read_dir(&dir)? {
                        std::fs::remove_file(entry?.path())?;
                    }
                }
            }
        }
        if !effort.next_round() {
            break;
        }
    }
    Ok(())
}

fn combinations() -> impl Iterator<Item = (&'static str, u64, u32)> {
    ["write", "randwrite"].into_iter().flat_map(|order| {
        SIZES
            .iter()
            .flat_map(move |size| FSYNC_EVERY.iter().map(move |fsync| (order, *size, *fsync)))
    })
}
