//! A bar chart as SVG: groups of horizontal bars on a logarithmic axis.
//!
//! The chart has its own background and follows the colour scheme of the reader (`prefers-color-scheme`). Viewers without
//! style sheets show the light colours, which are also attributes.

use std::fmt::Write;

/// What a bar stands for, which decides its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Own,
    Peer,
    /// For comparison: what is not reached by waking.
    Reference,
}

/// One bar.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) value: f64,
    pub(crate) kind: Kind,
}

/// Bars under a heading.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group {
    pub(crate) heading: String,
    pub(crate) bars: Vec<Bar>,
}

const WIDTH: f64 = 760.0;
const MARGIN: f64 = 18.0;
/// Left edge of the bars; their labels are left of it.
const LEFT: f64 = 230.0;
/// Right edge of the longest possible bar; its value is right of it.
const RIGHT: f64 = WIDTH - 70.0;
const BAR: f64 = 14.0;
const STEP: f64 = 20.0;
/// Upper edge of the first group.
const TOP: f64 = 48.0;
const HEADING: f64 = 28.0;
const AXIS: f64 = 34.0;

/// Class, light colour, dark colour.
const COLOURS: [(&str, &str, &str); 7] = [
    ("card", "#ffffff", "#0d1117"),
    ("text", "#1f2328", "#e6edf3"),
    ("muted", "#59636e", "#9198a1"),
    ("grid", "#d1d9e0", "#30363d"),
    ("own", "#1a7f5a", "#3fb98a"),
    ("peer", "#8c959f", "#6e7681"),
    ("reference", "#c6ccd3", "#444c56"),
];

impl Kind {
    const fn class(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Peer => "peer",
            Self::Reference => "reference",
        }
    }
}

/// A chart of `groups`, whose values are in `unit`.
pub(crate) fn chart(title: &str, subtitle: &str, unit: &str, groups: &[Group]) -> String {
    let values = || groups.iter().flat_map(|group| &group.bars).map(|bar| bar.value).filter(|value| *value > 0.0);
    let lowest = 10_f64.powf(values().fold(1.0, f64::min).log10().floor());
    let highest = 10_f64.powf(values().fold(1.0, f64::max).log10().ceil());
    let span = (highest / lowest).log10().max(1.0);
    let x = |value: f64| LEFT + (value.max(lowest) / lowest).log10() / span * (RIGHT - LEFT);
    let bottom = TOP + groups.iter().map(|group| HEADING + STEP * group.bars.len() as f64).sum::<f64>() + 6.0;
    let mut svg = Svg::begin(title, &description(unit, groups), bottom + AXIS);
    svg.text((MARGIN, 26.0), "text", "font-size=\"15\" font-weight=\"600\"", title);
    svg.text((MARGIN, 44.0), "muted", "font-size=\"12\"", subtitle);
    let mut tick = lowest;
    while tick <= highest * 1.001 {
        let at = x(tick);
        let stroke = colour("grid");
        svg.line(format_args!(
            "<line class=\"grid\" x1=\"{at:.1}\" y1=\"{:.1}\" x2=\"{at:.1}\" y2=\"{bottom:.1}\" stroke=\"{stroke}\"/>",
            TOP + 8.0
        ));
        svg.text((at, bottom + 20.0), "muted", "text-anchor=\"middle\"", &format!("{} {unit}", number(tick)));
        tick *= 10.0;
    }
    let mut y = TOP;
    for group in groups {
        svg.text((MARGIN, y + 20.0), "text", "font-weight=\"600\"", &group.heading);
        y += HEADING;
        for bar in &group.bars {
            let (width, class, base) = (x(bar.value) - LEFT, bar.kind.class(), y + 11.5);
            svg.text((LEFT - 8.0, base), "text", "text-anchor=\"end\"", &bar.label);
            let fill = colour(class);
            svg.line(format_args!(
                "<rect class=\"{class}\" x=\"{LEFT}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{fill}\"/>"
            ));
            svg.text((x(bar.value) + 6.0, base), "text", "", &number(bar.value));
            y += STEP;
        }
    }
    svg.end()
}

/// All values as text, for readers who cannot see the bars.
fn description(unit: &str, groups: &[Group]) -> String {
    let bar = |bar: &Bar| format!("{} {} {unit}", bar.label, number(bar.value));
    let group =
        |group: &Group| format!("{}: {}.", group.heading, group.bars.iter().map(bar).collect::<Vec<_>>().join(", "));
    groups.iter().map(group).collect::<Vec<_>>().join(" ")
}

