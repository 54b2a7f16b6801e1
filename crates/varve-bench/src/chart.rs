//! Line charts as SVG.

use std::fmt::Write;

/// Colours of lines, told apart also by those who see few; one after the other.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#999999"];

/// The room for the lines, and around it, in pixels.
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 80.0;
const TOP: f64 = 40.0;
const BELOW: f64 = 50.0;
const LEGEND: f64 = 220.0;

/// One axis.
pub(crate) struct Axis {
    /// What it shows, with the unit.
    pub(crate) name: &'static str,
    /// Whether equal distances are equal factors.
    pub(crate) is_log: bool,
}

/// A chart.
pub(crate) struct Chart {
    /// What stands above it.
    pub(crate) title: String,
    /// From left to right.
    pub(crate) x: Axis,
    /// From below to above.
    pub(crate) y: Axis,
    /// Lines, each with a name and its points from left to right.
    pub(crate) lines: Vec<(String, Vec<(f64, f64)>)>,
}

/// An axis with its ends.
struct Scale {
    from: f64,
    to: f64,
    is_log: bool,
}

impl Scale {
    fn of(axis: &Axis, values: impl Iterator<Item = f64> + Clone) -> Scale {
        let largest = values.clone().fold(0.0, f64::max);
        if !axis.is_log {
            return Scale {
                from: 0.0,
                to: if largest > 0.0 { largest } else { 1.0 },
                is_log: false,
            };
        }
        let smallest = values.filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
        let from = if smallest.is_finite() { smallest.log10().floor() } else { 0.0 };
        let to = largest.max(f64::MIN_POSITIVE).log10().ceil().max(from + 1.0);
        Scale { from, to, is_log: true }
    }

    /// Where a value lies between the ends, 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let value = if self.is_log { value.max(1e-9).log10() } else { value };
        ((value - self.from) / (self.to - self.from)).clamp(0.0, 1.0)
    }

    /// The values with a mark.
    fn marks(&self) -> Vec<f64> {
        if self.is_log {
            let decades = (self.to - self.from) as i32;
            return (0..=decades).map(|at| 10_f64.powi(self.from as i32 + at)).collect();
        }
        // A step of 1, 2 or 5 of a power of ten that makes 4 to 10 marks.
        let power = 10_f64.powf((self.to / 4.0).log10().floor());
        let step = [5.0, 2.0, 1.0]
            .map(|factor| factor * power)
            .into_iter()
            .find(|step| self.to / step >= 4.0);
        let step = step.unwrap_or(power);
        (0..).map(|at| f64::from(at) * step).take_while(|mark| *mark <= self.to).collect()
    }
}

/// A number with as many digits as it needs.
fn shown(value: f64) -> String {
    match value {
        _ if value >= 1e6 => format!("{}M", value / 1e6),
        _ if value >= 1e3 => format!("{}k", value / 1e3),
        _ => format!("{}", (value * 1e6).round() / 1e6),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

impl Chart {
    /// The chart as a file of its own.
    pub(crate) fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|(_, points)| points);
        let x = Scale::of(&self.x, points().map(|point| point.0));
        let y = Scale::of(&self.y, points().map(|point| point.1));
        let (width, height) = (LEFT + WIDTH + LEGEND, TOP + HEIGHT + BELOW);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
        );
        let mut text = |at: (f64, f64), anchor: &str, text: &str| {
            let text = escaped(text);
            // Writing to a string does not fail.
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{text}</text>",
                at.0, at.1
            );
        };
        text((LEFT, TOP / 2.0), "start", &self.title);
        text((LEFT + WIDTH / 2.0, height - 10.0), "middle", self.x.name);
        text((LEFT, TOP - 6.0), "end", self.y.name);
        for mark in x.marks() {
            text((LEFT + x.place(mark) * WIDTH, TOP + HEIGHT + 18.0), "middle", &shown(mark));
        }
        for mark in y.marks() {
            text((LEFT - 6.0, TOP + (1.0 - y.place(mark)) * HEIGHT + 4.0), "end", &shown(mark));
        }
        for (number, (name, _)) in self.lines.iter().enumerate() {
            text((LEFT + WIDTH + 36.0, TOP + 16.0 * (number as f64 + 1.0)), "start", name);
        }
        for mark in y.marks() {
            let at = TOP + (1.0 - y.place(mark)) * HEIGHT;
            let _ = writeln!(svg, "<path d=\"M{LEFT} {at:.1}h{WIDTH}\" stroke=\"#dddddd\"/>");
        }
        for (number, (_, points)) in self.lines.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let at = TOP + 16.0 * (number as f64 + 1.0) - 4.0;
            let _ = writeln!(
                svg,
                "<path d=\"M{} {at}h20\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                LEFT + WIDTH + 10.0
            );
            let place = |(at, value): &(f64, f64)| {
                format!(
                    "{:.1},{:.1}",
                    LEFT + x.place(*at) * WIDTH,
                    TOP + (1.0 - y.place(*value)) * HEIGHT
                )
            };
            let points: Vec<String> = points.iter().map(place).collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>",
                points.join(" ")
            );
        }
        svg.push_str("</svg>\n");
        svg
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(is_log: bool) -> Chart {
        let axis = |name| Axis { name, is_log };
        let lines = vec![("a < b".to_owned(), vec![(1.0, 10.0), (100.0, 1000.0)])];
        Chart { title: "t & u".to_owned(), x: axis("seconds"), y: axis("per second"), lines }
    }

    #[test]
    fn lines_go_from_corner_to_corner() {
        let svg = chart(true).svg();
        assert!(svg.contains("points=\"80.0,400.0 840.0,40.0\""), "{svg}");
        assert!(svg.contains("a &lt; b") && svg.contains("t &amp; u") && svg.ends_with("</svg>\n"));
        assert!(chart(false).svg().contains("87.6,396.4 840.0,40.0"));
    }

    #[test]
    fn marks_are_round_numbers() {
        let scale = Scale { from: 0.0, to: 1234.0, is_log: false };
        assert_eq!(scale.marks(), [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0, 1200.0]);
        assert_eq!(
            (shown(1500.0), shown(2e6), shown(0.2)),
            ("1.5k".into(), "2M".into(), "0.2".into())
        );
    }
}
