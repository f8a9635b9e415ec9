//! Tests of the claim on the shortcut, and of the links that may have it.

use std::io::ErrorKind;
use std::net::SocketAddr;

use braid_linux::net::links::Links;
use braid_linux::net::shortcut::Shortcut;
use braid_linux::net::{InstanceNames, cleanup};
use braid_linux::tun::Tun;
use braid_proxy::config::Quic;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::interception::{Interception, Net, tun_config, wan};
use crate::support::TIMEOUT;

fn servers() -> [SocketAddr; 2] {
    ["203.0.113.9:1080", "[2001:db8:9::9]:1080"].map(|server| server.parse().unwrap())
}

/// Only one instance of a namespace has the shortcut, and others remove it only after its holder has died.
#[test]
#[ignore = "network"]
fn the_shortcut_is_of_one_instance_as_long_as_it_runs() {
    let net = Net::new();
    let tables = || net.world.sh("box", "nft list tables netdev");
    let claim = |tun: &str| {
        let claim = || Shortcut::claim(tun, &servers(), Vec::new());
        net.world.inside("box", claim)
    };
    let interception = Interception::start(&net, Quic::Forward);
    let other = InstanceNames::of_tun("braid1");
    let clean_up = || {
        let clean_up = || cleanup::cleanup(&other, &[]);
        net.world.inside("box", clean_up).unwrap();
    };
    let error = claim("braid1").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    clean_up();
    assert_eq!(tables(), "table netdev braid-shortcut\n");
    interception.die();
    assert_eq!(tables(), "table netdev braid-shortcut\n");
    clean_up();
    assert_eq!(tables(), "");
    claim("braid1").unwrap();
}

/// A box that has the shortcut, without an engine.
struct Gateway {
    net: Net,
    _tun: Tun,
    links: Links,
}

impl Gateway {
    /// Returns a box with `links` links of one interface.
    fn new(links: u8) -> Gateway {
        let net = Net::new();
        let config = tun_config();
        let (tun, links) = net.world.inside("box", || {
            let tun = Tun::create(&config.name).unwrap();
            let specs = (0..links).map(|n| wan(&config, n)).collect();
            let mut all = Links::new(&InstanceNames::of_tun(&config.name), specs).unwrap();
            let mtus = vec![1_500; usize::from(links)];
            all.install_shortcut(&config.name, &servers(), mtus)
                .unwrap();
            (tun, all)
        });
        Gateway {
            net,
            _tun: tun,
            links,
        }
    }

    /// Makes a change of which the kernel notifies, and returns the links that leave with another address.
    fn moved_by(&mut self, change: &str) -> Vec<usize> {
        while self.links.has_news() {}
        self.net.world.sh("box", change);
        let mut news = [PollFd::from_borrowed_fd(self.links.fd(), PollFlags::IN)];
        let timeout = Timespec::try_from(TIMEOUT).unwrap();
        let ready = poll(&mut news, Some(&timeout)).unwrap();
        assert_eq!(ready, 1, "{change}: nothing was heard");
        let links = &mut self.links;
        let changed = self
            .net
            .world
            .inside("box", || links.refresh(true))
            .unwrap();
        let moved = changed.into_iter().filter(|(_, moved)| *moved);
        moved.map(|(link, _)| link).collect()
    }

    /// Counts the rules that contain `with`.
    fn rules(&self, with: &str) -> usize {
        let rules = self.net.world.sh("box", "nft list ruleset");
        rules.lines().filter(|line| line.contains(with)).count()
    }
}

/// A shaper of incoming packets would deliver them behind the rules, where a firewall does not know them.
#[test]
#[ignore = "network"]
fn a_link_that_is_shaped_on_receipt_has_no_shortcut() {
    let mut it = Gateway::new(1);
    let out = "fwd ip to 192.0.2.2 device \"wan\"";
    assert_eq!(it.rules(out), 1);
    for (discipline, change) in [
        ("ingress", "add dev wan ingress"),
        ("clsact", "replace dev wan clsact"),
    ] {
        assert_eq!(it.moved_by(&format!("tc qdisc {change}")), [0]);
        assert_eq!(it.rules("wan"), 0, "with {discipline}");
        assert_eq!(
            it.moved_by(&format!("tc qdisc del dev wan {discipline}")),
            [0]
        );
        assert_eq!(it.rules(out), 1);
    }
}

#[test]
#[ignore = "network"]
fn links_of_one_interface_have_no_shortcut() {
    let it = Gateway::new(2);
    assert_eq!(it.rules("braid-shortcut"), 2);
    assert_eq!(it.rules("wan"), 0);
}

/// Sockets bound to the old address no longer hear their peers.
#[test]
#[ignore = "network"]
fn another_address_is_told_of_while_the_old_one_is_still_there() {
    let mut it = Gateway::new(1);
    let none: [usize; 0] = [];
    assert_eq!(it.moved_by("ip addr add 192.0.2.7/24 dev wan"), none);
    let deprecate = "ip addr change 192.0.2.1/24 dev wan preferred_lft 0";
    assert_eq!(it.moved_by(deprecate), [0]);
    assert_eq!(it.rules("saddr set 192.0.2.7 fwd"), 2);
    assert_eq!(it.rules("saddr set 192.0.2.1 fwd"), 0);
}
