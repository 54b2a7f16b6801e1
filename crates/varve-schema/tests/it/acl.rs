//! Access control lists: as version 1 stored one, and under mutation.
#![allow(clippy::disallowed_methods, reason = "golden files are read from the source tree")]

use std::path::Path;

use varve_schema::acl::{Acl, AclEntry, AclTag};

use crate::exercise::acl;

/// A list with something of everything.
fn sample() -> Vec<u8> {
    let entries = [
        (AclTag::Owner, 7),
        (AclTag::User(1000), 4),
        (AclTag::User(4_000_000_000), 0),
        (AclTag::OwningGroup, 5),
        (AclTag::Group(2000), 6),
        (AclTag::Mask, 3),
        (AclTag::Others, 1),
    ];
    Acl::new(entries.map(|(tag, perm)| AclEntry { tag, perm })).unwrap().encode()
}

#[test]
fn a_list_is_stored_as_version_1_stored_it() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1/acl.xattr");
    if std::env::var_os("VARVE_BLESS").is_some() {
        std::fs::write(&path, sample()).unwrap();
    }
    let golden = std::fs::read(&path).unwrap();
    assert_eq!(golden, sample());
    assert!(acl(&golden));
}

#[test]
fn every_flipped_bit_and_every_cut_of_a_list_is_survived() {
    let bytes = sample();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1 << bit;
            // Version, tags and all but three bits of permissions have one meaning.
            let is_checked =
                at < 4 || matches!((at - 4) % 8, 0 | 1 | 3) || (at - 4) % 8 == 2 && bit > 2;
            assert!(!acl(&bytes) || !is_checked, "bit {bit} of byte {at}");
        }
        assert!(!acl(&bytes[..at]), "cut at {at}");
    }
    assert!(!acl(&[&bytes[..], &[0]].concat()), "with a byte more");
}
