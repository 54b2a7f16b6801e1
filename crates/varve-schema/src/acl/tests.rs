use super::AclTag::{Group, Mask, Others, Owner, OwningGroup, User};
use super::*;

fn acl(entries: &[(AclTag, u16)]) -> Acl {
    Acl::new(entries.iter().map(|&(tag, perm)| AclEntry { tag, perm })).unwrap()
}

fn full() -> Acl {
    acl(&[
        (Owner, 7),
        (User(10), 6),
        (User(11), 7),
        (OwningGroup, 5),
        (Group(20), 3),
        (Mask, 6),
        (Others, 4),
    ])
}

/// Every list of the tags in `pool`, in their order, of at most 7 entries: 2 to the number of tags.
fn subsets(pool: &[AclTag]) -> impl Iterator<Item = Vec<AclEntry>> {
    (0..1u32 << pool.len()).map(move |chosen| {
        let tags = pool.iter().enumerate().filter(move |(i, _)| chosen >> i & 1 == 1);
        tags.map(|(i, tag)| AclEntry { tag: *tag, perm: (i as u16 * 3 + 1) & 7 }).collect()
    })
}

#[test]
fn exactly_the_well_formed_lists_are_accepted() {
    let pool = [Owner, User(1), User(0), OwningGroup, Group(5), Group(5), Mask, Others];
    for entries in subsets(&pool) {
        let has = |tag| entries.iter().any(|entry| entry.tag == tag);
        let named = entries.iter().any(|entry| matches!(entry.tag, User(_) | Group(_)));
        let meant = has(Owner) && has(OwningGroup) && has(Others) && (!named || has(Mask));
        assert_eq!(Acl::new(entries.clone()).is_ok(), meant, "{entries:?}");
        // No other order is one.
        for i in 1..entries.len() {
            let mut swapped = entries.clone();
            swapped.swap(i - 1, i);
            let same_kind = swapped[i - 1].tag.number() == swapped[i].tag.number();
            assert_eq!(Acl::new(swapped).is_ok(), meant && same_kind, "{entries:?}");
        }
    }
    let twice = [Owner, OwningGroup, Others, Others].map(|tag| AclEntry { tag, perm: 0 });
    assert!(Acl::new(twice).is_err());
    assert!(Acl::new([AclEntry { tag: Owner, perm: 8 }]).is_err());
}

#[test]
fn lists_come_back_from_their_bytes() {
    let pool = [Owner, User(7), OwningGroup, Group(u32::MAX - 1), Mask, Others];
    let mut seen = 0;
    for entries in subsets(&pool) {
        let Ok(acl) = Acl::new(entries) else { continue };
        assert_eq!(Acl::decode(&acl.encode()), Ok(Some(acl)));
        seen += 1;
    }
    assert_eq!(seen, 5);
    assert_eq!(Acl::decode(&[2, 0, 0, 0]), Ok(None));
}

#[test]
fn bytes_are_those_of_the_kernel() {
    let bytes = full().encode();
    assert_eq!(bytes.len(), 4 + 7 * 8);
    assert_eq!(bytes[..12], [2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255]);
    assert_eq!(bytes[12..20], [2, 0, 6, 0, 10, 0, 0, 0]);
    let error = |bytes: &[u8]| Acl::decode(bytes).unwrap_err().what;
    assert!(error(&[]).contains("without a version"));
    assert!(error(&[1, 0, 0, 0]).contains("unknown version"));
    assert!(error(&bytes[..59]).contains("within an entry"));
    let mut longer = bytes.clone();
    longer.resize(4 + 8 * (ACL_ENTRIES_MAX + 1), 0);
    assert!(error(&longer).contains("too many"));
    for (at, value) in [(4, 3), (4, 64), (6, 8), (12, 0), (20, 1)] {
        let mut wrong = bytes.clone();
        wrong[at] = value;
        assert!(Acl::decode(&wrong).is_err(), "{value} at {at}");
    }
    let mut nobody = bytes;
    nobody[16..20].fill(0xff);
    assert!(Acl::decode(&nobody).is_err());
}

#[test]
fn damaged_bytes_are_refused_or_have_one_encoding() {
    let bytes = full().encode();
    for at in 0..bytes.len() {
        for value in 0..=255 {
            let mut damaged = bytes.clone();
            damaged[at] = value;
            if let Ok(Some(acl)) = Acl::decode(&damaged) {
                assert_eq!(Acl::decode(&acl.encode()), Ok(Some(acl)));
            }
        }
        assert!(!matches!(Acl::decode(&bytes[..at]), Ok(Some(_))), "cut at {at}");
    }
}

#[test]
fn a_list_and_its_mode_follow_each_other() {
    let mut named = full();
    assert!(!named.is_minimal());
    for mode in 0..=0o777 {
        named.follow_mode(mode);
        assert_eq!(named.mode(), mode);
        assert_eq!(named.perm_of(OwningGroup), Some(5), "the mask stands for the group");
        let mut minimal = acl(&[(Owner, 0), (OwningGroup, 0), (Others, 0)]);
        minimal.follow_mode(mode);
        assert!(minimal.is_minimal() && minimal.mode() == mode);
        assert_eq!(minimal.perm_of(OwningGroup), Some(mode >> 3 & 7));
    }
}

#[test]
fn what_is_inherited_never_exceeds_list_or_mode() {
    for default in [full(), acl(&[(Owner, 6), (OwningGroup, 5), (Others, 4)])] {
        for mode in (0..=0o777).map(|perm| 0o4000 | perm) {
            let (access, got) = default.inherit(mode);
            assert_eq!(got, 0o4000 | (mode & default.mode()));
            assert_eq!(access.mode(), got & 0o777);
            assert_eq!(access.entries().len(), default.entries().len());
            for (entry, from) in access.entries().iter().zip(default.entries()) {
                assert!(entry.tag == from.tag && entry.perm & !from.perm == 0);
                if matches!(entry.tag, User(_) | Group(_)) {
                    assert_eq!(entry.perm, from.perm, "named entries stay, the mask limits them");
                }
            }
        }
    }
}

#[test]
fn the_first_entry_that_fits_decides() {
    let acl = full();
    let can =
        |uid, gid, groups: &[u32], wanted| acl.grants(AclCaller { uid, gid, groups }, 1, 2, wanted);
    // The owner is not limited by the mask, nor by entries for the same user.
    assert!(can(1, 20, &[], 7));
    // Named users are, and their groups do not help.
    assert!(can(10, 2, &[], 6) && !can(10, 2, &[], 1));
    assert!(can(11, 0, &[], 6) && !can(11, 0, &[], 1));
    // Groups: any that is enough for all that is wanted, within the mask.
    assert!(can(5, 2, &[], 4) && !can(5, 2, &[], 1) && !can(5, 2, &[], 2));
    assert!(can(5, 9, &[20], 2) && can(5, 2, &[20], 4) && can(5, 2, &[20], 2));
    assert!(!can(5, 2, &[20], 6), "no single group has both");
    // A member of any group listed is none of the others.
    assert!(!can(5, 20, &[], 4) && can(5, 9, &[], 4) && !can(5, 9, &[], 5));
}
