//! The catalogue of faults: the changes that each makes to the network, and their times.

use std::time::Duration;

use braid_testbed::LinkChange;
use braid_testbed::emulator::Direction;
use braid_testbed::fixture::Fixture;

use crate::backend::{Error, run_error};

/// Maximum delay of a step of a fault. A longer delay would make another fault, for example an interface
/// that is down for 3 s instead of 2. 500 ms is a guess.
const MAX_STEP_DELAY: Duration = Duration::from_millis(500);
/// The links of the box. A fault of a single link changes the first.
pub const LINKS: [&str; 2] = ["link1", "link2"];
/// Rates and one-way delays of the links.
pub const PATHS: [(&str, &str); 2] = [("20mbit", "15ms"), ("10mbit", "35ms")];

/// A fault: changes to the network, and the changes that undo them.
#[derive(Debug)]
pub struct Fault {
    /// Name of the fault in tables.
    pub name: &'static str,
    /// The changes of each step, with its time from the start of the fault, s. The last step ends the fault.
    steps: Vec<(u64, Vec<NetworkChange>)>,
    /// True if no packet passes over either link during the fault.
    pub total: bool,
}

/// A change to the network.
#[derive(Debug, Clone, Copy)]
enum NetworkChange {
    /// Changes a link in both directions or in one.
    Link(&'static str, Option<Direction>, &'static str),
    /// Runs a command of `ip` on a host. In the command, `ADDRESS` stands for the box's address on the
    /// first link, `OTHER` for a free address of the same network, and `GATEWAY` for the link's other end.
    Ip(&'static str, &'static str),
    /// Loads a script for `nft` on a host.
    Nft(&'static str, &'static str),
    /// Restores the addresses and routes of the box that were lost with an interface, as a network
    /// manager would.
    Restore,
}

use NetworkChange::{Ip, Link, Nft, Restore};

/// The fault during which no packet passes over either link.
const BOTH_DARK: &str = "both dark";
const DOWN: NetworkChange = Ip("box", "link set link1 down");
const UP: NetworkChange = Ip("box", "link set link1 up");
/// A smaller MTU of the first link. 1300 is a guess. Tunnels leave more, and IPv6 needs only 1280 (RFC 8200).
const SMALL_MTU: &str = "link set link1 mtu 1300";
/// The MTU of Ethernet, which the link has otherwise.
const USUAL_MTU: &str = "link set link1 mtu 1500";
/// Drops the ICMP messages that report a packet as too big, so that senders cannot learn the path's MTU (a
/// PMTU black hole).
const DROP_TOO_BIG: &str = "table inet fault {\n\
    chain told {\ntype filter hook output priority filter;\n\
    icmp type destination-unreachable icmp code frag-needed drop\n\
    icmpv6 type packet-too-big drop\n}\n}\n";
/// Changes the source port of the box's connections, as a NAT does after it lost its state. The exclusive
/// or with 1 is its own inverse, so the same rule maps the destination port of the answers back.
const OTHER_PORTS: &str = "table inet fault {\n\
    chain out {\ntype filter hook prerouting priority raw;\n\
    iifname link1 tcp sport set tcp sport ^ 1\n}\n\
    chain back {\ntype filter hook postrouting priority filter;\n\
    oifname link1 tcp dport set tcp dport ^ 1\n}\n}\n";
/// Removes the rules of a fault.
const REMOVE_RULES: &str = "delete table inet fault\n";
/// Restores the default route, which the kernel removes together with an address.
const ROUTE: NetworkChange = Ip(
    "box",
    "route replace default via GATEWAY dev link1 metric 100",
);

