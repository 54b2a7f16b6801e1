//! The options of a transaction, as command lines and names of attributes write them.

use varve_fs::TransactionOptions;

/// The longest that a call may wait for locks, in seconds.
const LOCK_WAIT_S_MAX: f64 = 3600.0;

/// Reads how long a call may wait for locks, in seconds; returns milliseconds.
pub fn lock_wait_ms(text: &str) -> std::result::Result<u64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=LOCK_WAIT_S_MAX).contains(&seconds) => Ok((seconds * 1000.0) as u64),
        _ => Err(format!("give seconds from 0 to {LOCK_WAIT_S_MAX}")),
    }
}

/// Reads the time without use after which a transaction is aborted, at least a second; returns seconds.
pub fn idle_s(text: &str) -> std::result::Result<u64, String> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = match unit {
        "s" => Some(1),
        "m" => Some(60),
        "h" => Some(3600),
        "d" => Some(24 * 3600),
        _ => None,
    };
    let number = number.parse().ok().filter(|number: &u64| *number > 0);
    let seconds = number.zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
    seconds.ok_or_else(|| "write a time as 90s, 10m, 2h or 7d".to_owned())
}

/// Reads options like `isolation=serializable,idle-abort=2h`, with the names that `varve txn begin` has. `None` if one is wrong.
pub fn parse(words: &str) -> Option<TransactionOptions> {
    let mut options = TransactionOptions::default();
    for word in words.split(',').filter(|_| !words.is_empty()) {
        let (name, value) = word.split_once('=')?;
        match name {
            "isolation" => options.isolation = serde_json::from_value(value.into()).ok()?,
            "on-conflict" => options.on_conflict = serde_json::from_value(value.into()).ok()?,
            "lock-timeout" => options.lock_wait_ms = lock_wait_ms(value).ok()?,
            "priority" => options.priority = value.parse().ok()?,
            "idle-abort" => options.idle_abort_s = Some(idle_s(value).ok()?),
            _ => return None,
        }
    }
    Some(options)
}

#[cfg(test)]
mod tests {
    use varve_fs::{Isolation, OnConflict};

    use super::*;

    #[test]
    fn options_are_read_and_anything_else_is_refused() {
        assert_eq!(parse(""), Some(TransactionOptions::default()));
        let all =
            "isolation=serializable,on-conflict=restart,lock-timeout=2.5,priority=7,idle-abort=2h";
        let read = TransactionOptions {
            isolation: Isolation::Serializable,
            on_conflict: OnConflict::Restart,
            lock_wait_ms: 2500,
            priority: 7,
            idle_abort_s: Some(7200),
        };
        assert_eq!(parse(all), Some(read));
        for wrong in [
            ",",
            "isolation",
            "isolation=",
            "isolation=Serializable",
            "isolation=snapshot,",
            "lock-timeout=-1",
            "lock-timeout=3601",
            "lock-timeout=nan",
            "priority=-1",
            "idle-abort=0s",
            "idle-abort=5",
            "idle-abort=99999999999999999999d",
            "idle_abort=5s",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
