use core::net::Ipv4Addr;

use braid_engine::Urgency;
use braid_tunnel::{MAX_PATHS, Mode, SessionId};

use super::*;

const NOW: Instant = Instant::from_millis(1_000);

fn grant(epoch: u64) -> Grant {
    Grant {
        session: SessionId([3; 8]),
        epoch,
        v4: Some(Ipv4Addr::new(10, 215, 128, 9)),
        v6: Some("fdb7:a1d0:80::9".parse().unwrap()),
        port: 1080,
        mtu: 1500,
        suite: Suite::Aes256Gcm,
    }
}

fn granted(grant: Grant) -> Attempt {
    Attempt::Granted {
        server: 0,
        grant,
        secrets: secrets(),
    }
}

fn secrets() -> Secrets {
    Secrets {
        of_box: [1; 32],
        of_server: [2; 32],
    }
}

fn link(n: u8) -> TunnelLink {
    TunnelLink {
        path: PathId(n),
        remote: SocketAddr::from(([192, 0, 2, 1], 443)),
        mtu: 1500,
        state: PathState::Active,
    }
}

/// Returns an end that has asked.
fn asking() -> BoxTunnel {
    let taken = vec!["10.215.77.0/24".parse().unwrap()];
    let mut end = BoxTunnel::new("box", taken, Rng::from_seed([1; 32]));
    end.enable();
    assert!(end.poll_request(NOW).is_some());
    end
}

/// Returns an end that has a session with two links.
fn with_session() -> BoxTunnel {
    let mut end = asking();
    end.on_attempt(NOW, granted(grant(2)));
    end.set_links(NOW, &[link(0), link(1)]);
    end
}

