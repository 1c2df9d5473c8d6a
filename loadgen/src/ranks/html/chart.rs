//! Pictures as SVG. Colours of lines and texts come from the page's style, so that they fit light and dark.

use std::fmt::Write as _;

use super::escaped;

const WIDTH: f64 = 900.0;
/// Of the part with the values; legend and labels come on top.
const ROOM: f64 = 230.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
/// Name of the axis, above the values.
const TOP: f64 = 30.0;
/// Marks, above the values as well.
const STRIP: f64 = 16.0;
/// Labels of the axis and its name, below.
const BOTTOM: f64 = 44.0;
/// Those of the page's style: classes `c0` to `c5`.
const COLOURS: usize = 6;
/// Told apart also on black and white paper.
const DASHES: [&str; 5] = ["", "7 3", "2 3", "9 3 2 3", "14 4"];
/// In one line of the legend.
const LEGEND: usize = 8;
const LEGEND_LINE: f64 = 18.0;
/// More marks than this get no line through the picture, or nothing else could be seen.
const MOST_LINES: usize = 24;

/// Something over time.
pub struct Curve {
    /// For the legend.
    pub name: String,
    /// (seconds, value), in order.
    pub points: Vec<(f64, f64)>,
}

/// A moment to mark.
pub struct Mark {
    /// Seconds.
    pub at: f64,
    /// Shown under the pointer.
    pub text: String,
    /// Nobody asked for it: something went down.
    pub failure: bool,
}

/// The next number of the form 1, 2 or 5 times a power of ten.
fn round_up(value: f64) -> f64 {
    if value.is_nan() || value <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    steps.into_iter().find(|step| *step >= value * 0.999_999).unwrap_or(10.0 * power)
}

/// Where the ticks of an axis from 0 to `most` are.
fn ticks(most: f64) -> Vec<f64> {
    let step = round_up(most / 8.0);
    let count = (most / step + 0.001).floor() as usize;
    (0..=count).map(|tick| tick as f64 * step).collect()
}

fn tick_text(value: f64) -> String {
    match value {
        value if value >= 10_000_000.0 => format!("{:.0}M", value / 1e6),
        value if value >= 10_000.0 => format!("{:.0}k", value / 1000.0),
        value if value.fract() == 0.0 => format!("{value:.0}"),
        value => format!("{value:.1}"),
    }
}

/// A text within the picture. `anchor`: `start`, `middle` or `end`.
fn label(svg: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let _ = write!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", escaped(text));
}

fn line(svg: &mut String, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    let _ = write!(svg, "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>");
}

fn start(height: f64, what: &str) -> String {
    let what = escaped(what);
    format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{what}\">")
}

/// Where things are in a picture of curves.
struct Frame {
    /// Of the name of the axis.
    name: f64,
    /// Of the values.
    top: f64,
    bottom: f64,
    longest: f64,
    highest: f64,
}

impl Frame {
    fn of(curves: &[Curve], marks: &[Mark]) -> Self {
        let points = || curves.iter().flat_map(|curve| curve.points.iter());
        let longest = points().map(|point| point.0).chain(marks.iter().map(|mark| mark.at)).fold(0.0, f64::max);
        let highest = points().map(|point| point.1).fold(0.0, f64::max);
        // The axis ends with a tick above all values.
        let step = round_up(highest * 1.05 / 8.0);
        let legend = curves.len().div_ceil(LEGEND) as f64 * LEGEND_LINE;
        let name = legend + TOP - 12.0;
        let top = legend + TOP + if marks.is_empty() { 0.0 } else { STRIP };
        Self {
            name,
            top,
            bottom: top + ROOM,
            longest: longest.max(1.0),
            highest: (highest * 1.05 / step).ceil().max(1.0) * step,
        }
    }

    fn x(&self, second: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * second.max(0.0) / self.longest
    }

    fn y(&self, value: f64) -> f64 {
        self.bottom - ROOM * value.max(0.0) / self.highest
    }

