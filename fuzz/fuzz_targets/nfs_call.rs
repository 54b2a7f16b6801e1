#![no_main]
#![allow(dead_code)]

#[path = "../../crates/varve-nfs/src/export.rs"]
mod export;
#[path = "../../crates/varve-nfs/src/handle.rs"]
mod handle;
#[path = "../../crates/varve-nfs/src/rpc.rs"]
mod rpc;
#[path = "../../crates/varve-nfs/src/xdr.rs"]
mod xdr;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut reader = xdr::Reader::new(data);
    if let Ok(call) = rpc::Call::read(&mut reader) {
        rpc::accepted(call.transaction, rpc::Accepted::Garbage);
        if let Ok(bytes) = reader.opaque(handle::HANDLE_BYTES_MAX)
            && let Some(handle) = handle::FileHandle::decode(bytes)
        {
            assert_eq!(handle.encode()[..], *bytes);
        }
        while reader.option(xdr::Reader::u64).is_ok() {}
    }
    if let Ok(line) = std::str::from_utf8(data) {
        let _ = export::Export::parse(line);
    }
});
