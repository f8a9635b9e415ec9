//! A peer that has the keys and sends what no tunnel sends, and addresses that are not the peer's.

use std::time::Duration;

use crate::net::seal::seal;
use crate::net::{Link, Net, box_addr, end, packet, path_config, secrets, server_addr};
use braid_tunnel::frame::{Frame, Label};
use braid_tunnel::{Config, DatagramError, FlowPolicy, Mode, PathId, Role, Tunnel, Urgency};
use braid_wire::{Instant, Rng};

const MS: Duration = Duration::from_millis(1);

/// Sends everything that the tunnel sends within `time`. Returns the bytes to each address.
fn send_all(
    tunnel: &mut Tunnel,
    now: &mut Instant,
    time: Duration,
) -> Vec<(std::net::SocketAddr, usize)> {
    let mut sent = Vec::new();
    let until = *now + time;
    loop {
        let mut buffer = Vec::new();
        while let Some(transmit) = tunnel.poll_transmit(*now, &mut buffer) {
            sent.push((transmit.remote, transmit.len));
        }
        let Some(at) = tunnel.next_timeout().filter(|at| *at <= until) else {
            *now = until;
            return sent;
        };
        *now = (*now).max(at);
        tunnel.handle_timeout(*now);
    }
}

#[test]
fn an_unproved_address_gets_no_more_than_it_sent() {
    let mut server = end(&Config::default(), Role::Server, 1);
    let mut now = Instant::from_millis(20);
    let (mut received, mut sent) = (0, 0);
    for number in 0..40 {
        let challenges = vec![Frame::Challenge([number as u8; 8]); 1 + number as usize % 8];
        let mut datagram = seal(&secrets(0).of_box, PathId(0), number, &challenges);
        received += datagram.len();
        server.receive(now, box_addr(0), &mut datagram).unwrap();
        // Inner packets and reports have to wait for the proof too.
        let _ = server.send(now, FlowPolicy::default(), &packet(0, number as u32, 1000));
        let answers = send_all(&mut server, &mut now, MS * 300);
        sent += answers.iter().map(|(_, len)| len).sum::<usize>();
        assert!(sent <= received, "{sent} bytes for {received}");
    }
    assert!(sent > 0);
}

#[test]
fn another_address_of_a_proved_path_gets_no_more_than_it_sent() {
    let mut net = Net::new(&Config::default(), &[Link::PLAIN], 2);
    net.pass(MS * 500);
    let first = net.box_sent_at[0].len() as u64;
    let (mut received, mut sent) = (0, 0);
    let mut now = net.now;
    for step in 0..40 {
        let number = first + u64::from(step);
        let challenges = vec![Frame::Challenge([step; 8]); 8];
        let mut datagram = seal(&secrets(0).of_box, PathId(0), number, &challenges);
        received += datagram.len();
        let server = &mut net.ends[1];
        server.receive(now, box_addr(7), &mut datagram).unwrap();
        let answers = send_all(server, &mut now, MS * 100);
        let to_other = answers.iter().filter(|(to, _)| *to == box_addr(7));
        sent += to_other.map(|(_, len)| len).sum::<usize>();
        assert!(sent <= received, "{sent} bytes for {received}");
    }
    assert!(sent > 0);
}

#[test]
fn a_box_takes_datagrams_from_its_server_only() {
    let mut net = Net::new(&Config::default(), &[Link::PLAIN], 3);
    net.pass(MS * 500);
    let now = net.now;
    let before = format!("{:?}", net.ends[0].path_stats().collect::<Vec<_>>());
    net.ends[1]
        .send(now, FlowPolicy::default(), &packet(0, 0, 500))
        .unwrap();
    let mut datagram = Vec::new();
    net.ends[1].poll_transmit(now, &mut datagram).unwrap();
    let from = |addr| {
        let mut datagram = datagram.clone();
        move |tunnel: &mut Tunnel| tunnel.receive(now, addr, &mut datagram)
    };
    let mut other_port = server_addr();
    other_port.set_port(444);
    for other in [box_addr(9), other_port] {
        let refused = from(other)(&mut net.ends[0]);
        assert_eq!(refused, Err(DatagramError::UnknownSource));
    }
    let after = format!("{:?}", net.ends[0].path_stats().collect::<Vec<_>>());
    assert_eq!(before, after);
    assert!(net.ends[0].poll_delivery().is_none());
    // From the server the same datagram counts.
    assert_eq!(from(server_addr())(&mut net.ends[0]), Ok(()));
    assert!(net.ends[0].poll_delivery().is_some());
}

