//! What the demonstration says to people.

use varve::size;

use super::{Figures, Restart, Row, Together};

/// Says what comes, above the names of the columns.
pub(super) fn head(tell: &mut dyn FnMut(&str), title: &str) {
    tell(&format!("\n{title}\n"));
    tell(&format!(
        "{:<40} {:>5} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "", "mount", "per s", "p50 us", "p99 us", "max us", "requests"
    ));
}

/// The figures of one kind of work; its requests for each operation.
pub(super) fn row(row: &Row, tell: &mut dyn FnMut(&str)) {
    let Row { step, on, operations, bytes, seconds, per_second, p50_us, p99_us, max_us, .. } = row;
    let is_large = *operations == 1 && *bytes > 0;
    let title = match is_large {
        true => format!("{step} ({})", size::show(*bytes)),
        false => format!("{step} ({operations})"),
    };
    let rate = match is_large {
        true => format!("{}/s", size::show(per_second_of(*bytes, *seconds))),
        false => format!("{per_second:.0}"),
    };
    let requests = row.requests_per_operation.map_or("-".to_owned(), |each| format!("{each:.2}"));
    tell(&format!(
        "{title:<40} {on:>5} {rate:>9} {p50_us:>9.0} {p99_us:>9.0} {max_us:>9.0} {requests:>9}"
    ));
}

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "is read by people"
)]
fn per_second_of(bytes: u64, seconds: f64) -> u64 {
    (bytes as f64 / seconds.max(1e-9)) as u64
}

/// Work of both mounts.
pub(super) fn together(of: &Together, tell: &mut dyn FnMut(&str)) {
    of.rows.iter().for_each(|of| row(of, tell));
    if let Some(each) = of.requests_per_operation {
        let kinds = of.requests.iter().flatten().filter(|(_, count)| **count > 0);
        let kinds: Vec<_> = kinds.map(|(kind, count)| format!("{count} {kind}")).collect();
        tell(&format!(
            "The server had {each:.2} requests for each of these: {}.",
            kinds.join(", ")
        ));
    }
    let ([a, b], [of_a, of_b]) = (of.claims, of.rounds);
    tell(&format!(
        "Of {} names that both wanted a has {a} and b {b}; rounds of a {of_a}, of b {of_b}.",
        a + b
    ));
}

/// What programs noticed of the death of the server.
pub(super) fn restart(of: &Restart, tell: &mut dyn FnMut(&str)) {
    together(&of.work, tell);
    let [a, b] = of.back_s;
    tell(&format!(
        "The server was away for {:.2} s. The programs waited, and had done all kinds of work again {a:.2} s (a) and {b:.2} s (b) after \
         it was back; the longest call took {:.2} s. No call failed.",
        of.away_s, of.longest_call_s
    ));
}

/// What was compared in the end.
pub(super) fn end(of: &Figures, tell: &mut dyn FnMut(&str)) {
    tell(&format!(
        "\n{} files and {} lines of logs compared, on the mount that did not write them: nothing is lost, nothing was done twice.",
        of.files_compared, of.lines_compared
    ));
    tell(&format!(
        "The mounts and the server have ended in order; the check of the store ({}) finds nothing.",
        size::show(of.store_bytes)
    ));
}
