//! Many random worlds: whatever links do, streams arrive whole and connections end.

use core::time::Duration;

use braid_engine::{CloseReason, Config, Event, PathId, Protocol};
use braid_links::{Loss, QueueLimit, Rate, Settings};
use braid_wire::Rng;

use crate::faults::set_up;
use crate::net::{Chaos, Net, config};

/// How long a world may take; the longest outage is far shorter.
const LIMIT: Duration = Duration::from_secs(600);

/// Prints its seed if the test fails.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the failing seed is {}", self.0);
        }
    }
}

/// Small numbers as likely as large ones.
fn size(rng: &mut Rng, digits: u64) -> u64 {
    let most = 1u64 << rng.below(digits);
    rng.below(most)
}

fn link(rng: &mut Rng) -> Settings {
    let rate = (1 + rng.below(5)).pow(3) * 500_000;
    let delay = Duration::from_micros(500 + rng.below(60_000));
    let bdp = rate / 8 * delay.as_millis() as u64 / 500;
    Settings {
        rate: Rate::bits_per_second(rate),
        delay,
        queue: QueueLimit::Bytes(bdp.max(10_000)),
        loss: match rng.below(3) {
            0 => Loss::None,
            _ => Loss::Uniform(rng.unit() * 0.08),
        },
        ..Settings::default()
    }
}

fn world(seed: u64) -> (Net, Rng) {
    let mut rng = Rng::for_component(seed, 99);
    let links: Vec<_> = (0..1 + rng.below(3)).map(|_| link(&mut rng)).collect();
    let config = Config {
        recv_buffer: 64 << (10 + rng.below(6)),
        send_buffer: 64 << (10 + rng.below(6)),
        // Outages are no reason to give up.
        connect_timeout: Duration::from_secs(60),
        max_transmit: [1500, 65_521][rng.below(2) as usize],
        ..config()
    };
    let mut net = Net::new(&links, config, seed);
    net.chaos = Chaos {
        duplicate: [0.0, 0.02][rng.below(2) as usize],
        detour: [0.0, 0.01, 0.2][rng.below(3) as usize],
        longest: Duration::from_micros(rng.below(30_000)),
    };
    (net, rng)
}

/// Links that die, are silent for a while and come back, with and without notice.
fn outages(net: &mut Net, rng: &mut Rng) {
    for _ in 0..rng.below(3) {
        let n = rng.below(net.up.len() as u64) as usize;
        let told = rng.chance(0.5);
        net.run(Duration::from_millis(rng.below(1500)), |_| false);
        set_up(net, n, false);
        if told {
            net.client
                .stack
                .set_path_up(net.now, PathId(n as u8), false);
        }
        net.run(Duration::from_millis(rng.below(6000)), |_| false);
        set_up(net, n, true);
        if told {
            net.client.stack.set_path_up(net.now, PathId(n as u8), true);
        }
    }
}

fn reasons(events: &[Event]) -> Vec<CloseReason> {
    let closed = events.iter().filter_map(|e| match e {
        Event::Closed { reason, .. } => Some(*reason),
        _ => None,
    });
    closed.collect()
}

fn run(seed: u64) -> usize {
    let shown = Seed(seed);
    let (mut net, mut rng) = world(seed);
    let protocol = match net.up.len() {
        1 if rng.chance(0.5) => Protocol::Tcp,
        _ => Protocol::Mptcp,
    };
    let (up, down) = (size(&mut rng, 20), size(&mut rng, 21));
    net.transfer(up, down, protocol);
    outages(&mut net, &mut rng);
    let ended = net.run(LIMIT, |net| {
        let closed = |stack: &braid_engine::Stack| stack.connections() == 0;
        closed(&net.client.stack) && closed(&net.server.stack)
    });
    assert!(ended, "hangs: {net:?}");
    if net.server.apps.is_empty() {
        // The link was dark until the server gave the handshake up: the client is told.
        assert_eq!(reasons(&net.client.events), [CloseReason::Reset], "{net:?}");
        drop(shown);
        return 1;
    }
    let mut late = 0;
    for (host, to, from) in [(&net.client, down, up), (&net.server, up, down)] {
        let reasons = reasons(&host.events);
        assert_eq!(reasons.len(), 1, "{net:?}");
        late += usize::from(reasons[0] != CloseReason::Finished);
        let moved = (host.apps[0].received, host.apps[0].sent);
        assert_eq!(moved, (to, from), "{net:?}");
        assert!(host.apps[0].eof);
        assert_eq!(host.stack.buffered(), 0, "payload left in buffers");
    }
    // The last acknowledgement may be lost for longer than the other side waits to repeat it.
    assert!(late < 2, "{net:?}");
    drop(shown);
    late
}

/// Nearly every world ends in order on both sides.
fn run_all(seeds: core::ops::Range<u64>) {
    let most = (seeds.end - seeds.start) as usize / 50;
    let late: usize = seeds.map(run).sum();
    assert!(late <= most, "{late} ends out of order");
}

#[test]
fn swarm_1() {
    run_all(0..70);
}

#[test]
fn swarm_2() {
    run_all(70..140);
}

#[test]
fn swarm_3() {
    run_all(140..210);
}
