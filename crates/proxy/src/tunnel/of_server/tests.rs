use braid_secure::keys::PrivateKey;

use super::*;
use crate::config::policy::DestinationRules;
use crate::protocol::tunnel::BoxId;

const NOW: Instant = Instant::from_millis(1_000);
const MS: Duration = Duration::from_millis(1);
const SOCKET: PathId = PathId(0);
const MEMORY: usize = 1 << 30;

fn sessions() -> Sessions {
    let pools = TunnelPools {
        v4: "10.215.128.0/24".parse().unwrap(),
        v6: "fdb7:a1d0:80::/64".parse().unwrap(),
    };
    Sessions::new(pools, 1080, MEMORY)
}

fn stack() -> Stack {
    let rng = Rng::from_seed([9; 32]);
    Stack::new(
        braid_engine::Config::default(),
        rng,
        Box::new(braid_strategy::default_strategy),
    )
}

fn requester(n: u8) -> Requester {
    Requester {
        user: usize::from(n),
        key: PrivateKey::from_seed([n; 32]).public(),
    }
}

fn request(boxed: u8) -> Request {
    Request {
        boxed: BoxId([boxed; 8]),
        session: None,
        path_mtu: 1500,
        suites: [Some(Suite::Aes256Gcm), None],
    }
}

fn secrets() -> Secrets {
    Secrets {
        of_box: [1; 32],
        of_server: [2; 32],
    }
}

fn open(sessions: &mut Sessions, user: u8, request: &Request) -> Result<Grant, Refusal> {
    let seed = [user ^ request.boxed.0[0].wrapping_mul(16); 32];
    let export = |_, _| Some(secrets());
    sessions.open(NOW, requester(user), request, (seed, true), export)
}

/// A box's end of a session with one path.
struct Boxed {
    tunnel: Tunnel,
    grant: Grant,
    from: SocketAddr,
}

impl Boxed {
    fn new(sessions: &mut Sessions, user: u8) -> Self {
        let grant = open(sessions, user, &request(1)).unwrap();
        let config = Config {
            suite: grant.suite,
            ..Config::default()
        };
        let rng = Rng::from_seed([user; 32]);
        let mut tunnel = Tunnel::new(config, Role::Box, grant.session, rng);
        tunnel.install_keys(NOW, grant.epoch, &secrets());
        let remote = SocketAddr::from(([203, 0, 113, 1], 1080));
        let path = braid_tunnel::PathConfig { remote, mtu: 1500 };
        tunnel.add_path(NOW, PathId(0), path);
        let from = SocketAddr::from(([192, 0, 2, user], 4_000));
        let mut boxed = Boxed {
            tunnel,
            grant,
            from,
        };
        // Both ends prove their addresses.
        for n in 0..8 {
            boxed.exchange(sessions, NOW + MS * n);
        }
        boxed
    }

    /// Exchanges datagrams; returns the sockets on which those of the server went out.
    fn exchange(&mut self, sessions: &mut Sessions, now: Instant) -> Vec<PathId> {
        let mut buf = Vec::new();
        while self.tunnel.poll_transmit(now, &mut buf).is_some() {
            sessions.on_datagram(now, SOCKET, self.from, &mut buf);
            buf.clear();
        }
        let mut sockets = Vec::new();
        while let Some(transmit) = sessions.poll_datagram(now, &mut buf) {
            if transmit.remote == self.from {
                let _ = self.tunnel.receive(now, transmit.remote, &mut buf);
                sockets.push(transmit.path);
            }
            buf.clear();
        }
        sockets
    }

    /// Sends a packet through the tunnel; returns whether it comes out.
    fn passes(&mut self, sessions: &mut Sessions, at: u32, packet: &[u8]) -> bool {
        let now = NOW + MS * (100 + at * 10);
        self.tunnel.send(now, Default::default(), packet).unwrap();
        self.exchange(sessions, now);
        let mut destinations = DestinationPolicy::new(DestinationRules {
            refuse_ports: vec![25],
            ..DestinationRules::default()
        });
        let mut refused = sessions.pools.ranges().to_vec();
        refused.push(IpAddr::from(LISTEN).into());
        refused.push(LISTEN_V6.parse::<IpAddr>().unwrap().into());
        destinations.set_own(refused);
        let out = sessions.poll_packet(&destinations).map(<[u8]>::to_vec);
        assert!(out.as_deref().is_none_or(|out| out == packet));
        out.is_some()
    }
}

