//! copy_file_range.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};

use rustix::fs::copy_file_range;
use rustix::io::Errno;

use super::{Place, as_user, changed, content, pattern, refused, semantics, tick};

semantics!(copy_ranges, copy_refusals);

/// Nothing, within the inode, in the store, in a file of the storage below.
const SIZES: [usize; 4] = [0, 300, 30_000, 300_000];

fn open_both(path: &std::path::Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// Copies until all is copied or the source ends.
fn copy(from: &File, mut at: u64, to: &File, mut to_at: u64, len: usize) -> usize {
    let mut left = len;
    while left > 0 {
        match copy_file_range(from, Some(&mut at), to, Some(&mut to_at), left).unwrap() {
            0 => break,
            copied => left -= copied,
        }
    }
    len - left
}

fn copy_ranges(place: &Place) {
    let (source, target) = (place.dir().join("source"), place.dir().join("target"));
    for size in SIZES {
        for old in SIZES {
            fs::write(&source, pattern(1, size)).unwrap();
            fs::write(&target, pattern(2, old)).unwrap();
            let (from, to) = (open_both(&source), open_both(&target));
            let mut model = pattern(2, old);
            let cases = [
                (0, 0, size),
                (size / 3, old / 2, 50),
                (0, old + 5000, size + 10),
                (size / 2, 100_000, size),
                (size + 1, 0, 10),
            ];
            for (at, to_at, len) in cases {
                let bytes = pattern(1, size);
                let bytes = bytes.get(at..(at + len).min(size)).unwrap_or_default();
                let before = changed(&target);
                tick();
                let copied = copy(&from, at as u64, &to, to_at as u64, len);
                assert_eq!(copied, bytes.len(), "{size} {old} {at} {to_at} {len}");
                if !bytes.is_empty() {
                    model.resize(model.len().max(to_at + bytes.len()), 0);
                    model[to_at..to_at + bytes.len()].copy_from_slice(bytes);
                    let after = changed(&target);
                    assert!(after.0 > before.0 && after.1 > before.1);
                }
                assert!(content(&to) == model, "{size} {old} {at} {to_at} {len}");
            }
            drop((from, to));
            assert!(fs::read(&target).unwrap() == model, "{size} {old}");
        }
    }
    place.remount();
    assert_eq!(fs::metadata(&target).unwrap().len(), 605_000);
    // Within one file, side by side; and by the descriptors' own positions.
    for size in SIZES.into_iter().skip(1) {
        fs::write(&source, pattern(3, size)).unwrap();
        let (from, to) = (open_both(&source), open_both(&source));
        assert_eq!(copy(&from, 0, &to, size as u64, size), size);
        let doubled = [pattern(3, size), pattern(3, size)].concat();
        assert!(content(&to) == doubled, "{size}");
        assert_eq!(copy_file_range(&from, None, &to, Some(&mut (3 * size as u64)), 100), Ok(100));
        assert_eq!(rustix::fs::tell(&from), Ok(100));
        assert_eq!(content(&to)[3 * size..], pattern(3, size)[..100]);
    }
}

fn copy_refusals(place: &Place) {
    let (source, target) = (place.dir().join("source"), place.dir().join("target"));
    fs::set_permissions(place.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    for size in SIZES.into_iter().skip(1) {
        fs::write(&source, pattern(1, size)).unwrap();
        fs::write(&target, pattern(2, size)).unwrap();
        let (from, to, other) = (open_both(&source), open_both(&target), open_both(&source));
        let at = |from: &File, at: u64, to: &File, mut to_at: u64| {
            copy_file_range(from, Some(&mut { at }), to, Some(&mut to_at), 10)
        };
        refused(at(&from, 0, &other, 9), Errno::INVAL);
        refused(at(&from, 9, &other, 0), Errno::INVAL);
        let append = OpenOptions::new().append(true).open(&target).unwrap();
        refused(at(&from, 0, &append, 0), Errno::BADF);
        let (reader, writer) = (
            File::open(&target).unwrap(),
            OpenOptions::new().write(true).custom_flags(0).open(&target).unwrap(),
        );
        refused(at(&from, 0, &reader, 0), Errno::BADF);
        refused(at(&writer, 0, &to, 0), Errno::BADF);
        let dir = File::open(place.dir()).unwrap();
        refused(at(&dir, 0, &to, 0), Errno::ISDIR);
        refused(at(&from, 0, &to, i64::MAX as u64), Errno::FBIG);
        assert!(content(&to) == pattern(2, size));
        // Somebody who may write but not keep the set-id bits takes them.
        fs::set_permissions(&target, fs::Permissions::from_mode(0o6777)).unwrap();
        let copied = as_user(1000, &[1000], || {
            let (from, to) = (File::open(&source).unwrap(), open_both(&target));
            copy(&from, 0, &to, 0, 10)
        });
        let mode = fs::metadata(&target).unwrap().mode() & 0o7777;
        assert_eq!((copied, mode), (10, 0o777));
    }
}
