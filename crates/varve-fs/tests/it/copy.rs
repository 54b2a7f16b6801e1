//! Copying between files of every size class, without a kernel in between.

use varve_types::InodeId;
use varve_vfs::{FsError, Handle, Position, Vfs};

use crate::support::{BOTH, Calls, READ, ROOT, Rig};

const SIZES: [usize; 4] = [0, 300, 30_000, 300_000];

fn at(ino: InodeId, handle: Handle, offset: u64) -> Position {
    Position { ino, handle, offset }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8 + 1).collect()
}

#[test]
fn ranges_are_copied_between_files_of_every_size() {
    let rig = Rig::new();
    for size in SIZES {
        for old in SIZES {
            let (from, to) = (
                rig.mk(ROOT, &format!("from-{size}-{old}")),
                rig.mk(ROOT, &format!("to-{size}-{old}")),
            );
            rig.put_at(from, 0, &bytes(size));
            rig.put_at(to, 0, &vec![255; old]);
            let (source, target) = (rig.open_as(from, READ), rig.open_as(to, BOTH));
            let (start, place) = (size as u64 / 3, old as u64 / 2);
            let mut copied = 0;
            loop {
                let (a, b) = (at(from, source, start + copied), at(to, target, place + copied));
                match rig.copy_range(a, b, 1 << 40).unwrap() {
                    0 => break,
                    more => copied += more,
                }
            }
            let mut model = vec![255; old];
            let part = &bytes(size)[start as usize..];
            model.resize(old.max(old / 2 + part.len()), 0);
            model[old / 2..old / 2 + part.len()].copy_from_slice(part);
            rig.release(from, source).unwrap();
            rig.release(to, target).unwrap();
            assert!(rig.contents(to) == model, "{size} over {old}");
            assert_eq!(rig.getattr(to).unwrap().size, model.len() as u64);
        }
    }
    assert_eq!(rig.check(&mut |_| ()).unwrap().findings, []);
}

#[test]
fn copies_that_make_no_sense_are_refused() {
    let rig = Rig::new();
    let file = rig.mk(ROOT, "f");
    rig.put_at(file, 0, &bytes(300_000));
    let (both, read) = (rig.open_as(file, BOTH), rig.open_as(file, READ));
    let append = rig.open_as(file, varve_vfs::OpenFlags { append: true, ..BOTH });
    let copy = |from, to, len| rig.copy_range(from, to, len);
    let overlap = copy(at(file, both, 10), at(file, both, 0), 11);
    assert!(matches!(overlap, Err(FsError::Invalid(_))));
    assert_eq!(copy(at(file, both, 10), at(file, both, 0), 10).unwrap(), 10);
    for (from, to) in [(both, read), (both, append), (Handle(99), both)] {
        let refused = copy(at(file, from, 0), at(file, to, 1000), 10);
        assert!(matches!(refused, Err(FsError::BadHandle)), "{from:?} {to:?}");
    }
    let far = copy(at(file, both, 0), at(file, both, i64::MAX as u64), 10);
    assert!(matches!(far, Err(FsError::FileTooLarge)));
    for handle in [both, read, append] {
        rig.release(file, handle).unwrap();
    }
}
