//! What the thesis found for its five traces (Sinnamohideen, tables 4.1 to 4.4), as printed there. Shares are of all objects,
//! in per cent; in tables 4.3 and 4.4 some rows do not agree with the text, and stand here as they are.

use super::measure::Widths;

/// The traces, in the order of all figures.
pub(super) const TRACES: [&str; 5] = ["EECS", "DEAS", "Campus", "Engineering", "Corporate"];

/// Table 4.1: objects, files, directories, greatest depth, most files and most directories in a directory, longest id in bits.
pub(super) const PROPERTIES: [(&str, [u64; 5]); 7] = [
    ("objects", [9_558_617, 2_871_810, 720_265, 2_471_650, 2_098_232]),
    ("files", [8_856_685, 2_490_899, 389_633, 1_550_067, 1_507_386]),
    ("directories", [700_659, 380_911, 330_632, 226_438, 253_960]),
    ("max_depth", [29, 25, 12, 33, 46]),
    ("max_files_in_directory", [36_730, 142_513, 11_283, 1162, 4682]),
    ("max_directories_in_directory", [822, 3401, 215, 4501, 2163]),
    ("max_id_bits", [109, 91, 56, 153, 113]),
];

/// Table 4.2: objects that overflow, by bits of an id.
pub(super) const VARIABLE: [(u32, [u64; 5]); 3] =
    [(96, [3, 0, 0, 0, 0]), (64, [2, 0, 0, 2, 0]), (32, [7, 3, 1, 8, 1])];

const fn widths(id_bits: u32, dir_bits: u32, file_bits: u32) -> Widths {
    Widths { id_bits, dir_bits, file_bits }
}

/// Tables 4.3 and 4.4: the share of objects that overflow in depth, and in width.
pub(super) const FIXED: [(Widths, [f64; 5], [f64; 5]); 13] = [
    (widths(96, 5, 10), [0.12, 0.03, 0.00, 0.07, 0.05], [12.11, 66.13, 7.82, 2.08, 3.91]),
    (widths(96, 4, 11), [0.04, 0.03, 0.00, 0.00, 0.01], [10.63, 61.74, 4.00, 3.36, 3.77]),
    (widths(96, 3, 14), [0.00, 0.00, 0.00, 0.00, 0.00], [3.82, 45.24, 0.48, 5.36, 4.62]),
    (widths(96, 10, 12), [1.09, 0.83, 0.18, 3.30, 2.94], [7.14, 53.38, 1.82, 0.04, 0.19]),
    (widths(96, 10, 15), [1.09, 0.83, 0.18, 3.30, 2.94], [0.73, 30.78, 0.00, 0.01, 0.15]),
    (widths(96, 7, 18), [1.01, 0.32, 0.02, 1.33, 1.86], [0.19, 1.61, 0.05, 0.31, 0.77]),
    (widths(64, 5, 8), [1.01, 0.25, 0.02, 1.35, 1.86], [20.60, 74.06, 34.30, 3.34, 7.23]),
    (widths(64, 4, 11), [1.09, 0.11, 0.00, 0.68, 0.00], [10.60, 61.74, 4.00, 3.36, 3.77]),
    (widths(64, 3, 12), [0.12, 0.03, 0.49, 0.07, 0.65], [8.96, 56.62, 2.30, 5.39, 4.65]),
    (widths(64, 10, 12), [2.21, 1.70, 0.09, 6.35, 0.05], [7.14, 53.38, 1.82, 0.04, 0.19]),
    (widths(32, 5, 6), [6.69, 4.85, 1.36, 13.94, 15.57], [35.82, 80.36, 69.05, 9.10, 15.07]),
    (widths(32, 4, 7), [6.65, 4.24, 1.35, 12.29, 13.99], [27.52, 77.88, 53.03, 6.97, 11.48]),
    (widths(32, 3, 10), [6.59, 3.25, 0.95, 11.40, 12.29], [13.39, 67.49, 31.86, 8.07, 6.42]),
];
