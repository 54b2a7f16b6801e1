//! Each decoder of rows on arbitrary bytes: it must not panic, and what it accepts must be written again
//! as something that reads the same. The mutation tests and the fuzz targets call the same functions.

use bytes::Bytes;
use varve_schema::acl::Acl;
use varve_schema::overlay::{
    OverlayHeader, OverlayRecord, OverlaySlot, RECORD_BYTES, RECORDS_START, SLOT_OFFSETS,
};
use varve_schema::{
    ClientRow, CloneReference, CloneRemap, DecodeError, DictionaryRow, EntryRow, Handover, Limits,
    Listed, LookupsRow, Mark, ParentRow, Pending, RequestRow, RequestsKey, RowKey, StoreId,
    XattrRow, decode_inode_row, encode_inode_row,
};

/// Decodes a row and encodes what it found.
pub(crate) type Recode = fn(&Bytes) -> Result<Vec<u8>, DecodeError>;

/// An entry row.
pub(crate) fn entry(bytes: &Bytes) -> Result<Vec<u8>, DecodeError> {
    let row = EntryRow::decode(bytes);
    match (EntryRow::only(bytes), &row) {
        (Some(Ok(only)), Ok(row)) => match row.names() {
            [named] => {
                assert_eq!((only.slot, only.name), (named.slot, named.name.as_ref()));
                assert_eq!(only.body, named.body);
            }
            names => panic!("one name of {}", names.len()),
        },
        (Some(Err(error)), row) => assert_eq!(row.as_ref().err(), Some(&error)),
        (Some(Ok(only)), Err(error)) => panic!("{only:?} of a row with {error}"),
        (None, Ok(row)) => assert!(row.names().len() > 1),
        (None, Err(_)) => {}
    }
    row.map(|row| {
        // What a listing reads of a row is what it says.
        let only = match row.names() {
            [only] => Some(Listed::from(only)),
            _ => None,
        };
        assert_eq!(Listed::only(bytes), only);
        row.encode()
    })
}

/// An inode's own row.
pub(crate) fn inode(bytes: &Bytes) -> Result<Vec<u8>, DecodeError> {
    decode_inode_row(bytes).map(|inode| encode_inode_row(&inode))
}

/// Extended attributes.
pub(crate) fn xattr(bytes: &Bytes) -> Result<Vec<u8>, DecodeError> {
    XattrRow::decode(bytes).map(|row| row.encode())
}

/// Pending work.
pub(crate) fn pending(bytes: &Bytes) -> Result<Vec<u8>, DecodeError> {
    Pending::decode(bytes).map(Pending::encode)
}

/// A mark.
pub(crate) fn mark(bytes: &Bytes) -> Result<Vec<u8>, DecodeError> {
    Mark::decode(bytes).map(Mark::encode)
}

/// The identity of a store.
pub(crate) fn store_id(bytes: &Bytes) -> Result<Vec<u8>, DecodeError> {
    StoreId::decode(bytes).map(StoreId::encode)
}

/// Limits.
pub(crate) fn limits(bytes: &Bytes) -> Result<Vec<u8>, DecodeError> {
    Limits::decode(bytes).map(Limits::encode)
}

/// Where a dictionary's pairs are.
pub(crate) fn dictionary(bytes: &Bytes) -> Result<Vec<u8>, DecodeError> {
    DictionaryRow::decode(bytes).map(DictionaryRow::encode)
}

/// What a clone has not copied yet.
pub(crate) fn clone_reference(bytes: &Bytes) -> Result<Vec<u8>, DecodeError> {
    CloneReference::decode(bytes).map(CloneReference::encode)
}

/// What a file of several names became in a clone.
pub(crate) fn clone_remap(bytes: &Bytes) -> Result<Vec<u8>, DecodeError> {
    CloneRemap::decode(bytes).map(CloneRemap::encode)
}

/// Parent pointers.
pub(crate) fn parent(bytes: &Bytes) -> Result<Vec<u8>, DecodeError> {
    ParentRow::decode(bytes).map(|row| row.encode())
}

/// The state that one process hands to the next.
pub(crate) fn handover(bytes: &Bytes) -> Result<Vec<u8>, DecodeError> {
    Handover::decode(bytes).map(|state| state.encode())
}

/// An inode that the front end has looked up.
pub(crate) fn lookups(bytes: &Bytes) -> Result<Vec<u8>, DecodeError> {
    LookupsRow::decode(bytes).map(|row| row.encode())
}

/// A request that was done.
pub(crate) fn request(bytes: &Bytes) -> Result<Vec<u8>, DecodeError> {
    RequestRow::decode(bytes).map(RequestRow::encode)
}

/// A client.
pub(crate) fn client(bytes: &Bytes) -> Result<Vec<u8>, DecodeError> {
    ClientRow::decode(bytes).map(ClientRow::encode)
}

/// Decodes, and checks that what was accepted has one encoding.
pub(crate) fn exercise(recode: Recode, data: &[u8]) {
    if let Ok(first) = recode(&Bytes::copy_from_slice(data)) {
        assert_eq!(recode(&Bytes::from(first.clone())), Ok(first));
    }
}

/// The parts of an overlay file: header, slots, records; how many of them could be read.
pub(crate) fn overlay(data: &[u8]) -> usize {
    let Ok(header) = OverlayHeader::decode(data) else { return 0 };
    assert_eq!(OverlayHeader::decode(&header.encode()), Ok(header));
    let mut read = 1;
    for offset in SLOT_OFFSETS {
        let bytes = data.get(offset as usize..).unwrap_or_default();
        if let Ok(slot) = OverlaySlot::decode(bytes, header.salt, offset) {
            assert_eq!(
                OverlaySlot::decode(&slot.encode(header.salt), header.salt, offset),
                Ok(slot)
            );
            read += 1;
        }
    }
    let records = data.get(RECORDS_START as usize..).unwrap_or_default();
    for (index, bytes) in records.chunks(RECORD_BYTES).enumerate() {
        let index = index as u64;
        if let Ok(record) = OverlayRecord::decode(bytes, &header, index) {
            assert_eq!(record.encode(header.salt, index), bytes);
            read += 1;
        }
    }
    read
}

/// An access control list; whether there is one.
pub(crate) fn acl(data: &[u8]) -> bool {
    let Ok(Some(acl)) = Acl::decode(data) else { return false };
    assert_eq!(Acl::decode(&acl.encode()), Ok(Some(acl.clone())));
    let mut followed = acl.clone();
    followed.follow_mode(acl.mode());
    assert_eq!(followed, acl);
    assert_eq!(acl.inherit(0o777), (acl.clone(), acl.mode()));
    true
}

/// A key, as every key space reads it.
pub(crate) fn key(data: &[u8]) {
    if let Some(key) = RowKey::from_bytes(data) {
        assert_eq!(key.to_bytes(), data);
        let _ = (key.meta_kind(), key.data_kind());
    }
    if let Some(key) = RequestsKey::from_bytes(data) {
        assert_eq!(key.to_bytes(), data);
    }
}
