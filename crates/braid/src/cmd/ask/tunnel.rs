//! The tunnel on the page of the status.

use braid_proxy::status::Role;
use braid_proxy::tunnel_status::{
    TunnelFlowPathStatus, TunnelFlowStatus, TunnelPathStatus, TunnelSessionStatus, TunnelStatus,
};

use super::columns::{Align, Columns};
use super::units::{self, NONE, or_none};

/// Returns the lines about the tunnel, with a blank line behind them; nothing if the process knows no tunnel.
pub fn section(role: Role, tunnel: Option<&TunnelStatus>) -> String {
    let Some(tunnel) = tunnel else {
        return String::new();
    };
    let text = match role {
        Role::Box => of_box(tunnel),
        Role::Server => of_server(tunnel),
    };
    format!("{text}{}{}\n", flows(role, tunnel), drops(tunnel))
}

fn of_box(tunnel: &TunnelStatus) -> String {
    let session = tunnel.sessions.first();
    if tunnel.state != "up" {
        let why = match (tunnel.state.as_str(), &tunnel.reason) {
            (_, Some(reason)) => reason.clone(),
            ("off", None) => "switched off".to_owned(),
            (_, None) => "no server has answered yet".to_owned(),
        };
        return format!(
            "tunnel down: {why}; all traffic other than TCP is forwarded over one link, unprotected\n"
        );
    }
    let server = tunnel.server.as_ref();
    let server = server.map_or_else(String::new, |server| format!(" to server {server}"));
    let addresses = session.map_or_else(String::new, |session| {
        format!(", address {}", addresses(session))
    });
    let packets = session.map_or_else(String::new, |session| {
        let (received, sent) = (session.packets_in, session.packets_out);
        format!("; packets received {received}, sent {sent}")
    });
    let mut columns = Columns::new(&[
        ("link", Align::Left),
        ("tunnel", Align::Left),
        ("RTT", Align::Right),
        ("loss out", Align::Right),
        ("rate out", Align::Right),
        ("received", Align::Right),
        ("sent", Align::Right),
    ]);
    for path in session.iter().flat_map(|session| &session.paths) {
        columns.row(row(path), Vec::new());
    }
    format!("tunnel up{server}{addresses}{packets}\n{}", columns.text())
}

fn row(path: &TunnelPathStatus) -> [String; 7] {
    [
        path.name.clone(),
        if path.usable { "in use" } else { "no answers" }.to_owned(),
        or_none(path.rtt_ms, units::milliseconds),
        loss(path).map_or_else(|| NONE.to_owned(), units::percent),
        or_none(path.rate, units::rate),
        units::bytes(path.bytes_received),
        units::bytes(path.bytes_sent),
    ]
}

/// Returns the share of the sent datagrams that were lost.
fn loss(path: &TunnelPathStatus) -> Option<f64> {
    (path.datagrams_sent > 0).then(|| path.datagrams_lost as f64 / path.datagrams_sent as f64)
}

fn of_server(tunnel: &TunnelStatus) -> String {
    if tunnel.state != "on" {
        return match &tunnel.reason {
            Some(reason) => format!("no tunnel: {reason}\n"),
            None => "tunnel switched off\n".to_owned(),
        };
    }
    let total = tunnel.sessions_total;
    let noun = if total == 1 { "box" } else { "boxes" };
    if tunnel.sessions.is_empty() {
        return format!("tunnel of {total} {noun}\n");
    }
    let mut columns = Columns::new(&[
        ("user", Align::Left),
        ("address", Align::Left),
        ("flows", Align::Right),
        ("packets in", Align::Right),
        ("packets out", Align::Right),
    ]);
    for session in &tunnel.sessions {
        let row = [
            session.user.clone().unwrap_or_else(|| NONE.to_owned()),
            addresses(session),
            session.flows.to_string(),
            session.packets_in.to_string(),
            session.packets_out.to_string(),
        ];
        columns.row(row, session.paths.iter().map(line).collect());
    }
    let hidden = match total.saturating_sub(tunnel.sessions.len()) {
        0 => String::new(),
        others => format!(" ({others} more are not shown)"),
    };
    format!("tunnel of {total} {noun}{hidden}\n{}", columns.text())
}

