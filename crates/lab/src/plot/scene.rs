//! A picture as a list of shapes, written as SVG or painted as PNG.

use core::fmt::Write;

use tiny_skia::{
    Color, FillRule, LineCap, LineJoin, Paint, Path, PathBuilder, Pixmap, Stroke, StrokeDash,
    Transform,
};
use ttf_parser::OutlineBuilder;

use super::font::Font;
use super::style::{Colour, PAPER};

/// A place, in points from the upper left corner.
pub type Place = (f64, f64);

/// Where text stands relative to its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// Text and how it is set.
#[derive(Debug, Clone)]
pub struct Text {
    pub at: Place,
    pub text: String,
    pub size: f64,
    pub anchor: Anchor,
    pub colour: Colour,
    /// Read from bottom to top.
    pub upright: bool,
}

/// One thing on the paper.
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
        /// Outline in white, so that overlapping markers stay apart.
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
    /// From the back to the front.
    pub shapes: Vec<Shape>,
    /// What a screen reader says.
    pub title: String,
}

const RIM: f64 = 0.7;

fn hex(c: Colour) -> String {
    format!("#{:02x}{:02x}{:02x}", c[0], c[1], c[2])
}

/// `text` between the tags of XML or HTML, or within quotes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML 1.0, section 2.2: other control characters are not allowed at all.
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// Two decimals are a hundredth of a point; trailing zeros say nothing.
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
    /// The picture as an SVG document.
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

    /// The picture as a PNG image with `scale` pixels to a point.
    ///
    /// # Errors
    /// The image cannot be encoded, or is too large to be held.
    pub fn png(&self, scale: f64) -> Result<Vec<u8>, String> {
        let pixels = |points: f64| (points * scale).ceil() as u32;
        let mut pixmap = Pixmap::new(pixels(self.size.0), pixels(self.size.1))
            .ok_or("the picture is empty or too large")?;
        pixmap.fill(Color::WHITE);
        let mut canvas = Canvas {
            pixmap,
            font: Font::embedded(),
            transform: Transform::from_scale(scale as f32, scale as f32),
        };
        for shape in &self.shapes {
            canvas.paint(shape);
        }
        canvas
            .pixmap
            .encode_png()
            .map_err(|e| format!("cannot encode a picture: {e}"))
    }
}

fn element(shape: &Shape) -> String {
    let rim = |rim: bool| match rim {
        true => format!(" stroke=\"{}\" stroke-width=\"{RIM}\"", hex(PAPER)),
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
    let turn = match text.upright {
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

struct Canvas {
    pixmap: Pixmap,
    font: Font,
    transform: Transform,
}

fn paint(colour: Colour) -> Paint<'static> {
    let mut paint = Paint::default();
    paint.set_color_rgba8(colour[0], colour[1], colour[2], 255);
    paint.anti_alias = true;
    paint
}

fn path(places: &[Place], closed: bool) -> Option<Path> {
    let mut builder = PathBuilder::new();
    let (first, rest) = places.split_first()?;
    builder.move_to(first.0 as f32, first.1 as f32);
    for (x, y) in rest {
        builder.line_to(*x as f32, *y as f32);
    }
    if closed {
        builder.close();
    }
    builder.finish()
}

impl Canvas {
    fn paint(&mut self, shape: &Shape) {
        match shape {
            Shape::Line {
                points,
                width,
                dash,
                colour,
            } => {
                let lengths = dash.iter().map(|d| *d as f32).collect();
                let stroke = Stroke {
                    width: *width as f32,
                    line_cap: LineCap::Butt,
                    line_join: LineJoin::Round,
                    dash: StrokeDash::new(lengths, 0.0),
                    ..Stroke::default()
                };
                self.stroke(path(points, false), &stroke, *colour);
            }
            Shape::Area {
                corners,
                colour,
                rim,
            } => self.fill(path(corners, true), *colour, *rim),
            Shape::Disc {
                at,
                radius,
                colour,
                rim,
            } => {
                let disc = PathBuilder::from_circle(at.0 as f32, at.1 as f32, *radius as f32);
                self.fill(disc, *colour, *rim);
            }
            Shape::Text(text) => self.text(text),
        }
    }

    fn fill(&mut self, path: Option<Path>, colour: Colour, rim: bool) {
        let Some(path) = path else { return };
        self.pixmap.fill_path(
            &path,
            &paint(colour),
            FillRule::Winding,
            self.transform,
            None,
        );
        if rim {
            let stroke = Stroke {
                width: RIM as f32,
                ..Stroke::default()
            };
            self.stroke(Some(path), &stroke, PAPER);
        }
    }

    fn stroke(&mut self, path: Option<Path>, stroke: &Stroke, colour: Colour) {
        let Some(path) = path else { return };
        self.pixmap
            .stroke_path(&path, &paint(colour), stroke, self.transform, None);
    }

    fn text(&mut self, text: &Text) {
        let width = self.font.width(&text.text, text.size);
        let back = match text.anchor {
            Anchor::Start => 0.0,
            Anchor::Middle => width / 2.0,
            Anchor::End => width,
        };
        let mut outline = Glyphs {
            path: PathBuilder::new(),
            back: back as f32,
        };
        self.font.outline(&text.text, text.size, &mut outline);
        let Some(path) = outline.path.finish() else {
            return;
        };
        let turn = if text.upright { -90.0 } else { 0.0 };
        let place = Transform::from_rotate(turn)
            .post_translate(text.at.0 as f32, text.at.1 as f32)
            .post_concat(self.transform);
        self.pixmap
            .fill_path(&path, &paint(text.colour), FillRule::Winding, place, None);
    }
}

/// The outline of a line of text: fonts count upwards, pictures downwards.
struct Glyphs {
    path: PathBuilder,
    back: f32,
}

impl OutlineBuilder for Glyphs {
    fn move_to(&mut self, x: f32, y: f32) {
        self.path.move_to(x - self.back, -y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        self.path.line_to(x - self.back, -y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        self.path.quad_to(x1 - self.back, -y1, x - self.back, -y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        let back = self.back;
        self.path
            .cubic_to(x1 - back, -y1, x2 - back, -y2, x - back, -y);
    }

    fn close(&mut self) {
        self.path.close();
    }
}