/// Makes an IPv4 packet with ports 5,000 and `port`.
fn v4(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, port: u16) -> Vec<u8> {
    [
        &[0x45, 0, 0, 28, 0, 0, 0, 0, 64, protocol, 0, 0][..],
        &src.octets(),
        &dst.octets(),
        &5_000u16.to_be_bytes(),
        &port.to_be_bytes(),
        &[0, 8, 0, 0],
    ]
    .concat()
}

/// Makes an IPv6 packet with ports 5,000 and `port`.
fn v6(src: Ipv6Addr, dst: Ipv6Addr, protocol: u8, port: u16) -> Vec<u8> {
    [
        &[0x60, 0, 0, 0, 0, 8, protocol, 64][..],
        &src.octets(),
        &dst.octets(),
        &5_000u16.to_be_bytes(),
        &port.to_be_bytes(),
        &[0, 8, 0, 0],
    ]
    .concat()
}

const PUBLIC: Ipv4Addr = Ipv4Addr::new(9, 9, 9, 9);
const PUBLIC_V6: Ipv6Addr = Ipv6Addr::new(0x2620, 0xfe, 0, 0, 0, 0, 0, 9);
/// Addresses that the server listens on.
const LISTEN: Ipv4Addr = Ipv4Addr::new(9, 9, 9, 10);
const LISTEN_V6: &str = "2620:fe::10";

#[test]
fn only_packets_that_are_allowed_come_out() {
    let mut sessions = sessions();
    let mut first = Boxed::new(&mut sessions, 1);
    let second = Boxed::new(&mut sessions, 2);
    let (own, own_v6) = (first.grant.v4.unwrap(), first.grant.v6.unwrap());
    let (other, other_v6) = (second.grant.v4.unwrap(), second.grant.v6.unwrap());
    assert_ne!(own, other);
    let local = Ipv4Addr::new(192, 168, 1, 7);
    let device = sessions.pools.device_v4();
    let device_v6 = sessions.pools.device_v6();
    let udp = |to: [u8; 4]| v4(own, to.into(), 17, 443);
    let udp_v6 = |to: &str| v6(own_v6, to.parse().unwrap(), 17, 443);
    let cases = [
        (udp([9, 9, 9, 9]), "passes"),
        (v4(own, PUBLIC, 1, 0), "passes"),
        (v4(own, PUBLIC, 17, 25), "passes"),
        (v4(own, PUBLIC, 6, 25), "refused_destination"),
        (v4(own, PUBLIC, 6, 80), "passes"),
        (v4(own, local, 17, 443), "refused_destination"),
        (v4(own, LISTEN, 17, 443), "refused_destination"),
        (udp([127, 0, 0, 1]), "refused_destination"),
        (udp([224, 0, 0, 251]), "refused_destination"),
        (udp([239, 255, 255, 250]), "refused_destination"),
        (udp([255, 255, 255, 255]), "refused_destination"),
        (v4(own, other, 17, 443), "between_boxes"),
        (v4(own, device, 17, 443), "between_boxes"),
        (v4(other, PUBLIC, 17, 443), "foreign_source"),
        (v4(local, PUBLIC, 17, 443), "foreign_source"),
        (udp_v6("2620:fe::9"), "passes"),
        (v6(own_v6, PUBLIC_V6, 6, 25), "refused_destination"),
        (v6(own_v6, PUBLIC_V6, 6, 80), "passes"),
        (udp_v6(LISTEN_V6), "refused_destination"),
        (udp_v6("::1"), "refused_destination"),
        (udp_v6("fe80::1"), "refused_destination"),
        (udp_v6("fd00::1"), "refused_destination"),
        (udp_v6("ff02::fb"), "refused_destination"),
        (udp_v6("ff0e::fb"), "refused_destination"),
        (udp_v6("::ffff:192.168.1.7"), "refused_destination"),
        (udp_v6("64:ff9b::192.168.1.7"), "refused_destination"),
        (v6(own_v6, other_v6, 17, 443), "between_boxes"),
        (v6(own_v6, device_v6, 17, 443), "between_boxes"),
        (v6(other_v6, PUBLIC_V6, 17, 443), "foreign_source"),
        (v6(own_v6, PUBLIC_V6, 43, 443), "malformed_packet"),
    ];
    for (n, (packet, expected)) in (0..).zip(&cases) {
        let before = sessions.status(NOW, |_| None).drops;
        let passes = first.passes(&mut sessions, n, packet);
        let after = sessions.status(NOW, |_| None).drops;
        let grown = after.iter().filter(|(name, n)| before[*name] != **n);
        let grown: Vec<_> = grown.map(|(name, n)| (name.as_str(), *n)).collect();
        match *expected {
            "passes" => assert!(passes && grown.is_empty(), "{n}: {grown:?}"),
            reason => assert!(
                !passes && grown == [(reason, before[reason] + 1)],
                "{n}: {grown:?}"
            ),
        }
    }
}