/// Returns the line about a path of a box, at a server.
fn line(path: &TunnelPathStatus) -> String {
    let [_, state, rtt, loss, rate, received, sent] = row(path);
    let name = &path.name;
    format!(
        "link {name}: {state}, RTT {rtt}, loss out {loss}, rate out {rate}, received {received}, sent {sent}"
    )
}

/// Returns the flows, each with the links that carry it.
fn flows(role: Role, tunnel: &TunnelStatus) -> String {
    if tunnel.flows.is_empty() {
        return String::new();
    }
    let mut columns = Columns::new(&[
        ("user", Align::Left),
        ("protocol", Align::Left),
        ("source", Align::Left),
        ("destination", Align::Left),
        ("age", Align::Right),
        ("idle", Align::Right),
        ("up", Align::Right),
        ("down", Align::Right),
        ("dropped", Align::Right),
        ("urgency", Align::Right),
        ("steering", Align::Left),
    ]);
    for flow in &tunnel.flows {
        columns.row(flow_row(flow), flow.paths.iter().map(flow_line).collect());
    }
    if role == Role::Box {
        columns.hide(&["user"]);
    }
    let total = tunnel.flows_total;
    let noun = if total == 1 { "flow" } else { "flows" };
    let hidden = match total.saturating_sub(tunnel.flows.len()) {
        0 => String::new(),
        others => format!(" ({others} more, which moved fewer bytes, are not shown)"),
    };
    format!("{total} {noun} in the tunnel{hidden}\n{}", columns.text())
}

fn flow_row(flow: &TunnelFlowStatus) -> [String; 11] {
    let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| NONE.to_owned());
    [
        or_none(&flow.user),
        flow.protocol.clone(),
        flow.source.clone(),
        flow.destination.clone(),
        units::age(flow.age_s),
        units::age(flow.idle_s),
        units::bytes(flow.bytes_up),
        units::bytes(flow.bytes_down),
        flow.packets_dropped.to_string(),
        or_none(&flow.urgency.map(|level| level.to_string())),
        or_none(&flow.steering),
    ]
}

/// Returns the line about a link of a flow.
fn flow_line(path: &TunnelFlowPathStatus) -> String {
    format!(
        "{}: received {}, sent {}, {} of the flow",
        path.name,
        units::bytes(path.bytes_received),
        units::bytes(path.bytes_sent),
        units::percent(path.share)
    )
}

/// Returns the addresses of a box in the tunnel.
fn addresses(session: &TunnelSessionStatus) -> String {
    let v4 = session.v4.map(|addr| addr.to_string());
    let v6 = session.v6.map(|addr| addr.to_string());
    let all: Vec<String> = v4.into_iter().chain(v6).collect();
    if all.is_empty() {
        NONE.to_owned()
    } else {
        all.join(" and ")
    }
}

