//! The catalogue of faults: the changes to the network and their times.

use std::time::Duration;

use braid_testbed::LinkChange;
use braid_testbed::emulator::Direction;
use braid_testbed::fixture::Fixture;

use crate::backend::{Error, run_error};

/// Most delay of a step of a fault; a later step would make another fault.
const MAX_STEP_DELAY: Duration = Duration::from_millis(500);
/// The links of the box. Faults of a single link are faults of the first.
pub const LINKS: [&str; 2] = ["link1", "link2"];
/// Rates and one-way delays of the links.
pub const PATHS: [(&str, &str); 2] = [("20mbit", "15ms"), ("10mbit", "35ms")];

/// A fault: changes to the network, and the changes that undo them.
#[derive(Debug)]
pub struct Fault {
    /// Name of the fault in tables.
    pub name: &'static str,
    /// The changes, each with its time from the beginning; the last step ends the fault.
    steps: Vec<(Duration, Vec<Act>)>,
    /// True if no packet passes during the fault.
    pub total: bool,
}

/// A change to the network.
#[derive(Debug, Clone, Copy)]
enum Act {
    /// Changes a link in both directions or in one.
    Link(&'static str, Option<Direction>, &'static str),
    /// Runs a command of `ip` on a host. `ADDRESS` stands for the box's address on the first link,
    /// `OTHER` for a free address of the same network, `GATEWAY` for the other end.
    Ip(&'static str, &'static str),
    /// Loads a script of `nft` on a host.
    Nft(&'static str, &'static str),
    /// Restores the addresses and routes of the box that were lost with an interface, as a network
    /// manager would.
    Restore,
}

use Act::{Ip, Link, Nft, Restore};

const DOWN: Act = Ip("box", "link set link1 down");
const UP: Act = Ip("box", "link set link1 up");
const SMALL: [Act; 2] = [
    Ip("box", "link set link1 mtu 1300"),
    Ip("internet", "link set link1 mtu 1300"),
];
const LARGE: [Act; 2] = [
    Ip("box", "link set link1 mtu 1500"),
    Ip("internet", "link set link1 mtu 1500"),
];
/// Drops the messages "packet too large", so that senders cannot learn the path's MTU (a PMTU black
/// hole).
const SILENT: &str = "table inet fault {\n\
    chain told {\ntype filter hook output priority filter;\n\
    icmp type destination-unreachable icmp code frag-needed drop\n\
    icmpv6 type packet-too-big drop\n}\n}\n";
/// Changes the source port of the box's connections, as a NAT does that lost its state. An exclusive or
/// with 1 is its own inverse, so answers find the old port.
const REBOUND: &str = "table inet fault {\n\
    chain out {\ntype filter hook prerouting priority raw;\n\
    iifname link1 tcp sport set tcp sport ^ 1\n}\n\
    chain back {\ntype filter hook postrouting priority filter;\n\
    oifname link1 tcp dport set tcp dport ^ 1\n}\n}\n";
const CLEAR: &str = "delete table inet fault\n";
const ROUTE: Act = Ip(
    "box",
    "route replace default via GATEWAY dev link1 metric 100",
);

/// Returns all faults.
pub fn all() -> Vec<Fault> {
    let flaps = [(0, DOWN), (2, UP), (4, DOWN), (6, UP), (8, DOWN), (10, UP)];
    // An interface that goes down loses its addresses and routes, so each return restores them.
    let flap = |(at, act)| match at % 4 {
        0 => (at, vec![act]),
        _ => (at, vec![act, Restore]),
    };
    let both = |change| LINKS.map(|link| Link(link, None, change)).to_vec();
    let told = |act| [Nft("box", act), Nft("internet", act)];
    vec![
        Fault::of_steps("interface down, up every 2 s", flaps.map(flap)),
        Fault::of_link("dark", None, ["down", "up"]),
        Fault::of_link(
            "dark from the box",
            Some(Direction::Forward),
            ["down", "up"],
        ),
        Fault::of_link("dark to the box", Some(Direction::Reverse), ["down", "up"]),
        Fault {
            total: true,
            ..Fault::of_steps("both dark", [(0, both("down")), (20, both("up"))])
        },
        // The queue keeps its bytes, as a device's queue does when the link slows down.
        Fault::of_link(
            "100 kb/s",
            None,
            ["rate=100kbit queue=75kB", "rate=20mbit queue=1BDP"],
        ),
        Fault::of_link("30 % loss", None, ["loss=30%", "loss=0%"]),
        Fault::new("MTU 1,300, told", [SMALL.to_vec(), LARGE.to_vec()]),
        Fault::new(
            "MTU 1,300, not told",
            [
                [told(SILENT), SMALL].concat(),
                [told(CLEAR), LARGE].concat(),
            ],
        ),
        Fault::new(
            "other ports by NAT",
            [REBOUND, CLEAR].map(|s| vec![Nft("internet", s)]),
        ),
        Fault::new(
            "another address by DHCP",
            [
                vec![
                    Ip("box", "address del ADDRESS dev link1"),
                    Ip("box", "address add OTHER dev link1"),
                    ROUTE,
                ],
                vec![Ip("box", "address del OTHER dev link1"), Restore],
            ],
        ),
        Fault::of_link("5 % reordered", None, ["reorder=5%/10ms", "reorder=off"]),
        Fault::of_link("1 % corrupted", None, ["corrupt=1%", "corrupt=0%"]),
        Fault::of_link("1 % duplicated", None, ["duplicate=1%", "duplicate=0%"]),
    ]
}

impl Fault {
    fn of_steps(name: &'static str, steps: impl IntoIterator<Item = (u64, Vec<Act>)>) -> Fault {
        let step = |(at, acts)| (Duration::from_secs(at), acts);
        Fault {
            name,
            steps: steps.into_iter().map(step).collect(),
            total: false,
        }
    }

    /// Creates a fault of ten seconds from the changes that begin and end it.
    fn new(name: &'static str, [begin, end]: [Vec<Act>; 2]) -> Fault {
        Fault::of_steps(name, [(0, begin), (10, end)])
    }

    /// Creates a fault of ten seconds from changes of the first link.
    fn of_link(
        name: &'static str,
        direction: Option<Direction>,
        changes: [&'static str; 2],
    ) -> Fault {
        Fault::new(
            name,
            changes.map(|change| vec![Link("link1", direction, change)]),
        )
    }

    /// Returns the duration of the fault.
    pub fn duration(&self) -> Duration {
        self.steps.last().map_or(Duration::ZERO, |(at, _)| *at)
    }

    /// Makes the changes of the fault at their times, including the last, which ends it.
    ///
    /// # Errors
    /// The system refuses a change, the wait is interrupted, or the machine is too busy for a step.
    pub fn apply(&self, fixture: &mut Fixture) -> Result<(), Error> {
        let begun = std::time::Instant::now();
        for (at, acts) in &self.steps {
            let left = at.saturating_sub(begun.elapsed());
            fixture.sleep(left).map_err(run_error)?;
            let late = begun.elapsed().saturating_sub(*at);
            if late > MAX_STEP_DELAY {
                return Err(Error::Run(format!(
                    "a step of `{}` came {late:.1?} late: the machine is too busy",
                    self.name
                )));
            }
            for act in acts {
                act.apply(fixture).map_err(run_error)?;
            }
        }
        Ok(())
    }
}

impl Act {
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