#[test]
fn packets_go_to_the_box_with_their_destination_alone() {
    let mut sessions = sessions();
    let mut first = Boxed::new(&mut sessions, 1);
    let mut second = Boxed::new(&mut sessions, 2);
    let to = first.grant.v4.unwrap();
    let now = NOW + MS * 100;
    sessions.on_packet(now, &v4(PUBLIC, to, 17, 5_000));
    let device = sessions.pools.device_v4();
    sessions.on_packet(now, &v4(device, to, 1, 0));
    // From another box, to nobody, and malformed.
    let other = second.grant.v4.unwrap();
    sessions.on_packet(now, &v4(other, to, 17, 5_000));
    sessions.on_packet(now, &v4(PUBLIC, Ipv4Addr::new(10, 215, 128, 1), 17, 5_000));
    sessions.on_packet(now, &[0x45; 3]);
    first.exchange(&mut sessions, now);
    second.exchange(&mut sessions, now);
    let count = |boxed: &mut Boxed| {
        let mut n = 0;
        while boxed.tunnel.poll_delivery().is_some() {
            n += 1;
        }
        n
    };
    let drops = sessions.drops;
    assert_eq!((drops.isolated, drops.no_box, drops.malformed), (1, 1, 1));
    // What is sent to the first box does not reach the second one; the exchange above took only its own.
    assert_eq!(count(&mut second), 0);
    let at_first = sessions.table.get(sessions.by_v4[&to]).unwrap();
    assert_eq!(at_first.tunnel.stats().packets_sent, 2);
}

#[test]
fn only_its_owner_gets_another_epoch_of_a_session() {
    let mut sessions = sessions();
    let first = open(&mut sessions, 1, &request(1)).unwrap();
    assert_eq!(first.epoch, 1);
    let resume = |boxed: u8| Request {
        session: Some(first.session),
        ..request(boxed)
    };
    let again = open(&mut sessions, 1, &resume(1)).unwrap();
    assert_eq!((again.session, again.epoch), (first.session, 2));
    assert_eq!((again.v4, again.v6), (first.v4, first.v6));
    // Another user, and another box of the same user, get sessions of their own.
    for (user, boxed) in [(2, 1), (1, 2)] {
        let other = open(&mut sessions, user, &resume(boxed)).unwrap();
        assert_ne!(other.session, first.session);
        assert_ne!(other.v4, first.v4);
        assert_eq!(other.epoch, 1);
    }
    assert_eq!(sessions.table.len(), 3);
    // The box has restarted: its old session is gone.
    let anew = open(
        &mut sessions,
        1,
        &Request {
            path_mtu: 1400,
            ..request(1)
        },
    );
    // The first session had the same seed, and its id is free again.
    assert_eq!(anew.unwrap().v4, first.v4);
    assert_eq!(sessions.table.len(), 3);
}

