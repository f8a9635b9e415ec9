//! A host that leaves the WiFi, comes back and leaves again: Zeng et al., "Multi-attribute Aware Path
//! Selection Approach for Efficient MPTCP-based Data Delivery" (JISIS 7(1), 2017), section 4.

use core::time::Duration;

use braid_links::{Change, Loss, QueueLimit, Rate, Schedule, Settings};

/// What a link is like: Mbit/s, round trip in ms, share of packets lost.
type Point = (f64, f64, f64);

/// How the WiFi is at these seconds; linear between them.
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
/// Where the WiFi is as good as the cellular network: left behind, come back to, left again.
pub const CROSSINGS: [Duration; 3] = [
    Duration::from_secs(20),
    Duration::from_secs(60),
    Duration::from_secs(75),
];
/// How long it takes.
pub const SPAN: Duration = Duration::from_secs(120);
/// Distance of the changes.
const STEP: Duration = Duration::from_millis(100);

fn settings((mbit, rtt_ms, loss): Point) -> Settings {
    Settings {
        rate: Rate::bits_per_second((mbit * 1e6) as u64),
        delay: Duration::from_secs_f64(rtt_ms / 2000.0),
        queue: QueueLimit::Packets(50),
        loss: Loss::Uniform(loss),
        ..Settings::default()
    }
}

/// One direction of the WiFi where the walk begins.
pub fn wifi() -> Settings {
    settings(WIFI[0].1)
}

/// One direction of the cellular network, which stays as it is.
pub fn cellular() -> Settings {
    settings((10.0, 40.0, 0.02))
}

/// What becomes of either direction of the WiFi.
pub fn away_and_back() -> Schedule {
    let points = WIFI.map(|(at, point)| Change {
        at: Duration::from_secs(at),
        settings: settings(point),
    });
    Schedule::linear(&points, STEP)
}
