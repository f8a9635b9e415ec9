//! The layout of a figure: title, note and legend above, axes at the left and below, data in the
//! middle.

use std::collections::HashSet;

use super::figure::{Body, Figure, Mark, Point, Series};
use super::scale::Placed;
use super::style::{self, AXIS_LINE, GRID_LINE, INK, PAPER, QUIET};
use super::text::{self, escape, wrap};

/// A place, in points from the upper left corner.
type Place = (f64, f64);

// Lengths are in points, the user units of the SVG. They and the smaller distances in the code below
// are design choices without a source.
const FIGURE_WIDTH: f64 = 720.0;
const PLOT_HEIGHT: f64 = 330.0;
const MARGIN: f64 = 16.0;
const TEXT_WIDTH: f64 = FIGURE_WIDTH - 2.0 * MARGIN;
const TITLE_SIZE: f64 = 15.0;
const LABEL_SIZE: f64 = 11.5;
/// Half the height of capitals. SVG places text by its baseline, so a text that is centred on a place is drawn this
/// much lower.
const HALF_CAPITAL: f64 = LABEL_SIZE * 0.36;
/// Width of a sample line or bar in the legend.
const SWATCH_WIDTH: f64 = 30.0;
/// Maximum number of markers on a line. More of them would cover it.
const MAX_MARKERS: usize = 20;
/// Distance between the lines of a text.
const LINE_GAP: f64 = 4.0;

/// Attribute of text whose middle lies at its place.
const MIDDLE: &str = "text-anchor='middle'";
/// Attribute of text whose end lies at its place.
const END: &str = "text-anchor='end'";

/// The part of the picture that contains the data.
#[derive(Debug, Clone, Copy)]
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Frame {
    /// Returns the width that each group of bars has.
    fn slot(self, groups: usize) -> f64 {
        (self.right - self.left) / groups.max(1) as f64
    }
}

/// Draws a figure as an SVG document.
pub fn svg(figure: &Figure) -> String {
    let mut page = Page::default();
    let title = (TITLE_SIZE, TEXT_WIDTH);
    let below_title = page.paragraph((MARGIN, MARGIN), title, "", &figure.title);
    let (note, quiet) = ((LABEL_SIZE, TEXT_WIDTH), format!("fill='{QUIET}'"));
    let below_note = page.paragraph((MARGIN, below_title), note, &quiet, &figure.note);
    let (groups, series) = match &figure.body {
        Body::Plane(series) => (None, series),
        Body::Bars { groups, series } => (Some(groups), series),
    };
    let top = page.legend(below_note, series, groups.is_some()) + 8.0;
    let bottom = top + PLOT_HEIGHT;
    let points = || series.iter().flat_map(|one| &one.points);
    // The axis has room for the ends of error bars too.
    let values = points().flat_map(|p| {
        let (low, high) = p.ends().unwrap_or((p.y, p.y));
        [p.y, low, high]
    });
    let y = Placed::new(&figure.y, values, true, (bottom, top));
    let ticks = y.labelled_ticks(7);
    let labels = ticks.iter().map(|(_, label)| label);
    let widths = labels.map(|label| text::width(label, LABEL_SIZE));
    let frame = Frame {
        left: MARGIN + LABEL_SIZE + 14.0 + widths.fold(0.0, f64::max),
        right: FIGURE_WIDTH - MARGIN - 10.0,
        top,
        bottom,
    };
    page.vertical_axis(&figure.y.label, &ticks, frame);
    let below = match groups {
        None => {
            let ends = (frame.left, frame.right);
            let x = Placed::new(&figure.x, points().map(|p| p.x), false, ends);
            page.horizontal_axis(&x, frame);
            page.plane(series, &x, &y);
            bottom + LABEL_SIZE + 8.0
        }
        Some(groups) => {
            page.bars(groups.len(), series, frame, &y);
            page.group_names(groups, frame)
        }
    };
    let label = below + LABEL_SIZE + 8.0;
    let middle = (frame.left + frame.right) / 2.0;
    page.text((middle, label), MIDDLE, &figure.x.label);
    page.document(&figure.title, label + MARGIN, series.len())
}

/// The shapes of a figure as elements of SVG, from the back to the front.
#[derive(Default)]
struct Page(String);

impl Page {
    /// Returns the SVG document of the shapes, with the definitions of `series` series, to which the shapes refer.
    fn document(&self, title: &str, height: f64, series: usize) -> String {
        let definitions: String = (0..series).map(style::definitions).collect();
        let (title, shapes) = (escape(title), &self.0);
        format!(
            "<svg xmlns='http://www.w3.org/2000/svg' width='{FIGURE_WIDTH}' height='{height:.1}' \
             viewBox='0 0 {FIGURE_WIDTH} {height:.1}' role='img' fill='{INK}' \
             font-family='\"DejaVu Sans\", Verdana, sans-serif' font-size='{LABEL_SIZE}'>\n\
             <title>{title}</title>\n<defs>\n{definitions}</defs>\n\
             <rect width='100%' height='100%' fill='{PAPER}'/>\n{shapes}</svg>\n"
        )
    }