#[test]
fn sessions_are_limited_and_refused_requests_leave_nothing() {
    let mut sessions = sessions();
    for n in 0..MAX_OF_USER as u8 {
        open(&mut sessions, 1, &request(n)).unwrap();
    }
    let refused = open(&mut sessions, 1, &request(99));
    assert_eq!(refused, Err(Refusal::TooMany));
    open(&mut sessions, 2, &request(99)).unwrap();
    let no_suite = Request {
        suites: [None; 2],
        ..request(1)
    };
    assert_eq!(open(&mut sessions, 3, &no_suite), Err(Refusal::NoSuite));
    let before = sessions.table.len();
    let export = |_, _| None;
    let refused = sessions.open(NOW, requester(3), &request(1), ([9; 32], true), export);
    assert_eq!(refused, Err(Refusal::NotOffered));
    assert_eq!(sessions.table.len(), before, "no session without keys");
}

#[test]
fn a_box_that_gets_no_answers_keeps_its_session() {
    let mut sessions = sessions();
    let mut boxed = Boxed::new(&mut sessions, 1);
    let own = boxed.grant.v4.unwrap();
    let resume = Request {
        session: Some(boxed.grant.session),
        ..request(1)
    };
    let mut last = 1;
    for n in 0..12 {
        let grant = open(&mut sessions, 1, &resume).unwrap();
        assert!(grant.epoch > last, "{} after {last}", grant.epoch);
        last = grant.epoch;
        let packet = v4(own, PUBLIC, 17, n);
        assert!(boxed.passes(&mut sessions, u32::from(n), &packet), "{n}");
    }
    boxed.tunnel.install_keys(NOW + MS * 400, last, &secrets());
    assert!(boxed.passes(&mut sessions, 40, &v4(own, PUBLIC, 17, 443)));
    assert_eq!(sessions.drops, Drops::default());
}

#[test]
fn a_session_follows_the_destinations_that_the_server_reaches() {
    let mut sessions = sessions();
    let first = open(&mut sessions, 1, &request(1)).unwrap();
    let resume = Request {
        session: Some(first.session),
        ..request(1)
    };
    for has_v6 in [false, true] {
        let export = |_, _| Some(secrets());
        let drawn = ([7; 32], has_v6);
        let grant = sessions.open(NOW, requester(1), &resume, drawn, export);
        let grant = grant.unwrap();
        assert_eq!(grant.session, first.session);
        assert_eq!(grant.v6, first.v6.filter(|_| has_v6));
    }
}

#[test]
fn a_refused_request_leaves_the_session_that_it_wants_to_replace() {
    let mut sessions = sessions();
    let first = open(&mut sessions, 1, &request(1)).unwrap();
    let before = (sessions.opened, sessions.allotted);
    let resume = Request {
        session: Some(first.session),
        ..request(1)
    };
    for request in [request(1), resume.clone()] {
        let export = |_, _| None;
        let refused = sessions.open(NOW, requester(1), &request, ([9; 32], true), export);
        assert_eq!(refused, Err(Refusal::NotOffered));
        assert!(sessions.by_id.contains_key(&first.session));
        assert_eq!((sessions.opened, sessions.allotted), before);
    }
    let next = open(&mut sessions, 1, &resume).unwrap();
    assert_eq!((next.session, next.epoch), (first.session, 2));
}

#[test]
fn boxes_that_replace_each_other_are_counted() {
    let mut sessions = sessions();
    let at = |sessions: &mut Sessions, ms: u32| {
        let export = |_, _| Some(secrets());
        let drawn = ([ms as u8; 32], true);
        let grant = sessions.open(NOW + MS * ms, requester(1), &request(1), drawn, export);
        grant.unwrap();
        sessions.contended
    };
    assert_eq!(at(&mut sessions, 0), 0);
    assert_eq!(at(&mut sessions, 2_000), 1);
    // The box was silent for a while, and has restarted.
    assert_eq!(at(&mut sessions, 20_000), 1);
    // The session was in use for long.
    let session = sessions.table.ids()[0];
    sessions.table.get_mut(session).unwrap().heard_at = NOW + MS * 90_000;
    assert_eq!(at(&mut sessions, 91_000), 1);
    assert_eq!(at(&mut sessions, 92_000), 2);
    assert_eq!(sessions.status(NOW, |_| None).contended, 2);
    assert_eq!(sessions.table.len(), 1);
}

