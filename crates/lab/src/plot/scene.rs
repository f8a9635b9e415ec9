//! A picture as a list of shapes, written as SVG.

use core::fmt::Write;

use super::style::{Colour, PAPER};

/// A place, in points from the upper left corner.
pub type Place = (f64, f64);

/// The part of a text that lies at the text's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// A text, with its place and font size.
#[derive(Debug, Clone)]
pub struct Text {
    pub at: Place,
    pub text: String,
    pub size: f64,
    pub anchor: Anchor,
    pub colour: Colour,
    /// True if the text is rotated so that it reads from bottom to top.
    pub vertical: bool,
}

/// A shape of the picture.
#[derive(Debug, Clone)]
pub enum Shape {
    Line {
        points: Vec<Place>,
        width: f64,
        dash: &'static [f64],
        colour: Colour,
    },
    Area {
        corners: Vec<Place>,
        colour: Colour,
        /// True if the outline is white, so that overlapping markers can be told apart.
        rim: bool,
    },
    Disc {
        at: Place,
        radius: f64,
        colour: Colour,
        rim: bool,
    },
    Text(Text),
}

/// A picture.
#[derive(Debug)]
pub struct Scene {
    /// Width and height, in points.
    pub size: (f64, f64),
    /// Shapes from the back to the front.
    pub shapes: Vec<Shape>,
    /// The title for screen readers.
    pub title: String,
}

const MARKER_RIM_WIDTH: f64 = 0.7;

fn hex(c: Colour) -> String {
    format!("#{:02x}{:02x}{:02x}", c[0], c[1], c[2])
}

/// Escapes `text` for a place between tags of XML or HTML, or within quotes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML 1.0, section 2.2, forbids most control characters; a space takes the place of all.
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// Formats a length with at most two decimals: a hundredth of a point is not visible.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" {
        "0".to_owned()
    } else {
        text.to_owned()
    }
}

fn points(places: &[Place]) -> String {
    let each = places
        .iter()
        .map(|(x, y)| format!("{},{}", number(*x), number(*y)));
    each.collect::<Vec<_>>().join(" ")
}

impl Scene {
    /// Returns the picture as an SVG document.
    pub fn svg(&self) -> String {
        let (width, height) = (number(self.size.0), number(self.size.1));
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" role=\"img\" \
             font-family=\"'DejaVu Sans', Verdana, sans-serif\">\n<title>{}</title>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"{}\"/>\n",
            escape(&self.title),
            hex(PAPER)
        );
        for shape in &self.shapes {
            // Writing to a string does not fail.
            let _ = writeln!(out, "{}", element(shape));
        }
        out.push_str("</svg>\n");
        out
    }
}

fn element(shape: &Shape) -> String {
    let rim = |rim: bool| match rim {
        true => format!(
            " stroke=\"{}\" stroke-width=\"{MARKER_RIM_WIDTH}\"",
            hex(PAPER)
        ),
        false => String::new(),
    };
    match shape {
        Shape::Line {
            points: p,
            width,
            dash,
            colour,
        } => {
            let dash: Vec<String> = dash.iter().map(|d| number(*d)).collect();
            let dash = match dash.is_empty() {
                true => String::new(),
                false => format!(" stroke-dasharray=\"{}\"", dash.join(" ")),
            };
            format!(
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" \
                 stroke-linejoin=\"round\"{dash}/>",
                points(p),
                hex(*colour),
                number(*width)
            )
        }
        Shape::Area {
            corners,
            colour,
            rim: r,
        } => {
            format!(
                "<polygon points=\"{}\" fill=\"{}\"{}/>",
                points(corners),
                hex(*colour),
                rim(*r)
            )
        }
        Shape::Disc {
            at,
            radius,
            colour,
            rim: r,
        } => format!(
            "<circle cx=\"{}\" cy=\"{}\" r=\"{}\" fill=\"{}\"{}/>",
            number(at.0),
            number(at.1),
            number(*radius),
            hex(*colour),
            rim(*r)
        ),
        Shape::Text(text) => text_element(text),
    }
}

fn text_element(text: &Text) -> String {
    let (x, y) = (number(text.at.0), number(text.at.1));
    let anchor = match text.anchor {
        Anchor::Start => "start",
        Anchor::Middle => "middle",
        Anchor::End => "end",
    };
    let turn = match text.vertical {
        true => format!(" transform=\"rotate(-90 {x} {y})\""),
        false => String::new(),
    };
    format!(
        "<text x=\"{x}\" y=\"{y}\" font-size=\"{}\" text-anchor=\"{anchor}\" fill=\"{}\"{turn}>{}</text>",
        number(text.size),
        hex(text.colour),
        escape(&text.text)
    )
}