    fn text(&mut self, (x, y): Place, attributes: &str, text: &str) {
        let text = escape(text);
        self.0 += &format!("<text x='{x:.1}' y='{y:.1}' {attributes}>{text}</text>\n");
    }

    /// Draws a text below `y`, in lines of at most `width`. Returns the lower end of the text.
    fn paragraph(
        &mut self,
        (x, mut y): Place,
        (size, width): (f64, f64),
        attributes: &str,
        text: &str,
    ) -> f64 {
        for line in wrap(text, size, width) {
            y += size;
            let look = format!("font-size='{size:.1}' {attributes}");
            self.text((x, y), &look, &line);
            y += LINE_GAP;
        }
        y
    }

    fn line(&mut self, places: &[Place], attributes: &str) {
        let points = places.iter().map(|(x, y)| format!("{x:.1},{y:.1} "));
        let points: String = points.collect();
        self.0 += &format!("<polyline points='{points}' fill='none' {attributes}/>\n");
    }

    /// Draws a marker or a dot of the `n`-th series.
    fn mark(&mut self, kind: &str, n: usize, (x, y): Place) {
        self.0 += &format!("<use href='#{kind}-{n}' x='{x:.1}' y='{y:.1}'/>\n");
    }

    /// Draws a bar of the `n`-th series between two opposite corners. Either may be the upper one.
    fn bar(&mut self, n: usize, (x, from): Place, (right, to): Place) {
        let (y, width, height) = (from.min(to), right - x, (from - to).abs());
        // The bar is moved as a whole, so that its hatching begins at its corner.
        let place = format!("transform='translate({x:.1} {y:.1})'");
        let size = format!("width='{width:.1}' height='{height:.1}'");
        self.0 += &format!("<rect {place} {size} fill='url(#bar-{n})'/>\n");
    }

    fn error_bar(&mut self, x: f64, point: &Point, y: &Placed, colour: &str) {
        // On a logarithmic axis an error bar that reaches down to zero has no lower end.
        let ends = point.ends().map(|(low, high)| (y.at(low), y.at(high)));
        if let Some((low, high)) = ends.filter(|(low, high)| (low - high).is_finite()) {
            let (left, right) = (x - 3.5, x + 3.5);
            let path = format!("M{left:.1} {low:.1}H{right:.1}M{left:.1} {high:.1}H{right:.1}");
            let path = format!("{path}M{x:.1} {low:.1}V{high:.1}");
            self.0 += &format!("<path d='{path}' stroke='{colour}' stroke-width='1.2'/>\n");
        }
    }

    /// Draws the names of the series, in as many rows as they need. Draws nothing for a single series,
    /// which the title names. Returns the lower end of the names.
    fn legend(&mut self, y: f64, series: &[Series], bars: bool) -> f64 {
        if series.len() < 2 {
            return y;
        }
        let row = LABEL_SIZE + 7.0;
        let (mut x, mut middle) = (MARGIN, y + LINE_GAP + row / 2.0);
        for (n, one) in series.iter().enumerate() {
            let width = SWATCH_WIDTH + 6.0 + text::width(&one.name, LABEL_SIZE);
            if x > MARGIN && x + width > FIGURE_WIDTH - MARGIN {
                x = MARGIN;
                middle += row;
            }
            let end = x + SWATCH_WIDTH;
            if bars {
                self.bar(n, (end - 20.0, middle - 5.0), (end, middle + 5.0));
            } else {
                if one.mark == Mark::Line {
                    self.line(&[(x, middle), (end, middle)], &style::stroke(n));
                }
                self.mark("marker", n, (x + SWATCH_WIDTH / 2.0, middle));
            }
            self.text((end + 6.0, middle + HALF_CAPITAL), "", &one.name);
            x += width + 18.0;
        }
        middle + row / 2.0
    }

    fn vertical_axis(&mut self, label: &str, ticks: &[(f64, String)], frame: Frame) {
        for (at, text) in ticks {
            self.line(&[(frame.left, *at), (frame.right, *at)], GRID_LINE);
            self.text((frame.left - 7.0, at + HALF_CAPITAL), END, text);
        }
        let (x, y) = (MARGIN + LABEL_SIZE * 0.7, (frame.top + frame.bottom) / 2.0);
        let look = format!("{MIDDLE} transform='rotate(-90 {x:.1} {y:.1})'");
        self.text((x, y), &look, label);
    }

    fn horizontal_axis(&mut self, x: &Placed, frame: Frame) {
        for (at, text) in x.labelled_ticks(10) {
            self.line(&[(at, frame.top), (at, frame.bottom)], GRID_LINE);
            self.line(&[(at, frame.bottom), (at, frame.bottom + 4.0)], AXIS_LINE);
            self.text((at, frame.bottom + LABEL_SIZE + 7.0), MIDDLE, &text);
        }
        self.axes(frame);
    }

