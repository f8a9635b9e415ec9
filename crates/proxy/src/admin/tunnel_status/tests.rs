use braid_tunnel::{Config, FlowPolicy, Mode, PathConfig, Role, Secrets, SessionId, Tunnel};
use braid_wire::Rng;

use super::*;

/// Returns a UDP packet of `len` bytes to this port.
fn udp(port: u16, len: u16) -> Vec<u8> {
    let head = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0];
    let mut packet = [&head[..], &[10, 0, 0, 1, 192, 0, 2, 7]].concat();
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet.extend_from_slice(&5_000u16.to_be_bytes());
    packet.extend_from_slice(&port.to_be_bytes());
    packet.resize(len.into(), 0);
    packet
}

/// Returns an end with a path whose peer never answers, so that everything waits.
fn tunnel() -> Tunnel {
    let session = SessionId([1; 8]);
    let mut tunnel = Tunnel::new(
        Config::default(),
        Role::Box,
        session,
        Rng::from_seed([1; 32]),
    );
    let secrets = Secrets {
        of_box: [1; 32],
        of_server: [2; 32],
    };
    assert!(tunnel.install_keys(Instant::ZERO, 1, &secrets));
    let remote = "192.0.2.1:9".parse().unwrap();
    assert!(tunnel.add_path(Instant::ZERO, PathId(0), PathConfig { remote, mtu: 1500 }));
    tunnel
}

#[test]
fn the_largest_flows_are_shown_and_the_rest_counted() {
    let mut tunnel = tunnel();
    let now = Instant::from_millis(1_000);
    for port in 1..=300 {
        tunnel
            .send(now, FlowPolicy::default(), &udp(port, 100))
            .unwrap();
    }
    let mut flows = tunnel.flow_stats();
    for (flow, bytes) in flows.iter_mut().zip(0..) {
        flow.bytes_sent = bytes;
    }
    let later = now + Duration::from_secs(3);
    let mut shown = ShownFlows::new(later);
    assert_eq!(shown.add((), flows.clone()), 300);
    let show = |(), flow: &FlowStats| {
        TunnelFlowStatus::new(later, flow, true, |path| format!("link{}", path.0))
    };
    let (total, list) = shown.finish(show);
    assert_eq!((total, list.len()), (300, 256));
    let (first, last) = (&list[0], &list[255]);
    assert_eq!((first.bytes_up, last.bytes_up), (299, 44));
    assert_eq!(first.source, "10.0.0.1:5000");
    assert_eq!(first.destination, "192.0.2.7:300");
    assert_eq!((first.protocol.as_str(), first.urgency), ("udp", Some(3)));
    assert_eq!(first.steering.as_deref(), Some("aggregate"));
    assert_eq!((first.age_s, first.idle_s), (3.0, 3.0));
    // Nobody looks at flows that ended long ago.
    let mut shown = ShownFlows::new(now + Duration::from_secs(120));
    assert_eq!(shown.add((), flows), 0);
}

#[test]
fn a_server_shows_flows_from_the_users_side() {
    let mut tunnel = tunnel();
    let now = Instant::from_millis(1_000);
    let policy = FlowPolicy {
        urgency: None,
        mode: Some(Mode::Single),
    };
    tunnel.send(now, policy, &udp(443, 100)).unwrap();
    let mut flow = tunnel.flow_stats().remove(0);
    (flow.bytes_sent, flow.bytes_received) = (7, 5);
    flow.protocol = 50;
    flow.ports = None;
    let shown = TunnelFlowStatus::new(now, &flow, false, |path| path.0.to_string());
    assert_eq!((shown.bytes_up, shown.bytes_down), (5, 7));
    assert_eq!(shown.source, "192.0.2.7");
    assert_eq!(shown.destination, "10.0.0.1");
    assert_eq!(shown.protocol, "esp");
    assert_eq!(shown.steering.as_deref(), Some("single"));
    assert!(shown.paths.is_empty());
}
