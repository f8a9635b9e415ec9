//! Figures, drawn without a browser and without the system's fonts, so that the same input gives the
//! same bytes on every machine. The crate `plotters` is not used: its legend shows no dashes and cannot stand
//! outside of the data.
//!
//! A [`Figure`] is laid out and written as SVG in one pass from its top. The legend stands above the data,
//! never over it. Series differ in colour (Okabe and Ito's palette, safe for the colour-blind), in dashes,
//! in markers and in the hatching of bars, so that they also survive a black-and-white printer.

mod draw;
mod figure;
mod scale;
mod style;
mod text;

#[cfg(test)]
mod tests;

pub use figure::{Axis, Body, Figure, Format, Mark, Point, Scale, Series};
pub use text::escape;

impl Figure {
    /// Returns the figure as an SVG document.
    pub fn svg(&self) -> String {
        draw::svg(self)
    }
}
