//! The content of a figure: data, axes and texts, without any layout.

/// A figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Title, which names the compared things.
    pub title: String,
    /// Conditions, and the meaning of the error bars; may be empty.
    pub note: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The data.
    pub body: Body,
}

/// An axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Quantity and unit, as in `time (s)`.
    pub label: String,
    /// Placement of values.
    pub scale: Scale,
    /// Format of values.
    pub format: Format,
}

/// The placement of values on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Values at proportional distances. A vertical axis includes zero.
    Linear,
    /// Values at the distances of their logarithms. Values of zero and below are left out.
    Log,
}

/// The format of an axis's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Decimal numbers.
    Number,
    /// Sizes with binary prefixes: `64k`, `1M`.
    Bytes,
    /// Shares of one, shown as percentages.
    Percent,
}

/// The data of a figure.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// Points in a plane.
    Plane(Vec<Series>),
    /// Groups of bars. Each group has one bar of each series. The horizontal axis has the names of the groups
    /// instead of values.
    Bars {
        /// Names of the groups.
        groups: Vec<String>,
        /// The bars: one point for each group, in order; `x` is not used.
        series: Vec<Series>,
    },
}

/// Points that belong together.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// The points, in the order in which lines connect them.
    pub points: Vec<Point>,
    /// The marks of the points.
    pub mark: Mark,
}

/// A value, perhaps with an error bar.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Place on the horizontal axis.
    pub x: f64,
    /// Place on the vertical axis.
    pub y: f64,
    /// Ends of the error bar, if the point has one.
    pub range: Option<(f64, f64)>,
}

/// The marks of a series in a plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// A line with markers.
    Line,
    /// A marker for each point, without a line.
    Dots,
}

impl Axis {
    /// Returns a linear axis of plain numbers.
    pub fn linear(label: &str) -> Self {
        Axis {
            label: label.to_owned(),
            scale: Scale::Linear,
            format: Format::Number,
        }
    }

    /// Returns a logarithmic axis of sizes in bytes.
    pub fn sizes(label: &str) -> Self {
        Axis {
            label: label.to_owned(),
            scale: Scale::Log,
            format: Format::Bytes,
        }
    }

    /// Returns whether the axis can show a value. A logarithmic axis can show only values above zero.
    pub(super) fn shows(&self, value: f64) -> bool {
        value.is_finite() && (self.scale == Scale::Linear || value > 0.0)
    }
}

impl Point {
    /// Returns a value without an error bar.
    pub fn new(x: f64, y: f64) -> Self {
        Point { x, y, range: None }
    }

    /// Returns a value with an error bar of the same length in both directions.
    pub fn with_error(x: f64, y: f64, error: f64) -> Self {
        Point {
            x,
            y,
            range: Some((y - error, y + error)),
        }
    }

    /// Returns the ends of the error bar as drawn. If the value is not negative, the bar stops at zero, so
    /// that it does not extend the axis below zero.
    pub(super) fn ends(&self) -> Option<(f64, f64)> {
        let (low, high) = self.range?;
        let low = if self.y >= 0.0 { low.max(0.0) } else { low };
        Some((low, high))
    }
}

impl Series {
    /// Returns a series of `points`, drawn as a line, or as one bar in each group.
    pub fn line(name: impl Into<String>, points: impl IntoIterator<Item = Point>) -> Self {
        Series {
            name: name.into(),
            points: points.into_iter().collect(),
            mark: Mark::Line,
        }
    }
}
