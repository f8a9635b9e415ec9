//! The layout of a figure: title, note and legend above, axes at the left and below, data in the
//! middle.

use std::collections::BTreeSet;

use super::figure::{Body, Figure, Mark, Point, Scale, Series};
use super::font;
use super::scale::{self, Placed};
use super::scene::{Anchor, Place, Scene, Shape, Text};
use super::style::{self, Colour, GRID, INK, PAPER, QUIET, Style};

// Lengths are in points, the user units of the SVG. They and the smaller distances in the code below
// are design choices without a source.
const FIGURE_WIDTH: f64 = 720.0;
const PLOT_HEIGHT: f64 = 330.0;
const MARGIN: f64 = 16.0;
const TITLE_SIZE: f64 = 15.0;
const LABEL_SIZE: f64 = 11.5;
/// Width of a sample line or bar in the legend.
const SWATCH_WIDTH: f64 = 30.0;
/// Maximum number of points of a line with a marker at each point. More markers would cover the line.
const MAX_MARKERS: usize = 30;
/// Distance between two markers along a line with more points.
const MARKER_GAP: f64 = 40.0;

/// The part of the picture that contains the data.
#[derive(Debug, Clone, Copy)]
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

/// Computes the layout of a figure.
pub fn scene(figure: &Figure) -> Scene {
    let mut page = Page {
        shapes: Vec::new(),
        y: MARGIN,
    };
    page.paragraph(&figure.title, TITLE_SIZE, INK);
    page.paragraph(&figure.note, LABEL_SIZE, QUIET);
    let series = match &figure.body {
        Body::Plane(series) | Body::Bars { series, .. } => series,
    };
    page.legend(series, matches!(figure.body, Body::Bars { .. }));
    let top = page.y + 8.0;
    let bottom = top + PLOT_HEIGHT;
    let y = vertical_scale(figure, series, (bottom, top));
    let y_ticks = y.ticks(7, figure.y.format);
    let widest = y_ticks
        .iter()
        .map(|t| font::width(&scale::label(*t, &y_ticks, figure.y.format), LABEL_SIZE));
    let frame = Frame {
        left: MARGIN + LABEL_SIZE + 14.0 + widest.fold(0.0, f64::max),
        right: FIGURE_WIDTH - MARGIN - 10.0,
        top,
        bottom,
    };
    page.vertical_axis(figure, &y, &y_ticks, frame);
    let below = match &figure.body {
        Body::Plane(series) => {
            let values = series.iter().flat_map(|s| &s.points).map(|p| p.x);
            // Unlike a vertical axis, a linear horizontal axis need not include zero.
            let range = scale::range(&figure.x, values, figure.x.scale == Scale::Log);
            let x = Placed::new(figure.x.scale, range, (frame.left, frame.right));
            page.horizontal_axis(figure, &x, frame);
            page.axes(frame);
            page.plane(series, figure, (&x, &y));
            LABEL_SIZE + 8.0
        }
        Body::Bars { groups, series } => {
            let below = page.group_names(groups, frame);
            page.bars(groups.len(), series, (frame, &y));
            page.axes(frame);
            below
        }
    };
    let label = bottom + below + LABEL_SIZE + 8.0;
    let middle = (frame.left + frame.right) / 2.0;
    page.text(
        (middle, label),
        &figure.x.label,
        LABEL_SIZE,
        Anchor::Middle,
        INK,
    );
    Scene {
        size: (FIGURE_WIDTH, label + MARGIN),
        shapes: page.shapes,
        title: figure.title.clone(),
    }
}

/// Returns the vertical axis, which has room for all values and the ends of their error bars.
fn vertical_scale(figure: &Figure, series: &[Series], ends: (f64, f64)) -> Placed {
    let values = series.iter().flat_map(|s| &s.points).flat_map(|p| {
        let (low, high) = p.ends().unwrap_or((p.y, p.y));
        [p.y, low, high]
    });
    Placed::new(figure.y.scale, scale::range(&figure.y, values, true), ends)
}

/// A figure in progress, filled from the top.
struct Page {
    shapes: Vec<Shape>,
    /// The used height of the page; the next part begins below it.
    y: f64,
}