    fn axes(&self, svg: &mut String, unit: &str) {
        for tick in ticks(self.highest) {
            let at = self.y(tick);
            line(svg, "grid", (LEFT, at), (WIDTH - RIGHT, at));
            label(svg, LEFT - 6.0, at + 4.0, "end", &tick_text(tick));
        }
        for tick in ticks(self.longest) {
            let at = self.x(tick);
            line(svg, "axis", (at, self.bottom), (at, self.bottom + 4.0));
            label(svg, at, self.bottom + 17.0, "middle", &tick_text(tick));
        }
        line(svg, "axis", (LEFT, self.bottom), (WIDTH - RIGHT, self.bottom));
        label(
            svg,
            f64::midpoint(LEFT, WIDTH - RIGHT),
            self.bottom + 36.0,
            "middle",
            "time since the start, in seconds",
        );
        label(svg, LEFT - 40.0, self.name, "start", unit);
    }

    /// A triangle above the values for each, filled where something failed, and a thin line if there are few.
    fn mark(&self, svg: &mut String, mark: &Mark, lines: bool) {
        let (at, kind) = (self.x(mark.at), if mark.failure { "mark failure" } else { "mark" });
        let (up, tip) = (self.top - STRIP + 4.0, self.top - 4.0);
        let _ = write!(svg, "<g class=\"{kind}\"><title>{}</title>", escaped(&mark.text));
        let _ = write!(svg, "<path d=\"M{:.1} {up:.1}h7l-3.5 {:.1}z\"/>", at - 3.5, tip - up);
        if lines {
            line(svg, "through", (at, tip), (at, self.bottom));
        }
        svg.push_str("</g>");
    }
}

/// How curve number so and so is drawn.
fn pen(number: usize) -> String {
    let (colour, dash) = (number % COLOURS, DASHES[number % DASHES.len()]);
    format!("class=\"curve c{colour}\" stroke-dasharray=\"{dash}\"")
}

fn legend(svg: &mut String, number: usize, name: &str) {
    let (x, y) = (LEFT + 100.0 * (number % LEGEND) as f64, 8.0 + LEGEND_LINE * (number / LEGEND) as f64);
    let _ = write!(svg, "<line x1=\"{x}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\" {}/>", x + 32.0, pen(number));
    label(svg, x + 38.0, y + 4.0, "start", name);
}

/// Curves over time from 0 on, with marked moments. `unit` names the values.
pub fn curves(curves: &[Curve], marks: &[Mark], unit: &str) -> String {
    let frame = Frame::of(curves, marks);
    let mut svg = start(frame.bottom + BOTTOM, &format!("{unit} over time"));
    frame.axes(&mut svg, unit);
    for mark in marks {
        frame.mark(&mut svg, mark, marks.len() <= MOST_LINES);
    }
    for (number, curve) in curves.iter().enumerate() {
        let points: Vec<String> =
            curve.points.iter().map(|(at, value)| format!("{:.1},{:.1}", frame.x(*at), frame.y(*value))).collect();
        let (points, pen, name) = (points.join(" "), pen(number), escaped(&curve.name));
        let _ = write!(svg, "<polyline points=\"{points}\" {pen}><title>{name}</title></polyline>");
        legend(&mut svg, number, &curve.name);
    }
    svg.push_str("</svg>");
    svg
}

