//! Figures, drawn without a browser and without the system's fonts, so that the same input gives the
//! same bytes on every machine.
//!
//! A [`Figure`] is laid out into a scene of lines, areas and text, which is written as SVG. The legend
//! stands above the data, never over it. Series differ in colour (Okabe and Ito's palette, safe for the
//! colour-blind), in dashes and in markers, so that they also survive a black-and-white printer.

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
