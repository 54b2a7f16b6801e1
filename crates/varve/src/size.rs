//! Sizes in bytes, as people write them.

use crate::{Error, Result};

/// The units, each 1024 times the one before.
const UNITS: &[char] = &['K', 'M', 'G', 'T', 'P'];

/// Reads `4096`, `64K`, `64KiB`, `1.5G`: bytes, in powers of 1024.
pub fn parse(text: &str) -> Result<u64> {
    let wrong = || {
        Error::usage(format!("`{text}` is no size"))
            .hint("write bytes as 4096, 64K, 256M or 1.5G (powers of 1024)")
    };
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let unit = unit.trim().to_ascii_uppercase();
    let shift = match unit.strip_suffix("IB").or(unit.strip_suffix('B')).unwrap_or(&unit) {
        "" => 0,
        letter => {
            let at =
                UNITS.iter().position(|known| letter.chars().eq([*known])).ok_or_else(wrong)?;
            10 * (at as u32 + 1)
        }
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift).ok_or_else(wrong);
    }
    let value = number.parse::<f64>().map_err(|_| wrong())? * (1_u64 << shift) as f64;
    // Above 2^63 a fraction of a unit makes no sense.
    if value.is_finite() && value < 9.0e18 { Ok(value as u64) } else { Err(wrong()) }
}

/// Writes bytes with three digits: `512 B`, `4.0 KiB`, `1.25 GiB`.
pub fn show(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = None;
    for letter in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = Some(letter);
    }
    match unit {
        None => format!("{bytes} B"),
        Some(letter) if value < 9.995 => format!("{value:.2} {letter}iB"),
        Some(letter) if value < 99.95 => format!("{value:.1} {letter}iB"),
        Some(letter) => format!("{value:.0} {letter}iB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65_536),
            ("64k", 65_536),
            ("64 KiB", 65_536),
            ("100B", 100),
            ("1.5M", 1_572_864),
            ("2gb", 2 << 30),
        ] {
            assert_eq!(parse(text).unwrap(), bytes, "{text}");
        }
        for text in ["", "K", "-1", "1X", "1KK", "99999999999G", "1e3"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_written() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (65_536, "64.0 KiB"),
            (200 << 20, "200 MiB"),
        ] {
            assert_eq!(show(bytes), text);
        }
    }
}
