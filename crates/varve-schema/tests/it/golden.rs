//! Rows as version 1 wrote them, in `tests/golden/v1`. `VARVE_BLESS=1` rewrites them, which is right only
//! in the folder of a version that was never released.
#![allow(clippy::disallowed_methods, reason = "golden files are read from the source tree")]

use std::path::Path;

use bytes::Bytes;

use crate::samples::samples;

#[test]
fn rows_are_written_as_version_1_wrote_them() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1");
    for sample in samples() {
        let path = dir.join(sample.name).with_extension("row");
        if std::env::var_os("VARVE_BLESS").is_some() {
            std::fs::write(&path, &sample.bytes).unwrap();
        }
        let golden = std::fs::read(&path).unwrap();
        assert_eq!(sample.bytes, golden, "{}", sample.name);
        let recoded = (sample.recode)(&Bytes::from(golden.clone())).unwrap();
        assert_eq!(recoded, golden, "{} is read and written again", sample.name);
    }
}
