#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // The kind of object by the first byte, and a name whose checksum the second part may have.
    let Some((kind, bytes)) = data.split_first() else { return };
    let names = ["journal/000000000000012c", "root/fffffffffffffed3", "dir/00000003/000000000008", "owner"];
    let name = names[usize::from(*kind) % names.len()];
    let mut sealed = bytes.to_vec();
    if let Some((header, body)) = sealed.split_at_mut_checked(16) {
        let sum = crc32c::crc32c_append(crc32c::crc32c(name.as_bytes()), &header[..12]);
        let sum = crc32c::crc32c_append(sum, body);
        header[12..].copy_from_slice(&sum.to_le_bytes());
    }
    for bytes in [bytes, &sealed] {
        let _ = varve_storage::describe_object(name, bytes);
    }
});
