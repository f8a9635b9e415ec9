//! The looks that distinguish series.

/// A colour: red, green, blue.
pub type Colour = [u8; 3];

/// Text and axes.
pub const INK: Colour = [0x22, 0x22, 0x22];
/// Notes below the title.
pub const QUIET: Colour = [0x55, 0x55, 0x55];
/// Lines of the grid.
pub const GRID: Colour = [0xe2, 0xe2, 0xe2];
/// The background.
pub const PAPER: Colour = [0xff, 0xff, 0xff];

/// Okabe and Ito's palette without its yellow, which is hard to see on white paper.
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

/// The look of one series.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    pub colour: Colour,
    pub dash: &'static [f64],
    pub marker: Marker,
    /// Hatching of bars: the first value is true for horizontal lines, the second for vertical lines.
    pub hatch: (bool, bool),
}

/// Returns the look of the `n`-th series. The lengths of the lists (7, 5, 6) have no common divisor, so the
/// looks of lines repeat only after 210 series. Bars have 7 colours and 4 hatchings, so the looks of bars
/// repeat after 28 series.
pub fn nth(n: usize) -> Style {
    Style {
        colour: PALETTE[n % PALETTE.len()],
        dash: DASHES[n % DASHES.len()],
        marker: MARKERS[n % MARKERS.len()],
        hatch: (n % 4 == 1 || n % 4 == 3, n % 4 >= 2),
    }
}

impl Marker {
    /// Returns the corners of the marker at (x, y) with radius `r`; none for a circle.
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
