//! The scenario of a host that walks out of the reach of a WiFi, returns and leaves again (Zeng et al.,
//! "Multi-attribute Aware Path Selection Approach for Efficient MPTCP-based Data Delivery", JISIS 7(1), 2017,
//! section 4).

use core::time::Duration;

use braid_links::{Change, Loss, QueueLimit, Rate, Schedule, Settings};

/// The quality of a link: Mbit/s, round-trip time in ms, share of packets lost.
type Quality = (f64, f64, f64);

/// The quality of the cellular network. The paper gives its rate and a propagation delay of 10 ms.
const CELLULAR: Quality = (10.0, 20.0, 0.02);

/// The quality of the WiFi at some times, in seconds from the start. Between these times it changes linearly. At
/// the times of [`CROSSINGS`] it equals the quality of the cellular network.
const WIFI: [(u64, Quality); 8] = [
    (0, (11.0, 20.0, 0.01)),
    (10, (11.0, 20.0, 0.01)),
    (20, CELLULAR),
    (30, (0.5, 200.0, 0.2)),
    (60, CELLULAR),
    (70, (11.0, 20.0, 0.01)),
    (75, CELLULAR),
    (80, (0.5, 200.0, 0.2)),
];
/// The times at which WiFi and cellular network are equally good: when the host leaves, when it returns, and when
/// it leaves again.
pub const CROSSINGS: [Duration; 3] = [
    Duration::from_secs(20),
    Duration::from_secs(60),
    Duration::from_secs(75),
];
/// The length of the walk.
pub const SPAN: Duration = Duration::from_secs(120);
/// The interval of the steps that approximate a linear change. 100 ms is a guess: much shorter than the walk.
const STEP: Duration = Duration::from_millis(100);

fn settings((mbit, rtt_ms, loss): Quality) -> Settings {
    Settings {
        rate: Rate::bits_per_second((mbit * 1e6) as u64),
        // Each direction has half of the round-trip time.
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
    settings(CELLULAR)
}

/// Returns the changes of either direction of the WiFi.
pub fn wifi_schedule() -> Schedule {
    let changes = WIFI.map(|(at, quality)| Change {
        at: Duration::from_secs(at),
        settings: settings(quality),
    });
    Schedule::linear(&changes, STEP)
}
