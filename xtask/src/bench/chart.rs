//! A bar chart as SVG: groups of bars on a logarithmic axis, for the README.

use std::fmt::Write;

/// One bar.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) value: f64,
    /// It is one of ours and not a peer's.
    pub(crate) ours: bool,
}

/// Bars under a heading.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group {
    pub(crate) heading: String,
    pub(crate) bars: Vec<Bar>,
}

const WIDTH: f64 = 760.0;
/// Left of the bars: their labels.
const LABELS: f64 = 170.0;
/// Right of the longest bar: its value.
const VALUES: f64 = 70.0;
const BAR: f64 = 16.0;
const STEP: f64 = 22.0;
const TITLE: f64 = 34.0;
const HEADING: f64 = 26.0;
const AXIS: f64 = 30.0;

/// A chart of `groups`, whose values are in `unit`.
pub(crate) fn chart(title: &str, unit: &str, groups: &[Group]) -> String {
    let values = || groups.iter().flat_map(|group| &group.bars).map(|bar| bar.value).filter(|value| *value > 0.0);
    let lowest = 10_f64.powf(values().fold(1.0, f64::min).log10().floor());
    let highest = 10_f64.powf(values().fold(1.0, f64::max).log10().ceil());
    let span = (highest / lowest).log10().max(1.0);
    let x = |value: f64| LABELS + (value.max(lowest) / lowest).log10() / span * (WIDTH - LABELS - VALUES);
    let bars = |group: &Group| HEADING + STEP * group.bars.len() as f64;
    let bottom = TITLE + groups.iter().map(bars).sum::<f64>() + 6.0;
    let height = bottom + AXIS;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"13\" role=\"img\">\n<title>{0}</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"0\" y=\"20\" font-size=\"15\" font-weight=\"bold\" fill=\"#1f2328\">{0}</text>\n",
        escaped(title)
    );
    let mut put = |line: String| svg.push_str(&(line + "\n"));
    let mut tick = lowest;
    while tick <= highest * 1.001 {
        let at = x(tick);
        put(format!("<line x1=\"{at:.1}\" y1=\"{TITLE}\" x2=\"{at:.1}\" y2=\"{bottom:.1}\" stroke=\"#d1d9e0\"/>"));
        let text = format!("{} {unit}", escaped(&number(tick)));
        put(format!(
            "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#59636e\">{text}</text>",
            bottom + 18.0
        ));
        tick *= 10.0;
    }
    let mut y = TITLE;
    for group in groups {
        let heading = escaped(&group.heading);
        put(format!("<text x=\"0\" y=\"{:.1}\" font-weight=\"bold\" fill=\"#1f2328\">{heading}</text>", y + 18.0));
        y += HEADING;
        for bar in &group.bars {
            let (width, colour) = (x(bar.value) - LABELS, if bar.ours { "#1a7f5a" } else { "#afb8c1" });
            let (text, label) = (y + 12.5, escaped(&bar.label));
            put(format!(
                "<text x=\"{:.1}\" y=\"{text:.1}\" text-anchor=\"end\" fill=\"#1f2328\">{label}</text>",
                LABELS - 8.0
            ));
            put(format!("<rect x=\"{LABELS}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>"));
            let value = number(bar.value);
            put(format!("<text x=\"{:.1}\" y=\"{text:.1}\" fill=\"#1f2328\">{value}</text>", x(bar.value) + 6.0));
            y += STEP;
        }
    }
    let _ = writeln!(svg, "</svg>");
    svg
}

/// Two significant digits below ten, whole numbers above.
pub(crate) fn number(value: f64) -> String {
    match value {
        value if value >= 10.0 => format!("{value:.0}"),
        value if value >= 1.0 => format!("{value:.1}").trim_end_matches(".0").to_owned(),
        value => format!("{value:.2}").trim_end_matches('0').to_owned(),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_time_has_a_longer_bar_and_texts_are_escaped() {
        let bar = |label: &str, value, ours| Bar { label: label.to_owned(), value, ours };
        let bars = vec![bar("a", 0.5, true), bar("<b>", 50.0, false)];
        let svg = chart("t & u", "ms", &[Group { heading: "g".to_owned(), bars }]);
        let widths: Vec<f64> = svg
            .lines()
            .filter(|line| line.contains(&format!("height=\"{BAR}\"")))
            .filter_map(|line| line.split("width=\"").nth(1)?.split('"').next()?.parse().ok())
            .collect();
        assert!(widths.len() == 2 && widths[0] > 0.0 && widths[1] > 2.0 * widths[0], "{widths:?}");
        assert!(svg.contains("&lt;b&gt;") && svg.contains("t &amp; u") && !svg.contains("<b>"));
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([0.46, 0.5, 1.3, 3.0, 12.4, 252.0].map(number), ["0.46", "0.5", "1.3", "3", "12", "252"]);
    }
}
