//! How many bits the ids of a namespace take, and which of its objects find no id under their parent (Sinnamohideen, thesis, 4.5).
//!
//! An id has a slot for each directory on the way from the root and one for the file. A slot of `n` bits tells apart `2^n - 1`
//! children: 0 is an empty slot, and in the file's slot the directory itself. The root has no slot; its subdirectories take the first
//! one, as in figure 4.2. A child that does not fit, since the slots are used up (too deep) or its parent's slot is (too wide), is an
//! *overflow*: it gets an id far from its parent's. What lies below it is near to it and does not count again.

use super::shape::Shape;

/// Bits of an id of fixed length that say its region: primary, too deep, too wide, catch-all (4.2).
const REGION_BITS: u32 = 2;
/// Bits that tell the roots of an overflow region apart (the caption of table 4.3).
const ROOT_BITS: u32 = 20;

/// Bits of a slot for `children` children.
fn slot_bits(children: u64) -> u32 {
    u64::BITS - children.leading_zeros()
}

/// What a slot of `bits` bits tells apart.
fn slot_children(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// Properties of a namespace (table 4.1).
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Properties {
    pub(super) files: u64,
    pub(super) directories: u64,
    pub(super) max_depth: u32,
    pub(super) max_files: u64,
    pub(super) max_dirs: u32,
}

impl Properties {
    pub(super) fn of(shape: &Shape) -> Properties {
        let mut all = Properties::default();
        for dir in &shape.dirs {
            all.files += dir.files;
            all.directories += 1;
            all.max_depth = all.max_depth.max(dir.depth + u32::from(dir.files > 0));
            all.max_files = all.max_files.max(dir.files);
            all.max_dirs = all.max_dirs.max(dir.dirs);
        }
        all
    }

    pub(super) fn objects(&self) -> u64 {
        self.files + self.directories
    }
}

/// Ids in which each slot is as wide as the children of its directory need, and no wider (4.5.2).
pub(super) struct VariableIds {
    /// The bits of each directory's id, in the order of the shape.
    dir_bits: Vec<u32>,
}

impl VariableIds {
    pub(super) fn of(shape: &Shape) -> VariableIds {
        let mut dir_bits: Vec<u32> = Vec::with_capacity(shape.dirs.len());
        for dir in &shape.dirs {
            let parent = dir.parent as usize;
            let above = dir_bits.get(parent).copied().unwrap_or(0);
            let slot = if dir.rank == 0 { 0 } else { slot_bits(shape.dirs[parent].dirs.into()) };
            dir_bits.push(above + slot);
        }
        VariableIds { dir_bits }
    }

    /// How many objects have ids of each length, up to the longest (figure 4.7).
    pub(super) fn lengths(&self, shape: &Shape) -> Vec<u64> {
        let mut lengths = Vec::new();
        let mut note = |bits: u32, objects: u64| {
            if lengths.len() <= bits as usize {
                lengths.resize(bits as usize + 1, 0);
            }
            lengths[bits as usize] += objects;
        };
        for (dir, bits) in shape.dirs.iter().zip(&self.dir_bits) {
            note(*bits, 1);
            if dir.files > 0 {
                note(bits + slot_bits(dir.files), dir.files);
            }
        }
        lengths
    }

    /// Overflows where an id has `id_bits` bits and no more (table 4.2).
    pub(super) fn overflows(&self, shape: &Shape, id_bits: u32) -> Overflow {
        let mut found = Overflow::default();
        let mut is_over: Vec<bool> = Vec::with_capacity(shape.dirs.len());
        for (dir, bits) in shape.dirs.iter().zip(&self.dir_bits) {
            let above = is_over.get(dir.parent as usize).copied().unwrap_or(false);
            if !above && *bits > id_bits {
                found.objects += 1;
                found.groups += 1;
            } else if !above && dir.files > 0 && bits + slot_bits(dir.files) > id_bits {
                found.objects += dir.files;
                found.groups += 1;
            }
            is_over.push(above || *bits > id_bits);
        }
        found
    }
}

/// Objects that find no id under their parent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Overflow {
    pub(super) objects: u64,
    /// New places that they take together: each directory one, the files of one directory one for each file slot.
    pub(super) groups: u64,
}

/// The widths of an id whose slots are the same everywhere (4.5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Widths {
    pub(super) id_bits: u32,
    pub(super) dir_bits: u32,
    pub(super) file_bits: u32,
}

/// Overflows of ids of fixed widths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FixedOverflows {
    /// All slots for directories were used (table 4.3).
    pub(super) too_deep: Overflow,
    /// The slot of the parent was used up (table 4.4).
    pub(super) too_wide: Overflow,
    /// Places that the overflow region has no number for: in the catch-all region, without any order.
    pub(super) catch_all: u64,
}

impl Widths {
    /// Levels of directories that an id has room for, in the primary region and below the root of an overflow.
    fn levels(self) -> [u32; 2] {
        let left = self.id_bits.saturating_sub(REGION_BITS + self.file_bits);
        [left / self.dir_bits, left.saturating_sub(ROOT_BITS) / self.dir_bits]
    }

