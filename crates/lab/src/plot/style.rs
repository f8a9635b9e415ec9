//! The looks that distinguish series, as attributes and definitions of SVG.

/// Text and axes.
pub const INK: &str = "#222222";
/// Notes below the title.
pub const QUIET: &str = "#555555";
/// The background.
pub const PAPER: &str = "#ffffff";
/// Attributes of the lines of the grid.
pub const GRID_LINE: &str = "stroke='#e2e2e2' stroke-width='0.8'";
/// Attributes of the two axes, in the colour of text.
pub const AXIS_LINE: &str = "stroke='#222222'";

/// Okabe and Ito's palette without its yellow, which is hard to see on white paper.
const PALETTE: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#333333", "#e69f00", "#56b4e9",
];

/// Lengths of dashes and gaps, in points.
const DASHES: [&str; 5] = ["none", "7 3", "2 2.5", "9 3 2 3", "4 2"];

/// Outlines of markers with a radius of about 1: circle, square, triangle, diamond, cross and wedge.
const MARKERS: [&str; 6] = [
    "M-1 0A1 1 0 0 1 1 0A1 1 0 0 1 -1 0Z",
    "M-.9 -.9H.9V.9H-.9Z",
    "M0 -1.2L1.1 .8H-1.1Z",
    "M0 -1.3L1.3 0L0 1.3L-1.3 0Z",
    "M-1.2 -.8L-.8 -1.2L0 -.4L.8 -1.2L1.2 -.8L.4 0L1.2 .8L.8 1.2L0 .4L-.8 1.2L-1.2 .8L-.4 0Z",
    "M0 1.2L1.1 -.8H-1.1Z",
];

/// Lines in the colour of the paper, repeated every 5 points, that hatch bars.
const HATCHES: [&str; 4] = ["", "M0 2.5H5", "M2.5 0V5", "M0 2.5H5M2.5 0V5"];

// The lengths of the lists for lines (7, 5, 6) have no common divisor, so the looks of lines repeat only
// after 210 series. Bars have 7 colours and 4 hatchings, so the looks of bars repeat after 28 series.

/// Returns the colour of the `n`-th series.
pub fn colour(n: usize) -> &'static str {
    PALETTE[n % PALETTE.len()]
}

/// Returns the attributes of the `n`-th series' line.
pub fn stroke(n: usize) -> String {
    let (colour, dashes) = (colour(n), DASHES[n % DASHES.len()]);
    format!(
        "stroke='{colour}' stroke-width='1.8' stroke-linejoin='round' stroke-dasharray='{dashes}'"
    )
}

/// Returns the definitions of the `n`-th series' marker, dot and bar, to which the picture refers by name.
/// A page can contain many figures, as a name has the same definition in all of them.
pub fn definitions(n: usize) -> String {
    let (colour, outline) = (colour(n), MARKERS[n % MARKERS.len()]);
    let hatch = HATCHES[n % HATCHES.len()];
    // A white rim separates overlapping markers. Dots are too small for it.
    format!(
        "<path id='marker-{n}' d='{outline}' transform='scale(3.6)' fill='{colour}' \
         stroke='{PAPER}' stroke-width='0.2'/>\n\
         <path id='dot-{n}' d='{outline}' transform='scale(1.3)' fill='{colour}'/>\n\
         <pattern id='bar-{n}' width='5' height='5' patternUnits='userSpaceOnUse'>\
         <rect width='5' height='5' fill='{colour}'/><path d='{hatch}' stroke='{PAPER}'/>\
         </pattern>\n"
    )
}