#[test]
fn buffers_are_bounded_for_a_user_and_for_all() {
    let mut sessions = sessions();
    let of_user = |sessions: &Sessions, user: usize| {
        let ids = sessions.table.ids().into_iter();
        let all = ids.filter_map(|id| sessions.table.get(id));
        all.filter(|s| s.user == user).map(|s| s.budget).sum()
    };
    let mut total = 0;
    let mut refused = 0;
    for user in 1..=60 {
        for n in 0..MAX_OF_USER as u8 {
            let seed = [user, n].repeat(16).try_into().unwrap();
            let export = |_, _| Some(secrets());
            let by = requester(user);
            let answer = sessions.open(NOW, by, &request(n), (seed, true), export);
            refused += u32::from(answer == Err(Refusal::TooMany));
        }
        let sum: usize = of_user(&sessions, usize::from(user));
        assert!(sum <= MEMORY / 16, "{sum} of user {user}");
        total += sum;
    }
    assert!(refused > 0 && sessions.table.len() > 100);
    assert_eq!(total, sessions.allotted);
    assert!(total <= MEMORY / 4);
    // A box that comes again needs no more.
    let export = |_, _| Some(secrets());
    let again = sessions.open(NOW, requester(1), &request(0), ([0; 32], true), export);
    assert!(again.is_ok());
    sessions.move_users(&[]);
    assert_eq!((sessions.table.len(), sessions.allotted), (0, 0));
}

#[test]
fn datagrams_that_do_not_open_cost_no_turn() {
    let mut sessions = sessions();
    let boxed = Boxed::new(&mut sessions, 1);
    let mut buf = Vec::new();
    while sessions.poll_datagram(NOW + MS * 10, &mut buf).is_some() {}
    while sessions
        .poll_packet(&DestinationPolicy::new(DestinationRules::default()))
        .is_some()
    {}
    let due = sessions.next_timeout();
    let header = Header {
        phase: 1,
        session: boxed.grant.session,
        path: PathId(0),
        number: 77,
    };
    let mut forged = [&header.emit()[..], &[0; 40]].concat();
    sessions.on_datagram(NOW + MS * 10, SOCKET, boxed.from, &mut forged);
    assert_eq!(sessions.drops.invalid, 1);
    assert!(sessions.to_send.is_empty() && sessions.to_deliver.is_empty());
    assert_eq!(sessions.next_timeout(), due);
}

#[test]
fn silent_sessions_end_and_users_move() {
    let mut sessions = sessions();
    let first = Boxed::new(&mut sessions, 1);
    let _second = Boxed::new(&mut sessions, 2);
    // User 0 is gone, user 1 has index 0, user 2 is removed.
    sessions.move_users(&[None, Some(0), None]);
    assert_eq!(sessions.table.len(), 1);
    let name = |user: usize| Some(format!("user{user}"));
    let shown = sessions.status(NOW, name).sessions;
    assert_eq!(shown[0].user.as_deref(), Some("user0"));
    assert_eq!(shown[0].v4, first.grant.v4);
    let end = NOW + MAX_SILENCE + MS * 100;
    let mut stack = stack();
    let mut buf = Vec::new();
    while let Some(at) = sessions.next_timeout().filter(|at| *at <= end) {
        sessions.handle_timeout(at, &mut stack);
        while sessions.poll_datagram(at, &mut buf).is_some() {
            buf.clear();
        }
    }
    assert_eq!(sessions.table.len(), 0);
    assert!(sessions.by_id.is_empty() && sessions.by_v4.is_empty());
    assert!(sessions.by_v6.is_empty() && sessions.by_owner.is_empty());
}

#[test]
fn datagrams_leave_on_the_socket_that_the_box_sent_to() {
    let mut sockets = Sockets::default();
    let addr = |n: u8| SocketAddr::from(([192, 0, 2, n], 4_000));
    for n in 0..40 {
        sockets.note(PathId(n % 8), addr(n), PathId(n % 3));
    }
    assert_eq!(sockets.to(PathId(39 % 8), addr(39)), Some(PathId(0)));
    sockets.note(PathId(39 % 8), addr(39), PathId(2));
    assert_eq!(sockets.to(PathId(39 % 8), addr(39)), Some(PathId(2)));
    assert_eq!(
        sockets.to(PathId(0), addr(0)),
        None,
        "the oldest is forgotten"
    );
    assert_eq!(sockets.to(PathId(1), addr(39)), None);
}
