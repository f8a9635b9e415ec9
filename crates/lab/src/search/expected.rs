//! The estimates of the candidate in a draw: the arrivals that its decisions expected, beside the real ones.

use serde::Serialize;

use super::draw::Draw;
use super::run::Variant;
use crate::backend::Error;
use crate::backend::sim::expectations;
use crate::stats;

/// The errors of the expected arrivals of one run: the real minus the expected time, as a share of the real delay.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Errors {
    /// The number of packets with an expected arrival.
    pub packets: usize,
    /// The median of the errors with their signs. Packets arrive later than expected if it is positive.
    pub median: f64,
    /// The median of the absolute errors.
    pub median_abs: f64,
}

impl Errors {
    /// Makes the first of the first runs of `draw` once more, and compares. Returns `None` without a packet.
    ///
    /// # Errors
    /// The run fails.
    pub fn of(draw: &Draw) -> Result<Option<Errors>, Error> {
        let case = Variant::CANDIDATE.case(draw, draw.seeds[0]);
        let errors = expectations(&case, 0)?;
        let errors = errors
            .iter()
            .map(|packet| (packet.actual - packet.expected) / packet.actual);
        let signed: Vec<f64> = errors.collect();
        let absolute: Vec<f64> = signed.iter().map(|error| error.abs()).collect();
        Ok((!signed.is_empty()).then(|| Errors {
            packets: signed.len(),
            median: stats::quantile_of(&signed, 0.5),
            median_abs: stats::quantile_of(&absolute, 0.5),
        }))
    }
}