impl Page {
    fn text(&mut self, at: Place, text: &str, size: f64, anchor: Anchor, colour: Colour) {
        self.shapes.push(Shape::Text(Text {
            at,
            text: text.to_owned(),
            size,
            anchor,
            colour,
            vertical: false,
        }));
    }

    fn line(&mut self, points: Vec<Place>, width: f64, colour: Colour) {
        self.shapes.push(Shape::Line {
            points,
            width,
            dash: &[],
            colour,
        });
    }

    fn paragraph(&mut self, text: &str, size: f64, colour: Colour) {
        for line in wrap(text, size, FIGURE_WIDTH - 2.0 * MARGIN) {
            self.y += size;
            self.text((MARGIN, self.y), &line, size, Anchor::Start, colour);
            self.y += 5.0;
        }
    }

    /// Draws the names of the series, in as many rows as they need. Draws nothing for a single series,
    /// which the title names.
    fn legend(&mut self, series: &[Series], bars: bool) {
        if series.len() < 2 {
            return;
        }
        self.y += 4.0;
        let mut x = MARGIN;
        let row = LABEL_SIZE + 7.0;
        for (n, one) in series.iter().enumerate() {
            let width = SWATCH_WIDTH + 6.0 + font::width(&one.name, LABEL_SIZE) + 18.0;
            if x > MARGIN && x + width > FIGURE_WIDTH - MARGIN {
                x = MARGIN;
                self.y += row;
            }
            let middle = self.y + row / 2.0;
            self.swatch(one, bars, style::nth(n), (x, middle));
            // 0.36 of the font size is half the height of capitals, so the text is centred vertically.
            let at = (x + SWATCH_WIDTH + 6.0, middle + LABEL_SIZE * 0.36);
            self.text(at, &one.name, LABEL_SIZE, Anchor::Start, INK);
            x += width;
        }
        self.y += row;
    }

    fn swatch(&mut self, series: &Series, bars: bool, style: Style, (x, y): Place) {
        if bars {
            self.bar((x + 8.0, y - 5.0), (x + SWATCH_WIDTH, y + 5.0), style);
            return;
        }
        if series.mark != Mark::Dots {
            self.shapes.push(Shape::Line {
                points: vec![(x, y), (x + SWATCH_WIDTH, y)],
                width: 1.8,
                dash: style.dash,
                colour: style.colour,
            });
        }
        self.marker((x + SWATCH_WIDTH / 2.0, y), 3.6, style);
    }

    fn vertical_axis(&mut self, figure: &Figure, y: &Placed, ticks: &[f64], frame: Frame) {
        for tick in ticks {
            let at = y.at(*tick);
            self.line(vec![(frame.left, at), (frame.right, at)], 0.8, GRID);
            let label = scale::label(*tick, ticks, figure.y.format);
            let place = (frame.left - 7.0, at + LABEL_SIZE * 0.36);
            self.text(place, &label, LABEL_SIZE, Anchor::End, INK);
        }
        self.shapes.push(Shape::Text(Text {
            at: (MARGIN + LABEL_SIZE * 0.7, (frame.top + frame.bottom) / 2.0),
            text: figure.y.label.clone(),
            size: LABEL_SIZE,
            anchor: Anchor::Middle,
            colour: INK,
            vertical: true,
        }));
    }

    fn horizontal_axis(&mut self, figure: &Figure, x: &Placed, frame: Frame) {
        let ticks = x.ticks(10, figure.x.format);
        for tick in &ticks {
            let at = x.at(*tick);
            self.line(vec![(at, frame.top), (at, frame.bottom)], 0.8, GRID);
            self.line(vec![(at, frame.bottom), (at, frame.bottom + 4.0)], 1.0, INK);
            let label = scale::label(*tick, &ticks, figure.x.format);
            let place = (at, frame.bottom + LABEL_SIZE + 7.0);
            self.text(place, &label, LABEL_SIZE, Anchor::Middle, INK);
        }
    }

    /// Draws the two axes over the grid.
    fn axes(&mut self, frame: Frame) {
        let corner = (frame.left, frame.bottom);
        let ends = vec![(frame.left, frame.top), corner, (frame.right, frame.bottom)];
        self.line(ends, 1.0, INK);
    }

