#![no_main]

#[allow(dead_code)]
#[path = "../../crates/varve-fs/src/stream/frame.rs"]
mod frame;

use frame::{Frame, FrameReader, FrameWriter, SnapshotId};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // The row of a state that is to be a snapshot.
    if let Some(named) = SnapshotId::of_row(data) {
        assert_eq!(SnapshotId::of_row(&named.row()), Some(named));
    }
    let Some((kind, content)) = data.split_first() else { return };
    if let Some(decoded) = Frame::decode(*kind, &content.to_vec().into()) {
        let mut stream = Vec::new();
        FrameWriter::new(&mut stream).unwrap().write(&decoded).unwrap();
        // But for the header, which is JSON, each frame has one content; it begins behind the opening, the kind and the length.
        if !matches!(decoded, Frame::Header(_)) {
            assert_eq!(&stream[13..stream.len() - 4], content);
        }
        let mut input = &stream[..];
        assert_eq!(FrameReader::new(&mut input).unwrap().next_frame().unwrap(), decoded);
    }
    let mut input = data;
    if let Ok(mut reader) = FrameReader::new(&mut input) {
        while reader.next_frame().is_ok() {}
    }
});
