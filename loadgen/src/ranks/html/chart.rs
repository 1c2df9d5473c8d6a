//! Pictures as SVG.

use std::fmt::Write as _;

use super::escaped;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 44.0;
/// Told apart also without seeing red and green (Okabe and Ito, "Color Universal Design").
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];
/// A second round of the colours looks different too.
const DASHES: [&str; 4] = ["", "6 3", "2 3", "8 3 2 3"];

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
        value if value >= 10_000.0 => format!("{:.0}k", value / 1000.0),
        value if value.fract() == 0.0 => format!("{value:.0}"),
        value => format!("{value:.1}"),
    }
}

fn start() -> String {
    format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">")
}

/// Curves over time from 0 on, with marked moments. `unit` names the values.
pub fn curves(curves: &[Curve], marks: &[Mark], unit: &str) -> String {
    let points = || curves.iter().flat_map(|curve| curve.points.iter());
    let longest = points().map(|point| point.0).chain(marks.iter().map(|mark| mark.at)).fold(0.0, f64::max).max(1.0);
    let highest = points().map(|point| point.1).fold(0.0, f64::max);
    let top = *ticks(highest * 1.1 + f64::MIN_POSITIVE).last().unwrap_or(&1.0);
    let top = if top < highest { top + round_up(highest * 1.1 / 8.0) } else { top }.max(f64::MIN_POSITIVE);
    let x = |second: f64| LEFT + (WIDTH - LEFT - RIGHT) * second / longest;
    let y = |value: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top;
    let mut svg = start();
    for tick in ticks(top) {
        let (at, right, label) = (y(tick), WIDTH - RIGHT, tick_text(tick));
        let _ = write!(svg, "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#e6eaef\"/>");
        let _ = write!(svg, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>", LEFT - 6.0, at + 4.0);
    }
    for tick in ticks(longest) {
        let (at, label) = (x(tick), tick_text(tick));
        let _ =
            write!(svg, "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>", HEIGHT - BOTTOM + 16.0);
    }
    let _ = write!(svg, "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">seconds</text>", WIDTH - RIGHT, HEIGHT - 10.0);
    let _ = write!(svg, "<text x=\"{LEFT}\" y=\"14\">{}</text>", escaped(unit));
    for mark in marks {
        let (at, bottom) = (x(mark.at), HEIGHT - BOTTOM);
        let _ = write!(
            svg,
            "<line class=\"mark\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\" stroke=\"#8a94a3\" \
             stroke-width=\"1\" stroke-dasharray=\"3 2\"><title>{}</title></line>",
            escaped(&mark.text)
        );
    }
    for (number, curve) in curves.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let dash = DASHES[number / COLOURS.len() % DASHES.len()];
        let line: Vec<String> =
            curve.points.iter().map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(*value))).collect();
        let name = escaped(&curve.name);
        let _ = write!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\" stroke-dasharray=\"{dash}\">\
             <title>{name}</title></polyline>",
            line.join(" ")
        );
        let at = LEFT + 120.0 + 90.0 * number as f64;
        let _ = write!(
            svg,
            "<line x1=\"{at}\" x2=\"{}\" y1=\"10\" y2=\"10\" stroke=\"{colour}\" stroke-width=\"3\" \
             stroke-dasharray=\"{dash}\"/><text x=\"{}\" y=\"14\">{name}</text>",
            at + 22.0,
            at + 28.0
        );
    }
    svg.push_str("</svg>");
    svg
}

/// Columns whose height is the logarithm of a count, with labels below.
pub fn bars(columns: &[(String, u64)]) -> String {
    let height = |count: u64| ((count + 1) as f64).log10();
    let most = columns.iter().map(|column| height(column.1)).fold(1.0, f64::max);
    let wide = (WIDTH - LEFT - RIGHT) / columns.len().max(1) as f64;
    let (bottom, room) = (HEIGHT - 70.0, HEIGHT - 70.0 - TOP);
    let mut svg = start();
    for (number, (label, count)) in columns.iter().enumerate() {
        let (x, tall) = (LEFT + wide * number as f64, room * height(*count) / most);
        let middle = x + wide / 2.0;
        let _ = write!(
            svg,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{tall:.1}\" fill=\"#0072b2\"><title>{}: {count}</title></rect>",
            x + 1.0,
            bottom - tall,
            (wide - 2.0).max(1.0),
            escaped(label)
        );
        if *count > 0 {
            let _ = write!(
                svg,
                "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom - tall - 4.0,
                tick_text(*count as f64)
            );
        }
        let turned = format!("rotate(-45 {middle:.1} {:.1})", bottom + 14.0);
        let _ = write!(
            svg,
            "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"end\" transform=\"{turned}\">{}</text>",
            bottom + 14.0,
            escaped(label)
        );
    }
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
        let svg = curves(&many, &[Mark { at: 4.0, text: "<moved>".into() }], "operations/s");
        assert_eq!(svg.matches("<polyline").count(), 9);
        assert!(svg.contains("&lt;moved&gt;") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        let points = svg.split("points=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        for point in points.split(' ') {
            let (x, y) = point.split_once(',').unwrap();
            let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
            assert!((0.0..=WIDTH).contains(&x) && (TOP - 1.0..=HEIGHT).contains(&y), "{point}");
        }
        let empty = curves(&[], &[], "");
        assert!(!empty.contains("NaN") && !bars(&[]).contains("NaN"));
    }
}