    /// Draws the names below the groups of bars. Shrinks the font until every word fits below its group.
    /// Returns the height of the names.
    fn group_names(&mut self, groups: &[String], frame: Frame) -> f64 {
        let slot = (frame.right - frame.left) / groups.len().max(1) as f64;
        let room = slot - 8.0;
        let words = groups.iter().flat_map(|name| name.split_whitespace());
        let widest = words
            .map(|word| font::width(word, LABEL_SIZE))
            .fold(room, f64::max);
        let size = LABEL_SIZE * room / widest;
        let mut rows = 1;
        for (n, name) in groups.iter().enumerate() {
            let middle = frame.left + slot * (n as f64 + 0.5);
            let lines = wrap(name, size, room);
            rows = rows.max(lines.len());
            for (row, line) in lines.iter().enumerate() {
                let y = frame.bottom + 7.0 + size + row as f64 * (size + 3.0);
                self.text((middle, y), line, size, Anchor::Middle, INK);
            }
        }
        8.0 + rows as f64 * (size + 3.0)
    }

    /// Draws groups of bars. A group fills 80 % of its slot, and bars stand apart by 12 % of their width.
    fn bars(&mut self, groups: usize, series: &[Series], (frame, y): (Frame, &Placed)) {
        let slot = (frame.right - frame.left) / groups.max(1) as f64;
        let width = (slot * 0.8 / series.len().max(1) as f64).min(70.0);
        let zero = y.at(0.0).clamp(frame.top, frame.bottom);
        for (n, one) in series.iter().enumerate() {
            let shift = (n as f64 - series.len() as f64 / 2.0) * width;
            for (group, point) in one.points.iter().take(groups).enumerate() {
                if !point.y.is_finite() {
                    continue;
                }
                let left = frame.left + slot * (group as f64 + 0.5) + shift;
                let (at, gap) = (y.at(point.y), width * 0.06);
                let (low, high) = (at.max(zero), at.min(zero));
                self.bar((left + gap, high), (left + width - gap, low), style::nth(n));
                self.error_bar(left + width / 2.0, point, y, INK);
            }
        }
    }

    fn bar(&mut self, (left, top): Place, (right, bottom): Place, style: Style) {
        self.shapes.push(Shape::Area {
            corners: vec![(left, top), (right, top), (right, bottom), (left, bottom)],
            colour: style.colour,
            rim: false,
        });
        // Lines in the colour of the paper, 6 points apart, hatch the bar.
        let (across, along) = style.hatch;
        let steps = |from: f64, to: f64| {
            let count = ((to - from) / 6.0).floor() as u32;
            (1..=count).map(move |n| from + f64::from(n) * 6.0)
        };
        if across {
            for y in steps(top, bottom - 1.0) {
                self.line(vec![(left, y), (right, y)], 1.0, PAPER);
            }
        }
        if along {
            for x in steps(left, right - 1.0) {
                self.line(vec![(x, top), (x, bottom)], 1.0, PAPER);
            }
        }
    }

    /// Draws series of points: error bars, lines and markers, and dots on top.
    fn plane(&mut self, series: &[Series], figure: &Figure, (x, y): (&Placed, &Placed)) {
        let shown =
            |p: &Point| scale::shows(figure.x.scale, p.x) && scale::shows(figure.y.scale, p.y);
        let mut dots = Vec::new();
        for (n, one) in series.iter().enumerate() {
            let style = style::nth(n);
            // A value that cannot be shown interrupts the line.
            for run in one
                .points
                .split(|p| !shown(p))
                .filter(|run| !run.is_empty())
            {
                let places: Vec<Place> = run.iter().map(|p| (x.at(p.x), y.at(p.y))).collect();
                for point in run {
                    self.error_bar(x.at(point.x), point, y, style.colour);
                }
                match one.mark {
                    Mark::Line => self.draw_run(thinned(&places), &places, style),
                    Mark::Steps => self.draw_run(thinned(&stepped(&places)), &places, style),
                    Mark::Dots => dots.extend(places.into_iter().map(|place| (n, place))),
                }
            }
        }
        self.dots(dots);
    }