/// Returns a line about what the tunnel dropped, if it dropped anything.
fn drops(tunnel: &TunnelStatus) -> String {
    let nonzero = tunnel.drops.iter().filter(|(_, count)| **count > 0);
    let entries: Vec<String> = nonzero
        .map(|(reason, count)| format!("{} {count}", reason.replace('_', " ")))
        .collect();
    if entries.is_empty() {
        return String::new();
    }
    format!("dropped by the tunnel: {}\n", entries.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path() -> TunnelPathStatus {
        TunnelPathStatus {
            name: "dsl".to_owned(),
            usable: true,
            datagrams_sent: 1_000,
            bytes_sent: 1_300_000,
            datagrams_lost: 5,
            datagrams_received: 10,
            bytes_received: 4_200,
            rtt_ms: Some(12.0),
            rate: Some(48_000_000.0),
        }
    }

    fn status(state: &str) -> TunnelStatus {
        TunnelStatus {
            state: state.to_owned(),
            server: Some("paris".to_owned()),
            sessions_total: 1,
            sessions: vec![TunnelSessionStatus {
                user: Some("attic".to_owned()),
                v4: Some([10, 215, 128, 2].into()),
                v6: Some("fdb7:a1d0:80::2".parse().unwrap()),
                packets_in: 8,
                packets_out: 900,
                paths: vec![
                    path(),
                    TunnelPathStatus {
                        name: "lte".to_owned(),
                        usable: false,
                        datagrams_sent: 0,
                        rtt_ms: None,
                        rate: None,
                        ..path()
                    },
                ],
                ..TunnelSessionStatus::default()
            }],
            drops: [("foreign_source".to_owned(), 3), ("queue".to_owned(), 0)].into(),
            ..TunnelStatus::default()
        }
    }

    #[test]
    fn a_box_shows_each_link() {
        let expected = "\
tunnel up to server paris, address 10.215.128.2 and fdb7:a1d0:80::2; packets received 8, sent 900
  link  tunnel        RTT  loss out     rate out  received    sent
  dsl   in use      12 ms     0.5 %  48.0 Mbit/s    4.2 kB  1.3 MB
  lte   no answers      -         -            -    4.2 kB  1.3 MB
dropped by the tunnel: foreign source 3

";
        assert_eq!(section(Role::Box, Some(&status("up"))), expected);
    }

    #[test]
    fn flows_are_shown_with_their_links() {
        let path = |name: &str, bytes, share| TunnelFlowPathStatus {
            name: name.to_owned(),
            bytes_sent: bytes,
            bytes_received: 10 * bytes,
            share,
        };
        let flow = TunnelFlowStatus {
            user: Some("attic".to_owned()),
            protocol: "udp".to_owned(),
            source: "10.215.128.2:5000".to_owned(),
            destination: "198.51.100.7:443".to_owned(),
            age_s: 75.0,
            idle_s: 0.2,
            bytes_up: 4_000,
            bytes_down: 40_000,
            packets_dropped: 2,
            urgency: Some(3),
            steering: Some("aggregate".to_owned()),
            repairs_losses: true,
            queued: 0,
            paths: vec![path("dsl", 3_000, 0.75), path("lte", 1_000, 0.25)],
        };
        let status = TunnelStatus {
            flows_total: 12,
            flows: vec![flow],
            drops: [].into(),
            ..status("up")
        };
        let page = section(Role::Box, Some(&status));
        let expected = "\
12 flows in the tunnel (11 more, which moved fewer bytes, are not shown)
  protocol  source             destination         age  idle      up     down  dropped  urgency  steering
  udp       10.215.128.2:5000  198.51.100.7:443  1 min   0 s  4.0 kB  40.0 kB        2        3  aggregate
      dsl: received 30.0 kB, sent 3.0 kB, 75.0 % of the flow
      lte: received 10.0 kB, sent 1.0 kB, 25.0 % of the flow

";
        assert!(page.ends_with(expected), "{page}");
        let page = section(
            Role::Server,
            Some(&TunnelStatus {
                state: "on".to_owned(),
                ..status
            }),
        );
        assert!(page.contains("\n  attic  udp  "), "{page}");
    }

    #[test]
    fn a_box_without_a_tunnel_says_why() {
        let line = |state, reason: Option<&str>| {
            let status = TunnelStatus {
                state: String::from(state),
                reason: reason.map(str::to_owned),
                ..TunnelStatus::default()
            };
            section(Role::Box, Some(&status))
        };
        let forwarded = "all traffic other than TCP is forwarded over one link, unprotected\n\n";
        let down = |why| format!("tunnel down: {why}; {forwarded}");
        assert_eq!(line("off", None), down("switched off"));
        assert_eq!(line("off", Some("no device")), down("no device"));
        assert_eq!(
            line("down", Some("no server answers")),
            down("no server answers")
        );
        assert_eq!(line("asking", None), down("no server has answered yet"));
        assert_eq!(section(Role::Box, None), "");
    }

    #[test]
    fn a_server_shows_each_box() {
        let page = section(Role::Server, Some(&status("on")));
        assert!(
            page.starts_with("tunnel of 1 box\n  user   address  "),
            "{page}"
        );
        let line = "\n      link dsl: in use, RTT 12 ms, loss out 0.5 %, rate out 48.0 Mbit/s, received 4.2 kB, sent 1.3 MB\n";
        assert!(page.contains(line), "{page}");
        assert_eq!(
            section(Role::Server, Some(&status("off"))).lines().next(),
            Some("tunnel switched off")
        );
        let failed = TunnelStatus {
            reason: Some("the port is taken".to_owned()),
            ..status("off")
        };
        let page = section(Role::Server, Some(&failed));
        assert!(page.starts_with("no tunnel: the port is taken\n"), "{page}");
    }
}