/// Returns all faults.
pub fn all() -> Vec<Fault> {
    let down = |at| (at, vec![DOWN]);
    // An interface that goes down loses its addresses and routes, so each return restores them.
    let up = |at| (at, vec![UP, Restore]);
    let links = |change| LINKS.map(|link| Link(link, None, change)).to_vec();
    let link = |change| vec![Link("link1", None, change)];
    let forward = |change| vec![Link("link1", Some(Direction::Forward), change)];
    let reverse = |change| vec![Link("link1", Some(Direction::Reverse), change)];
    let mtu = |command| vec![Ip("box", command), Ip("internet", command)];
    // Both ends of the link report packets that are too big, so both get the rules.
    let rules = |script| vec![Nft("box", script), Nft("internet", script)];
    let nat = |script| vec![Nft("internet", script)];
    // The queue keeps its size in bytes, which is 1 BDP of the full rate: a device does not shrink its queue when
    // the link slows down.
    let slow = ["rate=100kbit queue=75kB", "rate=20mbit queue=1BDP"];
    let other_address = vec![
        Ip("box", "address del ADDRESS dev link1"),
        Ip("box", "address add OTHER dev link1"),
        ROUTE,
    ];
    let usual_address = vec![Ip("box", "address del OTHER dev link1"), Restore];
    let black_hole = [
        [rules(DROP_TOO_BIG), mtu(SMALL_MTU)],
        [rules(REMOVE_RULES), mtu(USUAL_MTU)],
    ];
    let flaps = vec![down(0), up(2), down(4), up(6), down(8), up(10)];
    // Two changes begin and end a fault of 10 s.
    let ten = |[begin, end]: [Vec<_>; 2]| vec![(0, begin), (10, end)];
    let faults = [
        ("interface down, up every 2 s", flaps),
        ("dark", ten(["down", "up"].map(link))),
        ("dark from the box", ten(["down", "up"].map(forward))),
        ("dark to the box", ten(["down", "up"].map(reverse))),
        (BOTH_DARK, vec![(0, links("down")), (20, links("up"))]),
        ("100 kb/s", ten(slow.map(link))),
        ("30 % loss", ten(["loss=30%", "loss=0%"].map(link))),
        ("MTU 1,300, told", ten([SMALL_MTU, USUAL_MTU].map(mtu))),
        (
            "MTU 1,300, not told",
            ten(black_hole.map(|changes| changes.concat())),
        ),
        (
            "other ports by NAT",
            ten([OTHER_PORTS, REMOVE_RULES].map(nat)),
        ),
        (
            "another address by DHCP",
            ten([other_address, usual_address]),
        ),
        (
            "5 % reordered",
            ten(["reorder=5%/10ms", "reorder=off"].map(link)),
        ),
        ("1 % corrupted", ten(["corrupt=1%", "corrupt=0%"].map(link))),
        (
            "1 % duplicated",
            ten(["duplicate=1%", "duplicate=0%"].map(link)),
        ),
    ];
    let fault = |(name, steps)| Fault {
        name,
        steps,
        total: name == BOTH_DARK,
    };
    faults.map(fault).into()
}

impl Fault {
    /// Returns the duration of the fault.
    pub fn duration(&self) -> Duration {
        Duration::from_secs(self.steps.last().map_or(0, |(at, _)| *at))
    }

    /// Makes the changes of the fault at their times. Returns after the last step, which ends the fault.
    ///
    /// # Errors
    /// A change fails, the wait is interrupted, or the machine is too busy to make a step in time.
    pub fn apply(&self, fixture: &mut Fixture) -> Result<(), Error> {
        let begun = std::time::Instant::now();
        for (at, changes) in &self.steps {
            let at = Duration::from_secs(*at);
            let left = at.saturating_sub(begun.elapsed());
            fixture.sleep(left).map_err(run_error)?;
            let late = begun.elapsed().saturating_sub(at);
            if late > MAX_STEP_DELAY {
                return Err(Error::Run(format!(
                    "a step of `{}` was {late:.1?} late: the machine is too busy; run it on an idle machine",
                    self.name
                )));
            }
            for change in changes {
                change.apply(fixture).map_err(run_error)?;
            }
        }
        Ok(())
    }
}

impl NetworkChange {
    /// Makes the change.
    fn apply(self, fixture: &mut Fixture) -> Result<(), braid_testbed::Error> {
        match self {
            Link(link, direction, change) => {
                let change = LinkChange::parse(change.split(' '))?;
                fixture.testbed.set(link, direction, &change)
            }
            Ip(host, command) => {
                let link = fixture.interface("box", |i| i.name == LINKS[0])?;
                let bits = link.subnet4.prefix_len();
                let address = |address| format!("{address}/{bits}");
                let gateway = link.gateway4.unwrap_or(link.address4);
                // The last address of the network; the testbed assigns addresses from the first on.
                let other = link.subnet4.hosts().last().unwrap_or(link.address4);
                let command = command
                    .replace("ADDRESS", &address(link.address4))
                    .replace("OTHER", &address(other))
                    .replace("GATEWAY", &gateway.to_string());
                fixture.testbed.ip(host, &format!("{command}\n"))
            }
            Nft(host, script) => fixture.nft(host, script),
            Restore => fixture.testbed.reconfigure("box"),
        }
    }
}