    /// Gives each object of `shape` its place by the child-closest policy, with one overflow region, as the thesis' evaluation
    /// does.
    pub(super) fn overflows(self, shape: &Shape) -> FixedOverflows {
        let (widest, longest) = (slot_children(self.dir_bits), slot_children(self.file_bits));
        let levels = self.levels();
        let mut found = FixedOverflows::default();
        // Of each directory: the region, and the slots in use.
        let mut places: Vec<(bool, u32)> = Vec::with_capacity(shape.dirs.len());
        for dir in &shape.dirs {
            let place = match places.get(dir.parent as usize).filter(|_| dir.rank > 0) {
                None => (false, 0),
                Some((region, used)) if *used >= levels[usize::from(*region)] => {
                    found.too_deep.objects += 1;
                    found.too_deep.groups += 1;
                    (true, 0)
                }
                Some(_) if u64::from(dir.rank) > widest => {
                    found.too_wide.objects += 1;
                    found.too_wide.groups += 1;
                    (true, 0)
                }
                Some((region, used)) => (*region, used + 1),
            };
            places.push(place);
            let excess = dir.files.saturating_sub(longest);
            found.too_wide.objects += excess;
            found.too_wide.groups += excess.div_ceil(longest);
        }
        let roots = found.too_deep.groups + found.too_wide.groups;
        found.catch_all = roots.saturating_sub(slot_children(ROOT_BITS));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::shape::Dir;
    use super::*;

    /// A shape by the parent and the number of files of each directory.
    fn shape(dirs: &[(u32, u64)]) -> Shape {
        let mut shape = Shape { dirs: Vec::new() };
        for (at, (parent, files)) in dirs.iter().enumerate() {
            let (rank, depth) = match at {
                0 => (0, 0),
                _ => {
                    let above = &mut shape.dirs[*parent as usize];
                    above.dirs += 1;
                    (above.dirs, above.depth + 1)
                }
            };
            shape.dirs.push(Dir { parent: *parent, rank, dirs: 0, depth, files: *files });
        }
        shape
    }

    #[test]
    fn a_slot_has_a_value_for_each_child_and_one_for_none() {
        for (children, bits) in [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (7, 3), (8, 4)] {
            assert_eq!(slot_bits(children), bits, "{children}");
            assert!(slot_children(bits) >= children);
        }
    }

    #[test]
    fn slots_of_variable_width_are_as_wide_as_their_directories() {
        // The root with 2 files, 3 directories in it, and a chain below the last.
        let tree = shape(&[(0, 2), (0, 0), (0, 5), (0, 0), (3, 0), (4, 1)]);
        let properties = Properties::of(&tree);
        assert_eq!((properties.objects(), properties.max_depth, properties.max_dirs), (14, 4, 3));
        let ids = VariableIds::of(&tree);
        assert_eq!(ids.dir_bits, [0, 2, 2, 2, 3, 4]);
        // The root; 2 files and 3 directories of 2 bits; the chain of 3 and 4; its file and 5 files of 5.
        assert_eq!(ids.lengths(&tree), [1, 0, 5, 1, 1, 6]);
        assert_eq!(ids.overflows(&tree, 5), Overflow::default());
        assert_eq!(ids.overflows(&tree, 4), Overflow { objects: 6, groups: 2 });
        // With 2 bits the chain begins anew at its first directory, once for all below.
        assert_eq!(ids.overflows(&tree, 2), Overflow { objects: 6, groups: 2 });
        assert_eq!(ids.overflows(&tree, 1), Overflow { objects: 5, groups: 4 });
    }

    #[test]
    fn children_overflow_where_slots_are_used_up() {
        let widths = Widths { id_bits: 32, dir_bits: 2, file_bits: 2 };
        assert_eq!(widths.levels(), [14, 4]);
        // 5 directories and 8 files in the root: 2 and 5 too many, the files in 2 slots.
        let wide = shape(&[(0, 8), (0, 0), (0, 0), (0, 0), (0, 3), (0, 0), (5, 0)]);
        let found = widths.overflows(&wide);
        assert_eq!(found.too_wide, Overflow { objects: 7, groups: 4 });
        assert_eq!((found.too_deep, found.catch_all), (Overflow::default(), 0));
        // A chain: 14 levels, then a root every 5 directories.
        let chain: Vec<(u32, u64)> = (0..31_u32).map(|at| (at.saturating_sub(1), 0)).collect();
        let found = widths.overflows(&shape(&chain));
        assert_eq!(found.too_deep, Overflow { objects: 4, groups: 4 });
        assert_eq!(found.too_wide, Overflow::default());
    }

    /// The oracle gives every object its id, bit by bit, and looks whether it is the parent's with one slot more.
    #[test]
    fn the_counts_are_those_of_ids_that_are_given_out() {
        let mut random = crate::random::Random::new(7);
        for round in 0..200_u64 {
            let dirs: Vec<(u32, u64)> =
                (0..60_u64).map(|at| (random.below(at.max(1)) as u32, random.below(9))).collect();
            let tree = shape(&dirs);
            let widths = Widths { id_bits: 30, dir_bits: 1 + (round % 3) as u32, file_bits: 1 };
            let levels = widths.levels();
            let mut ids: Vec<(bool, Vec<u64>)> = Vec::new();
            let (mut deep, mut wide) = (0, 0);
            for dir in &tree.dirs {
                let Some((region, above)) = ids.get(dir.parent as usize).filter(|_| dir.rank > 0)
                else {
                    ids.push((false, Vec::new()));
                    continue;
                };
                let mut id = above.clone();
                id.push(dir.rank.into());
                let fits_depth = id.len() <= levels[usize::from(*region)] as usize;
                let fits_width = u64::from(dir.rank) < 1 << widths.dir_bits;
                deep += u64::from(!fits_depth);
                wide += u64::from(fits_depth && !fits_width);
                let place =
                    if fits_depth && fits_width { (*region, id) } else { (true, Vec::new()) };
                ids.push(place);
            }
            let files = tree.dirs.iter().flat_map(|dir| 1..=dir.files);
            wide += files.filter(|number| *number >= 1 << widths.file_bits).count() as u64;
            let found = widths.overflows(&tree);
            assert_eq!((found.too_deep.objects, found.too_wide.objects), (deep, wide), "{round}");
        }
    }
}