/// A box that may not be sent to by others follows them nowhere either: only the response to the server's challenge
/// moves a path.
#[test]
fn a_server_learns_no_address_without_proof() {
    let mut net = Net::new(&Config::default(), &[Link::PLAIN], 4);
    net.pass(MS * 500);
    let number = net.box_sent_at[0].len() as u64;
    let mut now = net.now;
    for step in 0..20 {
        let inner = packet(0, step, 100);
        let label = Label {
            flow: 0,
            urgency: None,
            mode: Mode::default(),
            sequence: step,
            sole: true,
            hides_losses: false,
            again: false,
        };
        let frames = [
            Frame::Packet(label, &inner),
            Frame::Response([step as u8; 8]),
        ];
        let mut datagram = seal(
            &secrets(0).of_box,
            PathId(0),
            number + u64::from(step),
            &frames,
        );
        let server = &mut net.ends[1];
        server.receive(now, box_addr(8), &mut datagram).unwrap();
        server
            .send(now, FlowPolicy::default(), &packet(1, step, 1000))
            .unwrap();
        for (to, len) in send_all(server, &mut now, MS * 20) {
            assert!(to == box_addr(0) || len < 50, "{len} bytes to {to}");
        }
    }
}

/// Packets far apart, with gaps before them that are never filled, and whatever else frames can say.
#[test]
fn nonsense_breaks_no_bound() {
    for seed in 0..20 {
        let mut rng = Rng::for_component(seed, 1);
        let mut server = end(&Config::default(), Role::Server, seed);
        let mut now = Instant::from_millis(20);
        for number in 0..2000 {
            let inner = packet(
                rng.below(4) as u16,
                number as u32,
                40 + rng.below(60) as usize,
            );
            let flows = if rng.chance(0.1) { 65_536 } else { 4 };
            let label = Label {
                flow: rng.below(flows) as u16,
                urgency: Urgency::new(rng.below(16) as u8),
                mode: Mode::ALL[rng.below(4) as usize],
                sequence: (rng.below(3) * 8190 + rng.below(20)) as u32,
                sole: rng.chance(0.1),
                hides_losses: rng.chance(0.5),
                again: rng.chance(0.2),
            };
            let latest = Frame::Latest {
                flow: label.flow,
                sequence: rng.below(1 << 24) as u32,
            };
            let request = Frame::Rerequest {
                flow: label.flow,
                sequence: label.sequence,
                count: rng.below(256) as u8,
            };
            let frames = [
                Frame::Tail(&inner[..20]),
                latest,
                request,
                Frame::Packet(label, &inner),
            ];
            let first = rng.below(4) as usize;
            let mut datagram = seal(
                &secrets(0).of_box,
                PathId(rng.below(3) as u8),
                number,
                &frames[first..],
            );
            let _ = server.receive(now, box_addr(0), &mut datagram);
            while server.poll_delivery().is_some() {}
            let _ = send_all(&mut server, &mut now, MS * rng.below(3) as u32);
            if number % 50 == 0 {
                server.invariants();
            }
        }
    }
}

#[test]
fn a_path_is_of_the_box_that_added_it() {
    let mut sender = end(&Config::default(), Role::Box, 5);
    assert!(sender.add_path(Instant::ZERO, PathId(0), path_config(1500)));
    let mut datagram = seal(
        &secrets(0).of_server,
        PathId(1),
        0,
        &[Frame::Challenge([1; 8])],
    );
    let refused = sender.receive(Instant::ZERO, server_addr(), &mut datagram);
    assert_eq!(refused, Err(DatagramError::TooManyPaths));
}
