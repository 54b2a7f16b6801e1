//! Golden files: bytes as a version wrote them, which later versions read and write the same.

use std::path::Path;

/// Compares what a test has just written with the file at `path`, which a version wrote. `VARVE_BLESS=1` rewrites the file, which is
/// right only for a version that was never released.
///
/// # Panics
/// Unless both are the same.
#[allow(clippy::disallowed_methods, reason = "golden files are read from the source tree")]
pub fn golden(path: impl AsRef<Path>, written: &[u8]) {
    let path = path.as_ref();
    let at = || path.display();
    if std::env::var_os("VARVE_BLESS").is_some() {
        path.parent()
            .map(std::fs::create_dir_all)
            .transpose()
            .unwrap_or_else(|e| panic!("{}: {e}", at()));
        std::fs::write(path, written).unwrap_or_else(|e| panic!("{}: {e}", at()));
    }
    let golden = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", at()));
    let first = golden.iter().zip(written).position(|(one, other)| one != other);
    let first = first.unwrap_or(golden.len().min(written.len()));
    assert!(golden == written, "{} differs from byte {first} on: {}", at(), written.escape_ascii());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_are_noticed() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let bytes = include_bytes!("../Cargo.toml");
        golden(path, bytes);
        let said = std::panic::catch_unwind(|| golden(path, &bytes[..10])).unwrap_err();
        assert!(said.downcast_ref::<String>().unwrap().contains("from byte 10 on"));
    }
}