/// The light colour of a class.
fn colour(class: &str) -> &'static str {
    COLOURS.iter().find(|(name, ..)| *name == class).map_or("#000000", |(_, light, _)| light)
}

/// The text of the file as it grows.
struct Svg(String);

impl Svg {
    fn begin(title: &str, description: &str, height: f64) -> Self {
        let rule = |class: &str, colour: &str| {
            let property = if class == "grid" { "stroke" } else { "fill" };
            format!(".{class}{{{property}:{colour}}}")
        };
        let light: String = COLOURS.iter().map(|(class, light, _)| rule(class, light)).collect();
        let dark: String = COLOURS.iter().map(|(class, _, dark)| rule(class, dark)).collect();
        let mut svg = Self(String::new());
        svg.line(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"system-ui, -apple-system, 'Segoe UI', sans-serif\" font-size=\"13\" role=\"img\" \
             aria-labelledby=\"title description\">"
        ));
        svg.line(format_args!("<title id=\"title\">{}</title>", escaped(title)));
        svg.line(format_args!("<desc id=\"description\">{}</desc>", escaped(description)));
        svg.line(format_args!("<style>{light} @media (prefers-color-scheme:dark){{{dark}}}</style>"));
        let fill = colour("card");
        svg.line(format_args!("<rect class=\"card\" width=\"{WIDTH}\" height=\"{height}\" rx=\"6\" fill=\"{fill}\"/>"));
        svg
    }

    fn text(&mut self, (x, y): (f64, f64), class: &str, attributes: &str, text: &str) {
        let (fill, text) = (colour(class), escaped(text));
        let space = if attributes.is_empty() { "" } else { " " };
        self.line(format_args!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\"{space}{attributes} fill=\"{fill}\">{text}</text>"
        ));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.0, "{line}");
    }

    fn end(mut self) -> String {
        self.line(format_args!("</svg>"));
        self.0
    }
}

/// At most two significant digits below ten; above, whole numbers with thousands separated.
pub(crate) fn number(value: f64) -> String {
    let (sign, value) = if value <= -0.005 { ("-", -value) } else { ("", value.abs()) };
    let text = match value {
        value if value >= 9.95 => thousands(value.round() as u64),
        value if value >= 0.995 => format!("{value:.1}").trim_end_matches(".0").to_owned(),
        value => format!("{value:.2}").trim_end_matches('0').trim_end_matches('.').to_owned(),
    };
    format!("{sign}{text}")
}

fn thousands(value: u64) -> String {
    if value < 1000 { value.to_string() } else { format!("{},{:03}", thousands(value / 1000), value % 1000) }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> String {
        let bar = |label: &str, value, kind| Bar { label: label.to_owned(), value, kind };
        let bars = vec![bar("a", 0.5, Kind::Own), bar("<b>", 50.0, Kind::Peer)];
        chart("t & u", "s", "ms", &[Group { heading: "g".to_owned(), bars }])
    }

    #[test]
    fn a_longer_time_has_a_longer_bar() {
        let svg = example();
        let widths: Vec<f64> = svg
            .lines()
            .filter(|line| line.contains(&format!("height=\"{BAR}\"")))
            .filter_map(|line| line.split("width=\"").nth(1)?.split('"').next()?.parse().ok())
            .collect();
        assert!(widths.len() == 2 && widths[0] > 0.0 && widths[1] > 2.0 * widths[0], "{widths:?}");
    }

    #[test]
    fn texts_are_escaped_and_values_are_described() {
        let svg = example();
        assert!(svg.contains("&lt;b&gt;") && svg.contains("t &amp; u") && !svg.contains("<b>"), "{svg}");
        assert!(svg.contains(">g: a 0.5 ms, &lt;b&gt; 50 ms.</desc>"), "{svg}");
    }

    #[test]
    fn numbers_are_short() {
        let numbers = [0.0, 0.46, 0.5, 0.999, 1.3, 3.0, 9.97, 12.4, 252.0, 1064.2, -3.2, -0.001].map(number);
        assert_eq!(numbers, ["0", "0.46", "0.5", "1", "1.3", "3", "10", "12", "252", "1,064", "-3.2", "0"]);
    }
}