/// Returns the paths of the datagrams that are to be sent now, in order.
fn sent_on(end: &mut BoxTunnel) -> Vec<u8> {
    let mut buf = Vec::new();
    let sent = core::iter::from_fn(|| Some(end.poll_datagram(NOW, &mut buf)?.path.0));
    let mut paths: Vec<u8> = sent.collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// Returns the address from which the server sends. The grant tells its port.
fn server_address() -> SocketAddr {
    SocketAddr::new(link(0).remote.ip(), grant(2).port)
}

/// Carries datagrams between both ends until there are none.
fn exchange(end: &mut BoxTunnel, server: &mut Tunnel) {
    let addr = SocketAddr::from(([203, 0, 113, 1], 41_000));
    for _ in 0..10 {
        let mut buf = Vec::new();
        while end.poll_datagram(NOW, &mut buf).is_some() {
            server.receive(NOW, addr, &mut buf).unwrap();
            buf.clear();
        }
        while let Some(sent) = server.poll_transmit(NOW, &mut buf) {
            end.on_datagram(NOW, sent.path, server_address(), &mut buf);
            buf.clear();
        }
    }
}

/// Returns an end that is up, and its server's end.
fn up() -> (BoxTunnel, Tunnel) {
    let mut end = with_session();
    let rng = Rng::from_seed([2; 32]);
    let mut server = Tunnel::new(Config::default(), Role::Server, grant(2).session, rng);
    assert!(server.install_keys(NOW, 2, &secrets()));
    exchange(&mut end, &mut server);
    let up = TunnelChange::Up {
        v4: grant(2).v4,
        v6: grant(2).v6,
        mtu: 1500,
    };
    assert_eq!(end.poll_change(), Some(up));
    (end, server)
}

fn reason(end: &BoxTunnel) -> Option<String> {
    let status = end.status(NOW, |_| String::new(), |_| None);
    status.reason
}

#[test]
fn as_many_links_as_a_box_may_have_are_paths() {
    let mut end = asking();
    end.on_attempt(NOW, granted(grant(2)));
    let max = MAX_PATHS as u8;
    let links: Vec<_> = (0..max + 1).map(link).collect();
    end.set_links(NOW, &links);
    assert_eq!(sent_on(&mut end), (0..max).collect::<Vec<_>>());
    // The session has no path for the last link, so the link is left out of `links` and is tried again at the next
    // change.
    assert_eq!(end.session.as_ref().unwrap().links, links[..16]);
}

#[test]
fn keys_that_cannot_be_installed_are_a_failed_attempt() {
    let (mut end, _) = up();
    end.on_attempt(NOW, granted(grant(2)));
    assert_eq!((end.failed, end.rekeyed), (1, 0));
    assert!(end.poll_request(NOW).is_none(), "after a pause");
    assert!(end.poll_request(NOW + MIN_PAUSE).is_some());
    end.on_attempt(NOW, granted(grant(3)));
    assert_eq!((end.failed, end.rekeyed), (0, 1));
}

#[test]
fn addresses_of_this_machine_are_refused() {
    let mut end = asking();
    let taken = Grant {
        v4: Some(Ipv4Addr::new(10, 215, 77, 5)),
        ..grant(2)
    };
    end.on_attempt(NOW, granted(taken));
    assert!(end.session.is_none());
    assert_eq!(reason(&end), Some(TunnelDown::AddressInUse.to_string()));
}

#[test]
fn addresses_that_change_are_told() {
    let (mut end, _) = up();
    end.on_attempt(NOW, granted(grant(3)));
    assert_eq!(end.poll_change(), None);
    let without_v6 = Grant {
        v6: None,
        ..grant(4)
    };
    end.on_attempt(NOW, granted(without_v6));
    let up = TunnelChange::Up {
        v4: grant(2).v4,
        v6: None,
        mtu: 1500,
    };
    assert_eq!(end.poll_change(), Some(up));
}

#[test]
fn a_refusal_ends_only_the_session_of_that_server() {
    let (mut end, _) = up();
    let reason = TunnelDown::Refused;
    end.on_attempt(NOW, Attempt::Refused { server: 1, reason });
    assert!(end.session.is_some());
    assert_eq!(end.poll_change(), None);
    end.on_attempt(NOW, Attempt::Refused { server: 0, reason });
    assert!(end.session.is_none());
    assert_eq!(end.poll_change(), Some(TunnelChange::Down { reason }));
}

#[test]
fn after_a_standstill_every_path_is_validated() {
    let (mut end, _) = up();
    assert_eq!(sent_on(&mut end), []);
    end.validate_all(NOW);
    assert_eq!(sent_on(&mut end), [0, 1]);
}

#[test]
fn everything_that_is_dropped_is_counted_by_its_reason() {
    let mut packet = [0; 28];
    packet[0] = 0x45;
    packet[3] = 28;
    let mut end = asking();
    end.on_packet(NOW, &[], &packet);
    end.on_datagram(NOW, PathId(0), server_address(), &mut [0; 40]);
    assert_eq!(end.drops.no_session, 2);
    let (mut end, _) = up();
    end.on_packet(NOW, &[], &packet);
    end.on_packet(NOW, &[], &packet[..5]);
    end.on_packet(NOW, &[], &[0x45; 1501]);
    end.on_datagram(NOW, PathId(0), server_address(), &mut [0; 40]);
    let drops = end.drops.by_name();
    let counts = ["malformed_packet", "too_large", "invalid_datagram"].map(|name| drops[name]);
    assert_eq!(counts, [1, 1, 1]);
    assert_eq!(drops.values().sum::<u64>(), 3, "{drops:?}");
}

/// Returns an IPv4 packet of UDP to 192.0.2.7 with this port, and a traffic class.
fn udp(port: u16, class: u8) -> Vec<u8> {
    [
        &[0x45, class, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0][..],
        &[10, 0, 0, 1, 192, 0, 2, 7],
        &5_000u16.to_be_bytes(),
        &port.to_be_bytes(),
        &[0, 8, 0, 0],
    ]
    .concat()
}

/// The first rule for a packet says how its flow is sent. What the rule leaves open comes from the packet.
#[test]
fn packets_are_sent_by_the_first_rule_for_them() {
    let rule = |port: Option<u16>, level: Option<u8>, mode| Rule {
        ports: port.map(|port| port..=port).into_iter().collect(),
        addresses: Vec::new(),
        domains: Vec::new(),
        urgency: level.and_then(Urgency::new),
        strategy: None,
        size: None,
        mode,
    };
    let of_name = Rule {
        domains: vec!["example.com".to_owned()],
        ..rule(None, Some(0), Some(Mode::Single))
    };
    let rules = [
        of_name,
        rule(Some(5060), Some(1), Some(Mode::Redundant)),
        rule(Some(53), None, Some(Mode::Fastest)),
        rule(Some(443), Some(5), None),
        rule(None, None, Some(Mode::Single)),
    ];
    let expedited = 46 << 2;
    for (packet, level, mode) in [
        (udp(5060, 0), Some(1), Some(Mode::Redundant)),
        (udp(53, 0), Some(1), Some(Mode::Fastest)),
        (udp(443, expedited), Some(5), None),
        (udp(9, expedited), Some(1), Some(Mode::Single)),
        (udp(9, 0), None, Some(Mode::Single)),
    ] {
        let urgency = level.and_then(Urgency::new);
        assert_eq!(policy(&rules, &packet), FlowPolicy { urgency, mode });
    }
    assert_eq!(policy(&[], &udp(9, 0)), FlowPolicy::default());
    assert_eq!(policy(&rules, &udp(9, 0)[..20]), FlowPolicy::default());
}