    /// Draws the two axes over the grid.
    fn axes(&mut self, frame: Frame) {
        let corner = (frame.left, frame.bottom);
        let ends = [(frame.left, frame.top), corner, (frame.right, frame.bottom)];
        self.line(&ends, AXIS_LINE);
    }

    /// Draws the names below the groups of bars. Shrinks the font until every word fits below its group.
    /// Returns the lower end of the names.
    fn group_names(&mut self, groups: &[String], frame: Frame) -> f64 {
        let slot = frame.slot(groups.len());
        let room = slot - 8.0;
        let words = groups.iter().flat_map(|name| name.split_whitespace());
        let widths = words.map(|word| text::width(word, LABEL_SIZE));
        let size = LABEL_SIZE * room / widths.fold(room, f64::max);
        let below = groups.iter().enumerate().map(|(n, name)| {
            let at = (frame.left + slot * (n as f64 + 0.5), frame.bottom + 7.0);
            self.paragraph(at, (size, room), MIDDLE, name)
        });
        below.fold(frame.bottom, f64::max)
    }

    /// Draws groups of bars. A group fills 80 % of its slot, and bars stand apart by 12 % of their width.
    fn bars(&mut self, groups: usize, series: &[Series], frame: Frame, y: &Placed) {
        let slot = frame.slot(groups);
        let width = (slot * 0.8 / series.len().max(1) as f64).min(70.0);
        let zero = y.at(0.0).clamp(frame.top, frame.bottom);
        for (n, one) in series.iter().enumerate() {
            let shift = (n as f64 - (series.len() - 1) as f64 / 2.0) * width;
            for (group, point) in one.points.iter().take(groups).enumerate() {
                if y.axis.shows(point.y) {
                    let middle = frame.left + slot * (group as f64 + 0.5) + shift;
                    let (left, right) = (middle - width * 0.44, middle + width * 0.44);
                    self.bar(n, (left, y.at(point.y)), (right, zero));
                    self.error_bar(middle, point, y, INK);
                }
            }
        }
        self.axes(frame);
    }

    /// Draws series of points: error bars, lines and markers, and dots on top.
    fn plane(&mut self, series: &[Series], x: &Placed, y: &Placed) {
        let mut dots: Vec<(usize, Place)> = Vec::new();
        for (n, one) in series.iter().enumerate() {
            // A value that cannot be shown interrupts the line.
            let runs = one
                .points
                .split(|p| !x.axis.shows(p.x) || !y.axis.shows(p.y));
            for run in runs.filter(|run| !run.is_empty()) {
                let places: Vec<Place> = run.iter().map(|p| (x.at(p.x), y.at(p.y))).collect();
                for point in run {
                    self.error_bar(x.at(point.x), point, y, style::colour(n));
                }
                if one.mark == Mark::Dots {
                    dots.extend(places.iter().map(|place| (n, *place)));
                    continue;
                }
                self.line(&thinned(&places), &style::stroke(n));
                // The first markers of series are at different points, so that lines that coincide do not hide each
                // other's markers, unless every point has a marker.
                let every = places.len().div_ceil(MAX_MARKERS);
                for place in places.iter().skip(n % every).step_by(every) {
                    self.mark("marker", n, *place);
                }
            }
        }
        // Dots are drawn from left to right, all series mixed. Drawn series by series, the last series would
        // cover the others.
        dots.sort_by(|(_, a), (_, b)| a.0.total_cmp(&b.0));
        // Dots of a series within half a point of each other look like one dot, so only one is drawn.
        let mut cells = HashSet::new();
        dots.retain(|(n, (x, y))| cells.insert((*n, (x * 2.0) as i64, (y * 2.0) as i64)));
        for (n, place) in dots {
            self.mark("dot", n, place);
        }
    }
}

/// Returns the line without data points that make no visible difference, so that the file stays small. The
/// picture is cut into columns half a unit of length wide. Of the data points in a column, the first,
/// lowest, highest and last remain, in order.
fn thinned(places: &[Place]) -> Vec<Place> {
    let columns = places.chunk_by(|a, b| (a.0 * 2.0) as i64 == (b.0 * 2.0) as i64);
    let remaining = columns.flat_map(|column| {
        let mut by_height: Vec<usize> = (0..column.len()).collect();
        by_height.sort_by(|a, b| column[*a].1.total_cmp(&column[*b].1));
        let last = column.len() - 1;
        // In another order the line would run back over itself and fill the gaps between dashes.
        let mut kept = [0, by_height[0], by_height[last], last];
        kept.sort();
        kept.map(|n| column[n])
    });
    let mut out: Vec<Place> = remaining.collect();
    out.dedup();
    out
}
