//! Worlds with a tunnel. Hosts on both sides of the tunnel send UDP to each other, while its paths change and fail.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use braid_links::{Change, Schedule, Settings};
use braid_sim::packet_watch::PacketWatch;
use braid_sim::router::{Router, all_like};
use braid_sim::transfer::PathSettings;
use braid_sim::tunnel_node::TunnelEnds;
use braid_sim::udp::{Pauses, UdpFlow, UdpSink, UdpSource};
use braid_sim::world::START;
use braid_sim::{NodeId, World};
use braid_tunnel::{Config, Mode, Urgency};

use super::draw::{CHANGES_WITHIN_MS, Draw, MAX_OUTAGE_MS};
use super::figures::Figures;
use super::scenario::Scenario;

/// Time from the start within which flows begin and end. The last outage ends before the last third of this time.
const FLOWS_WITHIN_MS: u64 = 3 * (CHANGES_WITHIN_MS + MAX_OUTAGE_MS);
/// Time after the end of all flows in which every packet has arrived or is lost. It is far longer than the longest
/// queue and delay of a path.
const REST: Duration = Duration::from_secs(30);
/// Time between all other flows and the last call, in which queues become empty.
const SETTLE: Duration = Duration::from_secs(30);
/// Length of the last call.
const CALL: Duration = Duration::from_secs(2);
/// Number of packets of the last call, and the number that must arrive. Random losses take far less than half.
const CALL_PACKETS: (u64, u64) = (100, 50);
/// Port of the sinks.
const PORT: u16 = 9;

/// Everything that is drawn from one seed.
#[derive(Debug)]
pub struct TunnelScenario {
    /// The mode of both ends.
    mode: Mode,
    /// The urgency of all packets.
    urgency: Urgency,
    /// The paths, each with its later settings and their time from the start.
    paths: Vec<(PathSettings, Vec<(Duration, PathSettings)>)>,
    /// The flows of both sides. The last one is a call after all changes.
    flows: Vec<Flow>,
}

/// A UDP flow.
#[derive(Debug)]
struct Flow {
    /// The side that sends: 0 is the box's, 1 the server's.
    side: usize,
    /// Rate while the flow sends, bit/s.
    rate: u64,
    /// Sizes of its packets, bytes.
    sizes: RangeInclusive<u16>,
    pauses: Option<Pauses>,
    start: Duration,
    end: Duration,
}

impl TunnelScenario {
    /// Draws a scenario.
    pub fn draw(d: &mut Draw) -> Self {
        let paths = (0..=d.below(3)).map(|_| {
            let delay = Duration::from_micros(100) + d.up_to_ms(120);
            let mut settings = d.link(delay);
            let reorders = d.chance(0.5);
            (settings.up.jitter_reorders, settings.down.jitter_reorders) = (reorders, reorders);
            let changes = d.changes(&settings);
            (settings, changes)
        });
        let paths = paths.collect();
        let mut flows: Vec<Flow> = (0..=d.below(5)).map(|_| Flow::draw(d)).collect();
        flows.push(Flow::last_call(d));
        let modes = [
            Mode::Aggregate,
            Mode::Aggregate,
            Mode::Fastest,
            Mode::Redundant,
        ];
        TunnelScenario {
            mode: modes[d.below(4) as usize],
            urgency: Urgency::new(d.below(8) as u8).unwrap_or_default(),
            paths,
            flows,
        }
    }
}

impl Flow {
    fn draw(d: &mut Draw) -> Self {
        let least = 50 + d.below(1400) as u16;
        let most = least + d.below(u64::from(1501 - least)) as u16;
        let times = [d.up_to_ms(FLOWS_WITHIN_MS), d.up_to_ms(FLOWS_WITHIN_MS)];
        let has_pauses = d.chance(0.5);
        Flow {
            side: d.below(2) as usize,
            // 10 kbit/s to 10 Mbit/s.
            rate: 10_000 << d.below(11),
            sizes: least..=most,
            pauses: has_pauses.then(|| Pauses {
                on: Duration::from_millis(1) + d.up_to_ms(1000),
                off: Duration::from_millis(1) + d.up_to_ms(3000),
            }),
            start: times[0].min(times[1]),
            end: times[0].max(times[1]),
        }
    }

    /// Returns a call that begins when everything else has ended.
    fn last_call(d: &mut Draw) -> Self {
        let start = Duration::from_millis(FLOWS_WITHIN_MS) + SETTLE;
        Flow {
            side: d.below(2) as usize,
            rate: 80_000,
            sizes: 200..=200,
            pauses: None,
            start,
            end: start + CALL,
        }
    }
}

