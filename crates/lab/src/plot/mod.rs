//! Figures as SVG. They are drawn without a browser and without the system's fonts, so that the same input gives
//! the same bytes on every machine.
//!
//! A [`Figure`] is laid out into a scene of lines, areas and text, and the scene is written as SVG. The legend
//! stands above the data and never covers it. Series differ in colour (Okabe and Ito's palette, which the
//! colour-blind can distinguish), in dashes and in markers, so that they differ in a black-and-white print too.

mod draw;
mod figure;
mod font;
mod scale;
mod scene;
mod style;

#[cfg(test)]
mod tests;

pub use figure::{Axis, Body, Figure, Format, Mark, Point, Scale, Series};
pub use scene::escape;

impl Figure {
    /// Returns the figure as an SVG document.
    pub fn svg(&self) -> String {
        draw::scene(self).svg()
    }
}
