//! The walk of a host that leaves the WiFi, comes back and leaves again (Zeng et al., "Multi-attribute
//! Aware Path Selection Approach for Efficient MPTCP-based Data Delivery", JISIS 7(1), 2017, section 4).

use core::time::Duration;

use braid_links::{Change, Loss, QueueLimit, Rate, Schedule, Settings};

/// The quality of a link: rate in Mbit/s, round-trip time in ms, share of packets lost (0 to 1).
type Point = (f64, f64, f64);

/// The quality of the WiFi at these seconds. It changes linearly between them. The paper shows the times and the
/// shape of the walk; the exact values are choices of this simulator.
const WIFI: [(u64, Point); 8] = [
    (0, (11.0, 20.0, 0.01)),
    (10, (11.0, 20.0, 0.01)),
    (20, (10.0, 40.0, 0.02)),
    (30, (0.5, 200.0, 0.2)),
    (60, (10.0, 40.0, 0.02)),
    (70, (11.0, 20.0, 0.01)),
    (75, (10.0, 40.0, 0.02)),
    (80, (0.5, 200.0, 0.2)),
];
/// The times at which WiFi and cellular network are equally good: when the host leaves the WiFi, comes back, and
/// leaves again.
pub const CROSSINGS: [Duration; 3] = [
    Duration::from_secs(20),
    Duration::from_secs(60),
    Duration::from_secs(75),
];
/// The length of the walk.
pub const SPAN: Duration = Duration::from_secs(120);
/// The time between two steps of the changing link. A guess: short against the round-trip times of seconds over
/// which strategies react.
const STEP: Duration = Duration::from_millis(100);

fn settings((mbit, rtt_ms, loss): Point) -> Settings {
    Settings {
        rate: Rate::bits_per_second((mbit * 1e6) as u64),
        // Half of the round-trip time in each direction.
        delay: Duration::from_secs_f64(rtt_ms / 2000.0),
        queue: QueueLimit::Packets(50),
        loss: Loss::Uniform(loss),
        ..Settings::default()
    }
}

/// Returns one direction of the WiFi at the start of the walk.
pub fn wifi() -> Settings {
    settings(WIFI[0].1)
}

/// Returns one direction of the cellular network, which does not change.
pub fn cellular() -> Settings {
    settings((10.0, 40.0, 0.02))
}

/// Returns the changes of either direction of the WiFi.
pub fn wifi_schedule() -> Schedule {
    let points = WIFI.map(|(at, point)| Change {
        at: Duration::from_secs(at),
        settings: settings(point),
    });
    Schedule::linear(&points, STEP)
}