/// Returns the address of the host of flow `n` on a side.
fn addr(side: usize, n: usize) -> SocketAddr {
    SocketAddr::new(
        Ipv4Addr::new(10, 1 + side as u8, 0, 2 + n as u8).into(),
        PORT,
    )
}

impl Scenario for TunnelScenario {
    fn simulate(self: Box<Self>, seed: u64) -> Result<Figures, String> {
        let mut world = World::new(seed);
        let config = Config {
            mode: self.mode,
            ..Config::default()
        };
        let settings = self
            .paths
            .iter()
            .map(|(settings, _)| settings.clone())
            .collect();
        let tunnel = TunnelEnds::add(&mut world, &config, self.urgency, settings);
        for ((up, down), (_, changes)) in tunnel.paths.iter().zip(&self.paths) {
            world.schedule(*up, schedule(changes, |settings| &settings.up));
            world.schedule(*down, schedule(changes, |settings| &settings.down));
        }
        let sides = [tunnel.near, tunnel.far];
        let added = [0, 1].map(|side| self.add_side(&mut world, side));
        let routers = added.each_ref().map(|(router, _)| *router);
        // The links from each router into the tunnel, and back.
        let perfect = Settings::default;
        let [near, far] =
            [0, 1].map(|side| world.connect(routers[side], sides[side], perfect(), perfect()));
        let watches = [(near.0, far.1), (far.0, near.1)].map(|(first, last)| {
            let watch = Arc::new(Mutex::new(PacketWatch::new(first, last)));
            world.tap(first, Box::new(Arc::clone(&watch)));
            world.tap(last, Box::new(Arc::clone(&watch)));
            watch
        });
        world.advance(Duration::from_millis(FLOWS_WITHIN_MS) + SETTLE + CALL + REST);
        self.check_last_call(&world, &added)?;
        let mut figures = Figures::default();
        for watch in watches {
            let watch = watch.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(violation) = watch.report().violations.first() {
                return Err(violation.to_string());
            }
            figures.tunnelled += watch.report().delays.len() as u64;
        }
        figures.record(
            &world,
            tunnel.paths.iter().flat_map(|(up, down)| [*up, *down]),
        );
        Ok(figures)
    }
}

impl TunnelScenario {
    /// Adds the router and the hosts of a side. Returns the router, whose next interface leads to the tunnel, and the
    /// host of each flow.
    fn add_side(&self, world: &mut World, side: usize) -> (NodeId, Vec<NodeId>) {
        let hosts = self.flows.iter().enumerate().map(|(n, flow)| {
            let (src, dst) = (addr(side, n), addr(1 - side, n));
            if flow.side != side {
                return world.add(|_| UdpSink::new());
            }
            let udp = UdpFlow {
                sizes: flow.sizes.clone(),
                pauses: flow.pauses,
                start: START + flow.start,
                end: Some(START + flow.end),
                ..UdpFlow::constant(src, dst, flow.rate, 0)
            };
            world.add(|rng| UdpSource::new(udp, rng))
        });
        let hosts: Vec<NodeId> = hosts.collect();
        let mut router = Router::new();
        for n in 0..hosts.len() {
            router = router.route(addr(side, n).ip(), n as u32);
        }
        let default = all_like(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let router = world.add(|_| router.route(default, hosts.len() as u32));
        for host in &hosts {
            world.connect(router, *host, Settings::default(), Settings::default());
        }
        (router, hosts)
    }

    /// Checks that the last call has come through, so that the tunnel works again after all changes.
    fn check_last_call(
        &self,
        world: &World,
        sides: &[(NodeId, Vec<NodeId>); 2],
    ) -> Result<(), String> {
        let n = self.flows.len() - 1;
        let side = self.flows[n].side;
        let sink: &UdpSink = world.node(sides[1 - side].1[n]);
        let received = sink.report(addr(side, n)).received.packets;
        let (sent, least) = CALL_PACKETS;
        if received < least {
            return Err(format!(
                "after all changes, {received} of {sent} packets came through; {least} must"
            ));
        }
        Ok(())
    }
}

/// Returns the schedule of one direction of a path.
fn schedule(
    changes: &[(Duration, PathSettings)],
    direction: fn(&PathSettings) -> &Settings,
) -> Schedule {
    Schedule::new(changes.iter().map(|(at, settings)| Change {
        at: *at,
        settings: direction(settings).clone(),
    }))
}
