//! The choice of the path on which a connection opens.

use braid_engine::PathRecord;

use super::input::{PRIOR_LOSS, PRIOR_PACKETS};

/// The approximate time by which a retransmission timeout exceeds a round trip, seconds: the minimum of the
/// engine's timeout margin, as in Linux.
const TIMEOUT_MARGIN_SECONDS: f64 = 0.2;

/// The rate of a path whose record has none, bytes/s. If rates from 0.5 Mbit/s to 1 Gbit/s are equally likely on a
/// logarithmic scale, data takes as long on average as at this rate. The range is a guess.
const UNKNOWN_RATE: f64 = 475_000.0;

/// Returns the expected time from the SYN until the first `bytes` of data have arrived on a path, seconds.
///
/// The cost is two round trips (handshake; request and first data), the time in which the data passes the path, and
/// the expected time to repeat lost packets. This last time is, for each of four packets, the probability of its
/// loss times the time to repeat it.
pub(super) fn opening_cost(record: &PathRecord, bytes: f64) -> f64 {
    /// Approximate bytes of a packet: records count bytes, the prior counts packets.
    const PACKET_BYTES: f64 = 1_500.0;
    let rtt = record.base_rtt.as_secs_f64();
    let prior = PRIOR_PACKETS * PACKET_BYTES;
    let loss = (record.bytes_lost as f64 + PRIOR_LOSS * prior) / (record.bytes_sent as f64 + prior);
    // The direction of the flow is not known yet.
    let transfer = match record.delivery_rate.max(record.arrival_rate) {
        0 => bytes / UNKNOWN_RATE,
        rate => bytes / rate as f64,
    };
    2.0 * rtt + transfer + 4.0 * loss * (rtt + TIMEOUT_MARGIN_SECONDS)
}
