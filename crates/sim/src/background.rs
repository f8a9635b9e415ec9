//! Background traffic that shares the links of a transfer.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::ops::RangeInclusive;
use core::time::Duration;

use braid_engine::{ApiError, Config, PathConfig};
use braid_links::{Rate, Settings};

use crate::host::{Host, HostConfig, tcp_options};
use crate::router::{Router, all_like};
use crate::traffic::{Role, Stream};
use crate::udp::{UdpFlow, UdpSink, UdpSource};
use crate::world::{NodeId, World};

/// The background traffic over each path, in the direction of the transfer. Generators send the traffic through a
/// router at one end of the path's link. Sinks behind the router at the other end receive it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Background {
    /// The roles of the TCP generators. Each has one connection.
    pub tcp: Vec<Role>,
    /// The rate of the UDP generator, bit/s.
    pub udp_rate: u64,
    /// The sizes of the UDP generator's IP packets, bytes.
    pub udp_sizes: RangeInclusive<u16>,
    /// The time for which the UDP generator sends. The roles of the TCP generators have their own times, because a
    /// connection's time starts when it opens.
    pub span: Duration,
}

/// The rate of each generator, bit/s: the rate of the UDP generator in the paper on MPTCP-MAPS. The papers on
/// PO-MPTCP and MPTCP-MAPS give TCP 80 % of the traffic. Four TCP generators have this share if they have the same
/// rate; their rate is a choice of this simulator. The rate counts payload for TCP and IP packets for UDP, so
/// headers make the real share of TCP slightly larger.
const GENERATOR_RATE: u64 = 448_000;

impl Background {
    /// Returns the background traffic of the papers on PO-MPTCP and MPTCP-MAPS: four TCP generators and one UDP
    /// generator with 448 kbit/s each, so that about 80 % of the bytes are TCP. UDP packets have 100 to 200 bytes,
    /// as in the paper on MPTCP-MAPS.
    pub fn published(span: Duration) -> Self {
        let capped = Role::Capped {
            rate: GENERATOR_RATE,
            span,
        };
        Background {
            tcp: vec![capped; 4],
            udp_rate: GENERATOR_RATE,
            udp_sizes: 100..=200,
            span,
        }
    }

    /// Returns the published background with TCP generators that send as fast as they can, like FTP.
    pub fn greedy(span: Duration) -> Self {
        Background {
            tcp: vec![Role::Greedy { span }; 4],
            ..Background::published(span)
        }
    }

    /// Starts the traffic over path `path` from the router `from` to the router `to`. `engine` holds the settings
    /// of the TCP hosts.
    ///
    /// The caller must have made the routers with [`End::router`], and must have connected their interfaces
    /// [`HOST`] and [`LINK`], and no others: this function connects the interfaces [`TCP`] and [`UDP`], which get
    /// the next numbers.
    pub(crate) fn start(
        &self,
        world: &mut World,
        path: usize,
        [from, to]: [(End, NodeId); 2],
        engine: &Config,
    ) -> Result<(), ApiError> {
        let mut add_tcp_host = |(end, router): (End, NodeId)| {
            // Generators use regular TCP (`tcp_options` below). So their traffic stays on this path, and their
            // hosts need only one.
            let config = HostConfig {
                engine: engine.clone(),
                ..HostConfig::new(vec![PathConfig::v4(end.host(path, TCP))])
            };
            let host = world.add(|rng| Host::new(config, rng));
            world.connect(host, router, access_link(), access_link());
            host
        };
        let [source, sink] = [add_tcp_host(from), add_tcp_host(to)];
        let addr = |(end, _): (End, NodeId), iface, port| {
            SocketAddr::new(IpAddr::V4(end.host(path, iface)), port)
        };
        let flow = UdpFlow {
            rate: self.udp_rate,
            sizes: self.udp_sizes.clone(),
            end: Some(world.now() + self.span),
            // Port 9 is "discard" (RFC 863). The zeros of the rate and the size are not used, because the fields
            // above replace them.
            ..UdpFlow::constant(addr(from, UDP, 9), addr(to, UDP, 9), 0, 0)
        };
        let udp_source = world.add(|rng| UdpSource::new(flow, rng));
        world.connect(udp_source, from.1, access_link(), access_link());
        let udp_sink = world.add(|_| UdpSink::new());
        world.connect(udp_sink, to.1, access_link(), access_link());
        // Each generator has a port of its own at the sink. The ports are from the dynamic range, which starts at
        // 49,152 (RFC 6335), and are otherwise arbitrary.
        for (port, role) in (50_000..).zip(&self.tcp) {
            let remote = addr(to, TCP, port);
            world.serve(sink, remote, Stream::new(Role::Sink))?;
            world.open(source, tcp_options(remote), Stream::new(role.clone()))?;
        }
        Ok(())
    }
}

/// An end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Client,
    Server,
}

// The interfaces of a router. A world numbers interfaces in the order in which they are connected.
/// The interface to the transfer's host.
const HOST: u32 = 0;
/// The interface to the router at the other end of the link.
const LINK: u32 = 1;
/// The interface to the host of the TCP generators or their sinks.
const TCP: u32 = 2;
/// The interface to the UDP generator or its sink.
const UDP: u32 = 3;

impl End {
    /// Returns the address of the background's host behind the interface [`TCP`] or [`UDP`] of the router at this
    /// end of a path. The addresses differ from those of the transfer's hosts, which begin with 10.0.
    fn host(self, path: usize, iface: u32) -> Ipv4Addr {
        // Neither number is cut: interfaces are at most 3, and a `PathId` is a `u8`.
        let end = if self == End::Client { 1 } else { 2 };
        Ipv4Addr::new(10, end, path as u8, iface as u8)
    }

    /// Makes the router at this end of a path. `addr` is the address of the transfer's host.
    pub(crate) fn router(self, path: usize, addr: Ipv4Addr) -> Router {
        let all = all_like(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let [tcp, udp] = [TCP, UDP].map(|iface| IpAddr::V4(self.host(path, iface)));
        // A router uses the route with the longest prefix, so the order does not matter.
        Router::new()
            .route(IpAddr::V4(addr), HOST)
            .route(all, LINK)
            .route(tcp, TCP)
            .route(udp, UDP)
    }
}

/// Returns one direction of the link between a router and a generator or sink: 100 Mbit/s and 25 ms, as in the
/// paper on MPTCP-MAPS. Generators and sinks both have such a link, so it adds 50 ms to each direction of the
/// background traffic's path, and nothing to the path of the transfer.
fn access_link() -> Settings {
    Settings {
        rate: Rate::bits_per_second(100_000_000),
        delay: Duration::from_millis(25),
        ..Settings::default()
    }
}
