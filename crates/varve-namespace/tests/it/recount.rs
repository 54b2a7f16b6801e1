//! What must hold of all rows between two operations.

use std::collections::HashMap;

use varve_namespace::Space;
use varve_schema::key::MetaRow;
use varve_schema::{Body, Content, FileKind, Inode, InodeLocation, RowKey, UsageChange};
use varve_types::InodeId;

use crate::map::Map;

/// A name, and what it stands for.
struct Name {
    dir: InodeId,
    name: Vec<u8>,
    key: RowKey,
    slot: u8,
    body: Body,
}

/// Checks every row against every other.
pub(crate) fn recount(map: &Map) {
    let names = names(map);
    let mut by_ino: HashMap<InodeId, Vec<&Name>> = HashMap::new();
    for name in &names {
        by_ino.entry(name.body.ino()).or_default().push(name);
    }
    for (ino, names) in &by_ino {
        let inode = map.find(*ino).unwrap_or_else(|| panic!("a name of {ino}, which has no row"));
        assert_eq!(inode.kind, names[0].body.kind());
        if inode.kind == FileKind::Directory {
            check_directory_place(&inode, names);
        } else {
            check_file_place(map, &inode, names);
        }
    }
    for (space, key) in map.rows.keys() {
        if let (Space::Meta, MetaRow::Inode(ino)) = (*space, key.meta_kind()) {
            let inode = map.own(ino).unwrap();
            let is_held = ino == InodeId::ROOT || by_ino.contains_key(&ino);
            let is_orphan = inode.nlink == 0 && map.open.contains(&ino);
            assert!(is_held || is_orphan, "inode {ino} has a row and no name");
            if let Content::Directory(_) = inode.content {
                check_counts(map, &inode, &names);
            }
        }
    }
}

fn names(map: &Map) -> Vec<Name> {
    let mut names = Vec::new();
    for (space, key) in map.rows.keys() {
        if let (Space::Meta, MetaRow::Entry(dir, _)) = (*space, key.meta_kind()) {
            let row = map.names(*key);
            assert!(!row.is_empty());
            names.extend(row.names().iter().map(|named| Name {
                dir,
                name: named.name.to_vec(),
                key: *key,
                slot: named.slot,
                body: named.body.clone(),
            }));
        }
    }
    names
}

fn check_directory_place(inode: &Inode, names: &[&Name]) {
    let [name] = names else { panic!("directory {} has {} names", inode.ino, names.len()) };
    let Content::Directory(info) = &inode.content else { panic!("{inode:?}") };
    assert_eq!(info.parent, name.dir);
    assert_eq!(info.suffix.map(|suffix| RowKey::entry(name.dir, suffix)), Some(name.key));
}

fn check_file_place(map: &Map, inode: &Inode, names: &[&Name]) {
    let ino = inode.ino;
    assert_eq!(inode.nlink as usize, names.len(), "names of {ino}");
    if let Body::Inline(_) = names[0].body {
        assert_eq!(names.len(), 1);
        assert_eq!((inode.home, map.own(ino)), (None, None));
        let place = InodeLocation::Entry { key: names[0].key, slot: names[0].slot };
        assert_eq!(map.places[&ino], place);
        return;
    }
    assert_eq!(map.places[&ino], InodeLocation::Own);
    let mut pointers = Vec::new();
    for ((space, key), row) in &map.rows {
        if let (Space::Meta, MetaRow::Parent(of, hash)) = (*space, key.meta_kind())
            && of == ino
        {
            let row = varve_schema::ParentRow::decode(row).unwrap();
            pointers.extend(row.pointers.into_iter().map(|at| (at.dir, at.name.to_vec(), hash)));
        }
    }
    let mut expected: Vec<_> = names.iter().map(|at| (at.dir, at.name.clone())).collect();
    let mut found: Vec<_> = pointers.iter().map(|(dir, name, _)| (*dir, name.clone())).collect();
    expected.sort();
    found.sort();
    assert_eq!(found, expected, "parent pointers of {ino}");
    let home = inode.home.expect("a file with a row of its own has a home");
    assert!(pointers.iter().any(|(dir, _, hash)| (*dir, *hash) == (home.dir, home.hash)));
}

/// Entries, subdirectories, and usage: what lies directly in it, and what subdirectories have propagated.
fn check_counts(map: &Map, dir: &Inode, names: &[Name]) {
    let Content::Directory(info) = &dir.content else { return };
    let within: Vec<&Name> = names.iter().filter(|name| name.dir == dir.ino).collect();
    let mut usage = UsageChange::default();
    let mut subdirs = 0;
    for name in &within {
        let inode = map.find(name.body.ino()).unwrap();
        usage = usage.plus(match &inode.content {
            Content::Directory(child) => {
                subdirs += 1;
                child.propagated()
            }
            _ if inode.home.is_some() => UsageChange::default(),
            _ => UsageChange::file(inode.size),
        });
    }
    // Files with a row of their own count at their home alone.
    for (space, key) in map.rows.keys() {
        if let (Space::Meta, MetaRow::Inode(ino)) = (*space, key.meta_kind()) {
            let inode = map.own(ino).unwrap();
            if inode.home.is_some_and(|home| home.dir == dir.ino) && inode.nlink > 0 {
                usage = usage.plus(UsageChange::file(inode.size));
            }
        }
    }
    assert_eq!((info.entries, info.subdirs), (within.len() as u64, subdirs), "{}", dir.ino);
    assert_eq!(dir.nlink, subdirs + 2);
    assert_eq!(info.usage.as_change(), usage, "usage of {}", dir.ino);
}
