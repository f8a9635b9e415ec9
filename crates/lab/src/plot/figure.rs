//! What a figure shows.

/// A figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// What is compared.
    pub title: String,
    /// Under what conditions, and what the error bars mean; may be empty.
    pub note: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// What is shown.
    pub body: Body,
}

/// An axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Quantity and unit, as in `time (s)`.
    pub label: String,
    /// How values are placed.
    pub scale: Scale,
    /// How values are written.
    pub format: Format,
}

/// How values are placed on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// In proportion; a vertical axis includes zero.
    Linear,
    /// By their logarithm; values of zero and below are left out.
    Log,
}

/// How the values of an axis are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// As decimal numbers.
    Number,
    /// As sizes with binary prefixes: `64k`, `1M`.
    Bytes,
    /// As a percentage of one.
    Percent,
}

/// What a figure shows.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// Points in a plane.
    Plane(Vec<Series>),
    /// Bars in groups, as many in each as there are series; the horizontal axis has the groups'
    /// names instead of values.
    Bars {
        /// Names of the groups.
        groups: Vec<String>,
        /// The bars: one point a group, in order; `x` is not used.
        series: Vec<Series>,
    },
}

/// Points that belong together.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// The points, in the order in which they are joined.
    pub points: Vec<Point>,
    /// How they are shown.
    pub mark: Mark,
}

/// A value, with its uncertainty where there is one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Place on the horizontal axis.
    pub x: f64,
    /// Place on the vertical axis.
    pub y: f64,
    /// Ends of the error bar.
    pub range: Option<(f64, f64)>,
}

/// How a series in a plane is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Joined by a line, with markers.
    Line,
    /// Joined by steps, as a distribution function is.
    Steps,
    /// Each by a marker of its own.
    Dots,
}

impl Axis {
    /// A linear axis of plain numbers.
    pub fn linear(label: &str) -> Self {
        Axis {
            label: label.to_owned(),
            scale: Scale::Linear,
            format: Format::Number,
        }
    }

    /// A logarithmic axis of sizes in bytes.
    pub fn sizes(label: &str) -> Self {
        Axis {
            label: label.to_owned(),
            scale: Scale::Log,
            format: Format::Bytes,
        }
    }
}

impl Point {
    /// A value without error bar.
    pub fn new(x: f64, y: f64) -> Self {
        Point { x, y, range: None }
    }

    /// A value with an error bar of the same length both ways.
    pub fn with_error(x: f64, y: f64, error: f64) -> Self {
        Point {
            x,
            y,
            range: Some((y - error, y + error)),
        }
    }

    /// Ends of the error bar as it is shown: what is not negative is not drawn as if it could be.
    pub(super) fn ends(&self) -> Option<(f64, f64)> {
        let (low, high) = self.range?;
        match self.y >= 0.0 {
            true => Some((low.max(0.0), high)),
            false => Some((low, high)),
        }
    }
}

impl Series {
    /// The empirical distribution function of `samples`, as shares from 0 to 1.
    pub fn cdf(name: &str, samples: &[f64]) -> Self {
        let mut sorted: Vec<f64> = samples.iter().copied().filter(|s| s.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len() as f64;
        let mut points: Vec<Point> = sorted
            .first()
            .map(|x| Point::new(*x, 0.0))
            .into_iter()
            .collect();
        points.extend(
            (1u32..)
                .zip(&sorted)
                .map(|(n, x)| Point::new(*x, f64::from(n) / count)),
        );
        Series {
            name: name.to_owned(),
            points,
            mark: Mark::Steps,
        }
    }
}