/// Columns whose height is the logarithm of a count, with labels below. `across` and `unit` name the axes.
pub fn bars(columns: &[(String, u64)], across: &str, unit: &str) -> String {
    let most = columns.iter().map(|column| column.1).max().unwrap_or(0).max(1) as f64;
    // From half of one to the next power of ten: a single one is a column as well.
    let (low, high) = (0.5f64.log10(), most.log10().floor() + 1.0);
    let (top, bottom) = (TOP, TOP + ROOM);
    let y = |count: f64| bottom - ROOM * (count.log10() - low) / (high - low);
    let wide = (WIDTH - LEFT - RIGHT) / columns.len().max(1) as f64;
    let mut svg = start(bottom + 84.0, &format!("{unit} by {across}"));
    for power in 0..=high as i32 {
        let count = 10f64.powi(power);
        line(&mut svg, "grid", (LEFT, y(count)), (WIDTH - RIGHT, y(count)));
        label(&mut svg, LEFT - 6.0, y(count) + 4.0, "end", &tick_text(count));
    }
    label(&mut svg, LEFT - 40.0, top - 12.0, "start", &format!("{unit} (logarithmic)"));
    for (number, (name, count)) in columns.iter().enumerate() {
        let x = LEFT + wide * number as f64;
        let middle = x + wide / 2.0;
        if *count > 0 {
            let (at, width) = (y(*count as f64), (wide - 2.0).max(1.0));
            let title = escaped(&format!("{name}: {count}"));
            let _ = write!(
                svg,
                "<rect class=\"bar\" x=\"{:.1}\" y=\"{at:.1}\" width=\"{width:.1}\" height=\"{:.1}\"><title>{title}</title></rect>",
                x + 1.0,
                bottom - at
            );
            label(&mut svg, middle, at - 4.0, "middle", &tick_text(*count as f64));
        }
        let (name, below) = (escaped(name), bottom + 14.0);
        let _ = write!(
            svg,
            "<text x=\"{middle:.1}\" y=\"{below:.1}\" text-anchor=\"end\" transform=\"rotate(-45 {middle:.1} {below:.1})\">{name}</text>"
        );
    }
    line(&mut svg, "axis", (LEFT, bottom), (WIDTH - RIGHT, bottom));
    label(&mut svg, f64::midpoint(LEFT, WIDTH - RIGHT), bottom + 78.0, "middle", across);
    svg.push_str("</svg>");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        assert_eq!((round_up(0.0), round_up(3.0), round_up(7.0), round_up(20.0)), (1.0, 5.0, 10.0, 20.0));
        assert_eq!(ticks(8.0).last(), Some(&8.0));
        assert_eq!((tick_text(25_000.0), tick_text(2.5), tick_text(40.0)), ("25k".into(), "2.5".into(), "40".into()));
    }

    #[test]
    fn every_curve_and_mark_is_drawn_within_the_picture() {
        let curve = |number: usize| Curve { name: format!("rank {number}"), points: vec![(0.0, 5.0), (9.0, 123.0)] };
        let many: Vec<Curve> = (0..9).map(curve).collect();
        let svg = curves(&many, &[Mark { at: 4.0, text: "<moved>".into(), failure: false }], "operations/s");
        assert_eq!(svg.matches("<polyline").count(), 9);
        assert!(svg.contains("&lt;moved&gt;") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        let points = svg.split("points=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        for point in points.split(' ') {
            let (x, y) = point.split_once(',').unwrap();
            let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
            let top = 2.0 * LEGEND_LINE + TOP + STRIP;
            assert!((LEFT..=WIDTH - RIGHT).contains(&x) && (top..=top + ROOM).contains(&y), "{point}");
        }
        let empty = curves(&[], &[], "");
        assert!(!empty.contains("NaN") && !bars(&[], "", "").contains("NaN"));
    }

    #[test]
    fn curves_differ_without_colours_too() {
        let dashes: std::collections::BTreeSet<&str> = DASHES.into_iter().collect();
        let pens: std::collections::BTreeSet<String> = (0..COLOURS * DASHES.len()).map(pen).collect();
        assert_eq!((dashes.len(), pens.len()), (DASHES.len(), COLOURS * DASHES.len()));
    }

    #[test]
    fn many_marks_leave_the_curves_to_be_seen() {
        let marks = |count: u32| -> Vec<Mark> {
            (0..count).map(|at| Mark { at: at.into(), text: String::new(), failure: at % 2 == 1 }).collect()
        };
        let few = curves(&[], &marks(20), "");
        let many = curves(&[], &marks(200), "");
        assert_eq!((few.matches("class=\"through\"").count(), many.matches("class=\"through\"").count()), (20, 0));
        assert_eq!((many.matches("<path").count(), many.matches("mark failure").count()), (200, 100));
    }

    #[test]
    fn a_column_is_as_tall_as_its_count_has_digits() {
        let columns = [("≤ 1 µs".to_owned(), 1), ("≤ 2 µs".to_owned(), 0), ("≤ 4 µs".to_owned(), 999)];
        let svg = bars(&columns, "latency", "operations");
        let heights: Vec<f64> =
            svg.split("height=\"").skip(1).map(|rest| rest.split('"').next().unwrap().parse().unwrap()).collect();
        assert!(
            heights.len() == 2 && heights[0] > 10.0 && heights[1] > 3.0 * heights[0] && heights[1] <= ROOM,
            "{heights:?}"
        );
        for part in ["latency", "operations (logarithmic)", ">1000<", "rotate(-45"] {
            assert!(svg.contains(part), "{part} is missing: {svg}");
        }
    }
}
