//! The styles that distinguish series: colours, dashes, markers and hatching.

/// A colour: red, green, blue.
pub type Colour = [u8; 3];

pub const INK: Colour = [0x22, 0x22, 0x22];
pub const QUIET: Colour = [0x55, 0x55, 0x55];
pub const GRID: Colour = [0xe2, 0xe2, 0xe2];
pub const PAPER: Colour = [0xff, 0xff, 0xff];

/// Okabe and Ito's palette of colours that the colour-blind can distinguish, without yellow, which is hard to see
/// on white paper, and with a dark grey instead of black.
const PALETTE: [Colour; 7] = [
    [0x00, 0x72, 0xb2],
    [0xd5, 0x5e, 0x00],
    [0x00, 0x9e, 0x73],
    [0xcc, 0x79, 0xa7],
    [0x33, 0x33, 0x33],
    [0xe6, 0x9f, 0x00],
    [0x56, 0xb4, 0xe9],
];

/// Lengths of dash and gap, in points; an empty list is a solid line.
const DASHES: [&[f64]; 5] = [
    &[],
    &[7.0, 3.0],
    &[2.0, 2.5],
    &[9.0, 3.0, 2.0, 3.0],
    &[4.0, 2.0],
];

/// The shape of a marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    Circle,
    Square,
    Triangle,
    Diamond,
    Cross,
    Wedge,
}

const MARKERS: [Marker; 6] = [
    Marker::Circle,
    Marker::Square,
    Marker::Triangle,
    Marker::Diamond,
    Marker::Cross,
    Marker::Wedge,
];

/// The style of a series.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    pub colour: Colour,
    pub dash: &'static [f64],
    pub marker: Marker,
    /// Hatching of bars: lines across, and lines along.
    pub hatch: (bool, bool),
}

/// Returns the style of series `n`. No two of the lists' lengths (7, 5, 6) have a common divisor, so the styles of
/// lines repeat only after 210 series, and the styles of bars (7 colours, 4 hatchings) after 28.
pub fn nth(n: usize) -> Style {
    Style {
        colour: PALETTE[n % PALETTE.len()],
        dash: DASHES[n % DASHES.len()],
        marker: MARKERS[n % MARKERS.len()],
        hatch: (n % 4 == 1 || n % 4 == 3, n % 4 >= 2),
    }
}

impl Marker {
    /// Returns the corners around (x, y); none for a circle.
    pub fn corners(self, (x, y): (f64, f64), r: f64) -> Vec<(f64, f64)> {
        let unit: &[(f64, f64)] = match self {
            Marker::Circle => &[],
            Marker::Square => &[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
            Marker::Triangle => &[(0.0, -1.2), (1.1, 0.8), (-1.1, 0.8)],
            Marker::Diamond => &[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)],
            Marker::Cross => &[
                (-1.2, -0.8),
                (-0.8, -1.2),
                (0.0, -0.4),
                (0.8, -1.2),
                (1.2, -0.8),
                (0.4, 0.0),
                (1.2, 0.8),
                (0.8, 1.2),
                (0.0, 0.4),
                (-0.8, 1.2),
                (-1.2, 0.8),
                (-0.4, 0.0),
            ],
            Marker::Wedge => &[(0.0, 1.2), (1.1, -0.8), (-1.1, -0.8)],
        };
        unit.iter()
            .map(|(dx, dy)| (x + dx * r, y + dy * r))
            .collect()
    }
}
