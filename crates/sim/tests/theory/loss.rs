//! NewReno under uniform loss, against the formulas of Mathis et al. ("The Macroscopic Behavior of
//! the TCP Congestion Avoidance Algorithm", CCR 27(3), 1997) and of Padhye, Firoiu, Towsley and
//! Kurose ("Modeling TCP Throughput", SIGCOMM 1998: "PFTK").
//!
//! Both formulas count the segments per acknowledgement, since acknowledgements open the window in the
//! senders that they describe: b = 2 with delayed acknowledgements. The engine counts the bytes
//! acknowledged (RFC 3465; RFC 5681 section 3.1 recommends it). So its window grows by one segment a
//! round trip although every other segment is acknowledged: b = 1, and Mathis' constant is sqrt(3/2).
//!
//! Delayed acknowledgements do cost the wait of every odd segment for its partner: with a window of ten,
//! 4 % of the rate.

use core::time::Duration;

use braid_engine::cc::NEWRENO;
use braid_engine::{Config, Protocol};
use braid_links::{Loss, Settings};

use crate::statistics::{Mean, mean};
use crate::{Download, payload};

const RTT: Duration = Duration::from_millis(50);

/// Returns the segments a round trip at loss `p` by Mathis' formula.
fn mathis(p: f64) -> f64 {
    (3.0 / 2.0 / p).sqrt()
}

/// Returns the segments a round trip at loss `p` by equation (30) of PFTK, with b = 1 and no limit to the
/// window. The timeout is the one of a steady round trip.
fn pftk(p: f64) -> f64 {
    let rtt = RTT.as_secs_f64();
    let timeout = rtt + Config::default().min_rto.as_secs_f64();
    let window = 1.0 + (8.0 * (1.0 - p) / (3.0 * p) + 1.0).sqrt();
    let q = 1.0 - p;
    let by_timeout = (1.0 - q.powi(3)) * (1.0 + q.powi(3) * (1.0 - q.powf(window - 3.0)))
        / (1.0 - q.powf(window));
    let by_timeout = by_timeout.min(1.0);
    let doublings: f64 = 1.0 + (0..6).map(|k| 2f64.powi(k) * p.powi(k + 1)).sum::<f64>();
    let sent = (1.0 - p) / p + window + by_timeout / (1.0 - p);
    let took = rtt * (window / 2.0 + 1.0) + by_timeout * doublings * timeout / (1.0 - p);
    sent / took * rtt
}

/// Returns the segments a round trip that reach the reader, over `seeds` runs of `seconds` after 20 s in
/// which the window settles. Only loss limits the rate. Every other run is over MPTCP.
fn measured(p: f64, seeds: u64, seconds: u64) -> Mean {
    let run = |seed| {
        let protocol = match seed % 2 {
            0 => Protocol::Mptcp,
            _ => Protocol::Tcp,
        };
        let download = Download {
            seed,
            congestion: NEWRENO,
            protocol,
            down: Settings {
                delay: RTT / 2,
                loss: Loss::Uniform(p),
                ..Settings::default()
            },
            warm_up: Duration::from_secs(20),
            span: Duration::from_secs(seconds),
        };
        download.steady().goodput / payload(protocol) * RTT.as_secs_f64()
    };
    mean(&(1..=seeds).map(run).collect::<Vec<_>>())
}

/// Asserts that the mean lies within the bounds by more than its uncertainty: two standard errors, which
/// must themselves be small.
fn assert_within(p: f64, measured: Mean, low: f64, high: f64) {
    let Mean { value, error } = measured;
    let what =
        format!("p = {p}: {value:.2} +- {error:.2} segments, between {low:.2} and {high:.2}");
    assert!(error < 0.02 * value, "too few runs: {what}");
    assert!(
        value - 2.0 * error >= low && value + 2.0 * error <= high,
        "{what}"
    );
}

#[test]
fn newreno_is_within_15_percent_of_mathis_up_to_1_percent_loss() {
    for (p, seeds, seconds) in [(0.001, 4, 200), (0.003, 6, 200), (0.01, 12, 400)] {
        let expected = mathis(p);
        let measured = measured(p, seeds, seconds);
        assert_within(p, measured, 0.85 * expected, 1.15 * expected);
    }
}

#[test]
fn newreno_is_between_pftk_and_mathis_up_to_3_percent_loss() {
    for p in [0.02, 0.03] {
        assert_within(p, measured(p, 6, 300), 0.85 * pftk(p), 1.15 * mathis(p));
    }
}

/// The formulas give the figures worked out by hand.
#[test]
fn formulas() {
    assert!((mathis(0.01) - 12.247).abs() < 0.001);
    // W = 1 + sqrt(265) = 17.279, Q = 0.2105, G = 1.0102: 116.49 segments in 0.53566 s.
    assert!((pftk(0.01) - 10.874).abs() < 0.002, "{}", pftk(0.01));
}