    /// Draws a line without gaps, and the markers of its points `places`.
    fn draw_run(&mut self, line: Vec<Place>, places: &[Place], style: Style) {
        self.shapes.push(Shape::Line {
            points: line,
            width: 1.8,
            dash: style.dash,
            colour: style.colour,
        });
        for place in marked(places) {
            self.marker(place, 3.6, style);
        }
    }

    /// Draws the dots of all series from left to right, mixed. If drawn series by series, the last series
    /// would cover the others.
    fn dots(&mut self, mut dots: Vec<(usize, Place)>) {
        dots.sort_by(|(_, a), (_, b)| a.0.total_cmp(&b.0));
        let mut cells = BTreeSet::new();
        for (n, place) in dots {
            // Dots of a series within half a point of each other look like one dot, so only one is drawn.
            if cells.insert((n, (place.0 * 2.0) as i64, (place.1 * 2.0) as i64)) {
                self.marker(place, 1.3, style::nth(n));
            }
        }
    }

    fn marker(&mut self, at: Place, radius: f64, style: Style) {
        let corners = style.marker.corners(at, radius);
        // A white rim separates overlapping markers. Dots are too small for it.
        let rim = radius > 3.0;
        let colour = style.colour;
        self.shapes.push(match corners.is_empty() {
            true => Shape::Disc {
                at,
                radius,
                colour,
                rim,
            },
            false => Shape::Area {
                corners,
                colour,
                rim,
            },
        });
    }

    fn error_bar(&mut self, x: f64, point: &Point, y: &Placed, colour: Colour) {
        let Some((low, high)) = point.ends() else {
            return;
        };
        let ends = [y.at(low), y.at(high)];
        // On a logarithmic axis an error bar that reaches down to zero has no lower end.
        if ends.iter().any(|end| !end.is_finite()) {
            return;
        }
        self.line(vec![(x, ends[0]), (x, ends[1])], 1.2, colour);
        for end in ends {
            self.line(vec![(x - 3.5, end), (x + 3.5, end)], 1.2, colour);
        }
    }
}

/// Returns a staircase through `places`.
fn stepped(places: &[Place]) -> Vec<Place> {
    let mut out: Vec<Place> = Vec::with_capacity(2 * places.len());
    for (x, y) in places {
        if let Some((_, before)) = out.last() {
            out.push((*x, *before));
        }
        out.push((*x, *y));
    }
    out
}

/// Returns the line without data points that make no visible difference, so that the file stays small. The
/// picture is cut into columns half a unit of length wide. Of the data points in a column, the first,
/// lowest, highest and last remain, in order.
fn thinned(places: &[Place]) -> Vec<Place> {
    // Shorter lines need no thinning. The limit is a guess.
    if places.len() < 2_000 {
        return places.to_vec();
    }
    let column = |p: &Place| (p.0 * 2.0) as i64;
    let mut out = Vec::new();
    for chunk in places.chunk_by(|a, b| column(a) == column(b)) {
        let by_height = |(_, a): &(usize, &Place), (_, b): &(usize, &Place)| a.1.total_cmp(&b.1);
        let extremes = [
            Some(0),
            chunk.iter().enumerate().min_by(by_height).map(|(n, _)| n),
            chunk.iter().enumerate().max_by(by_height).map(|(n, _)| n),
            Some(chunk.len() - 1),
        ];
        let remaining: BTreeSet<usize> = extremes.into_iter().flatten().collect();
        out.extend(remaining.into_iter().map(|n| chunk[n]));
    }
    out
}

/// Returns the places of a line's markers: every point, or points at even distances if there are many.
fn marked(places: &[Place]) -> Vec<Place> {
    if places.len() <= MAX_MARKERS {
        return places.to_vec();
    }
    let mut out = Vec::new();
    let mut travelled = MARKER_GAP / 2.0;
    for pair in places.windows(2) {
        travelled += (pair[1].0 - pair[0].0).hypot(pair[1].1 - pair[0].1);
        if travelled >= MARKER_GAP {
            out.push(pair[1]);
            travelled = 0.0;
        }
    }
    out
}

/// Breaks `text` at spaces into lines of at most `width`. A longer word stands alone on a line.
fn wrap(text: &str, size: f64, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if font::width(&format!("{line} {word}"), size) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
