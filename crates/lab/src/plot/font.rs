//! The one font of all figures, embedded so that a bare machine can draw text.

use ttf_parser::{Face, GlyphId, OutlineBuilder};

/// DejaVu Sans, cut down to the signs that figures use; see `assets/README.md`.
static FONT: &[u8] = include_bytes!("../../assets/DejaVuSans-subset.ttf");

/// The font, read.
pub struct Font(Face<'static>);

impl Font {
    /// Reads the embedded font.
    pub fn embedded() -> Self {
        Font(Face::parse(FONT, 0).expect("the embedded font is well formed"))
    }

    /// Whether the font has the sign.
    #[cfg(test)]
    pub fn knows(&self, c: char) -> bool {
        self.0.glyph_index(c).is_some()
    }

    /// Width of `text` at `size`, in points.
    pub fn width(&self, text: &str, size: f64) -> f64 {
        let units: u32 = text
            .chars()
            .map(|c| u32::from(self.advance(self.glyph(c))))
            .sum();
        f64::from(units) * self.scale(size)
    }

    /// Tells `out` the outline of `text` at `size`, from the origin to the right, upwards positive.
    pub fn outline(&self, text: &str, size: f64, out: &mut dyn OutlineBuilder) {
        let scale = self.scale(size) as f32;
        let mut x = 0.0;
        for c in text.chars() {
            let glyph = self.glyph(c);
            self.0.outline_glyph(glyph, &mut Placed { out, scale, x });
            x += f32::from(self.advance(glyph)) * scale;
        }
    }

    /// The sign's glyph, or the box that stands for what the font lacks.
    fn glyph(&self, c: char) -> GlyphId {
        self.0.glyph_index(c).unwrap_or_default()
    }

    fn advance(&self, glyph: GlyphId) -> u16 {
        self.0.glyph_hor_advance(glyph).unwrap_or(0)
    }

    fn scale(&self, size: f64) -> f64 {
        size / f64::from(self.0.units_per_em())
    }
}

/// An outline, scaled and moved to its place in the line.
struct Placed<'a> {
    out: &'a mut dyn OutlineBuilder,
    scale: f32,
    x: f32,
}

impl Placed<'_> {
    fn at(&self, x: f32, y: f32) -> (f32, f32) {
        (self.x + x * self.scale, y * self.scale)
    }
}

impl OutlineBuilder for Placed<'_> {
    fn move_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.out.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.out.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        let ((x1, y1), (x, y)) = (self.at(x1, y1), self.at(x, y));
        self.out.quad_to(x1, y1, x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        let ((x1, y1), (x2, y2), (x, y)) = (self.at(x1, y1), self.at(x2, y2), self.at(x, y));
        self.out.curve_to(x1, y1, x2, y2, x, y);
    }

    fn close(&mut self) {
        self.out.close();
    }
}
