//! The status as a page of text.

use braid_proxy::report::RENAMED_COUNTERS;
use braid_proxy::status::{
    Class, ConnPathStatus, ConnStatus, PathState, PathStatus, Role, ServerStatus, SizeFrom, Status,
    SubflowState,
};
use braid_proxy::verdict::{Reason, Verdict};

use super::columns::{Align, Columns};
use super::servers;
use super::tunnel;
use super::units::{self, NONE, or_none};

/// Returns the word for a role, which is also the name of its command.
pub fn role(role: Role) -> &'static str {
    match role {
        Role::Box => "box",
        Role::Server => "server",
    }
}

/// Returns the page for the status `now`. Current rates are computed from the bytes since the earlier status
/// `before`. `verbose` adds the measurements of servers and the values on which strategies decide.
pub fn page(now: &Status, before: &Status, verbose: bool) -> String {
    let mut page = verdict(&now.verdict);
    page += &format!(
        "{} {:?}, process {}, up {}; strategy {}, congestion control {}\n",
        role(now.role),
        now.name,
        now.pid,
        units::age(now.uptime_s),
        now.strategy,
        now.congestion
    );
    if let Some(proxy) = now.proxy {
        page += match (proxy.on, proxy.intercepting) {
            (true, true) => "new connections are aggregated\n",
            (true, false) => "new connections are forwarded over one link: no server can be used\n",
            (false, _) => "new connections are forwarded over one link: switched off\n",
        };
    }
    page += &match &now.servers[..] {
        // A table of one row would say no more than a line.
        [server] => server_line(server),
        servers => servers::table(servers, verbose),
    };
    if let Some(wanted) = now.select.as_ref().and_then(|s| s.wanted.as_ref()) {
        page += &format!(
            "the operator chose server {wanted}: new connections go there while it answers\n"
        );
    }
    if let Some(pool) = now.idle_pool {
        let (ready, opening) = (pool.ready, pool.opening);
        page += &format!("idle connections to servers: {ready} ready, {opening} opening\n");
    }
    page.push('\n');
    page += &paths(now, before, verbose);
    page.push('\n');
    page += &tunnel::section(now.role, now.tunnel.as_ref());
    page += &connections(now, verbose);
    page += &counters(now);
    page
}

/// Returns the verdict in one word, and below it the reasons and remedies.
fn verdict(verdict: &Verdict) -> String {
    let mut text = format!("{}\n", verdict.health);
    for Reason {
        message, remedy, ..
    } in &verdict.reasons
    {
        text += &format!("  {message}\n    to do: {remedy}\n");
    }
    text
}

fn server_line(server: &ServerStatus) -> String {
    let addresses: Vec<String> = server.addresses.iter().map(ToString::to_string).collect();
    let state = servers::state(server);
    format!("server {}: {state}\n", addresses.join(", "))
}

fn paths(now: &Status, before: &Status, verbose: bool) -> String {
    use Align::{Left, Right};
    let name = match now.role {
        Role::Box => "link",
        Role::Server => "address",
    };
    let mut columns = Columns::new(&[
        (name, Left),
        ("state", Left),
        ("RTT", Right),
        ("loss in", Right),
        ("loss out", Right),
        ("score", Right),
        ("delivery rate", Right),
        ("in now", Right),
        ("out now", Right),
        ("subflows", Right),
        ("received", Right),
        ("sent", Right),
        ("copies", Right),
    ]);
    // After a restart counters begin at zero, and after a reload another path can have the same index. Their
    // differences would be no rates.
    let comparable = before.pid == now.pid && before.paths.len() == now.paths.len();
    let seconds = now.uptime_s - before.uptime_s;
    for (i, path) in now.paths.iter().enumerate() {
        let earlier = before.paths.get(i).filter(|_| comparable && seconds > 0.0);
        let current_rate = |bytes: fn(&PathStatus) -> u64| match earlier {
            Some(earlier) => {
                let moved = bytes(path).saturating_sub(bytes(earlier));
                units::rate(moved as f64 * 8.0 / seconds)
            }
            None => NONE.to_owned(),
        };
        let row = [
            path.name.clone(),
            path_state(path),
            or_none(path.rtt_ms, units::milliseconds),
            or_none(path.loss_received, units::percent),
            or_none(path.loss, units::percent),
            or_none(path.score, |score| format!("{score:.2}")),
            or_none(path.delivery_rate, units::rate),
            current_rate(|p| p.bytes_received),
            current_rate(|p| p.bytes_sent + p.bytes_retransmitted),
            path.subflows.to_string(),
            units::bytes(path.bytes_received),
            units::bytes(path.bytes_sent),
            units::bytes(path.bytes_copied),
        ];
        columns.row(row, Vec::new());
    }
    if !verbose {
        columns.hide(&["score"]);
    }
    columns.text()
}

fn path_state(path: &PathStatus) -> String {
    // The condition (captive portal, blocked) says more than the state, but not every path has one.
    let state = match (path.condition, path.state) {
        (Some(condition), _) => condition.to_string(),
        (None, PathState::Up) => "up".to_owned(),
        (None, PathState::NoAnswers) => "no answers".to_owned(),
        (None, PathState::MeteredStandby) => "standby (metered)".to_owned(),
        (None, PathState::Down) => "down".to_owned(),
        (None, PathState::Off) => "switched off".to_owned(),
    };
    let backup = if path.backup { ", backup" } else { "" };
    let default = if path.default { ", default" } else { "" };
    format!("{state}{backup}{default}")
}

fn connections(now: &Status, verbose: bool) -> String {
    use Align::{Left, Right};
    if now.connections.is_empty() {
        return format!("{} connections\n", now.connections_total);
    }
    let mut columns = Columns::new(&[
        ("user", Left),
        ("destination", Left),
        ("state", Left),
        ("age", Right),
        ("up", Right),
        ("down", Right),
        ("size", Right),
        ("class", Left),
        ("alpha", Right),
        ("urgency", Right),
        ("strategy", Left),
    ]);
    for conn in &now.connections {
        let below = conn.paths.iter().map(|p| path_of_conn(p, now.role));
        columns.row(row(conn), below.collect());
    }
    if !verbose {
        columns.hide(&["class", "alpha"]);
    }
    // A status carries the connections with the largest numbers of bytes only.
    let hidden = match now.connections_total.saturating_sub(now.connections.len()) {
        0 => String::new(),
        others => format!(" ({others} more, which moved fewer bytes, are not shown)"),
    };
    let noun = match now.connections_total {
        1 => "connection",
        _ => "connections",
    };
    format!(
        "{} {noun}{hidden}\n{}",
        now.connections_total,
        columns.text()
    )
}

fn row(conn: &ConnStatus) -> [String; 11] {
    let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| NONE.to_owned());
    // Before a connection is open, MPTCP is not negotiated yet.
    let fallback = if conn.state == "open" && !conn.mptcp {
        ", plain TCP"
    } else {
        ""
    };
    [
        or_none(&conn.user),
        match &conn.host {
            Some(host) => format!("{} ({host})", or_none(&conn.destination)),
            None => or_none(&conn.destination),
        },
        format!("{}{fallback}", conn.state),
        units::age(conn.age_s),
        units::bytes(conn.bytes_up),
        units::bytes(conn.bytes_down),
        size(conn),
        match conn.class {
            Class::Mosquito => "mosquito",
            Class::Mouse => "mouse",
            Class::Elephant => "elephant",
        }
        .to_owned(),
        format!("{:.2}", conn.alpha),
        conn.urgency.to_string(),
        conn.strategy.clone(),
    ]
}

fn size(conn: &ConnStatus) -> String {
    let size = conn.size.map_or_else(|| NONE.to_owned(), units::bytes);
    let source = match conn.size_from {
        SizeFrom::Unknown => "",
        SizeFrom::Predicted => " predicted",
        SizeFrom::Read => " read",
        SizeFrom::Declared => " declared",
    };
    format!("{size}{source}")
}

/// Returns the line about one subflow, below the row of its connection.
fn path_of_conn(path: &ConnPathStatus, role: Role) -> String {
    // A server's subflows share its local address, so there the remote address identifies the link.
    let name = match role {
        Role::Box => path.path.clone(),
        Role::Server => path.remote.to_string(),
    };
    let state = match path.state {
        SubflowState::Up => "",
        SubflowState::Backup => "backup, ",
        SubflowState::Stale => "silent, ",
        SubflowState::Opening => "opening, ",
        SubflowState::Gone => "gone, ",
    };
    let rtt = path
        .rtt_ms
        .map(|ms| format!("RTT {}, ", units::milliseconds(ms)));
    let loss = path.loss.filter(|loss| *loss > 0.0);
    let loss = loss.map(|loss| format!(" ({} lost)", units::percent(loss)));
    let copies = match path.bytes_copied {
        0 => String::new(),
        n => format!(", including {} of copies", units::bytes(n)),
    };
    format!(
        "{name}: {state}{}received {}, sent {}{copies}{}",
        rtt.unwrap_or_default(),
        units::bytes(path.bytes_received),
        units::bytes(path.bytes_sent),
        loss.unwrap_or_default(),
    )
}

fn counters(now: &Status) -> String {
    // A status has renamed counters under both names, for programs that read the JSON. A page shows the new one. A
    // process of an older version has only the old one.
    let is_old = |name: &str| {
        let mut renamed = RENAMED_COUNTERS.iter();
        renamed.any(|(old, new)| *old == name && now.counters.contains_key(*new))
    };
    let nonzero = now
        .counters
        .iter()
        .filter(|(name, n)| **n > 0 && !is_old(name));
    let entries: Vec<String> = nonzero
        .map(|(name, n)| match name.starts_with("bytes") {
            true => format!("{} {}", name.replace('_', " "), units::bytes(*n)),
            false => format!("{} {n}", name.replace('_', " ")),
        })
        .collect();
    match entries.is_empty() {
        true => String::new(),
        false => format!("\nsince the start: {}\n", entries.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use braid_proxy::report::RENAMED_COUNTERS;
    use braid_proxy::selection::Measured;
    use braid_proxy::status::{IdlePoolStatus, ProxyStatus, RulesStatus, StreamStatus};
    use braid_proxy::verdict::Condition;

    use super::*;

    fn path(name: &str, state: PathState, default: bool) -> PathStatus {
        PathStatus {
            name: name.to_owned(),
            state,
            condition: None,
            default,
            backup: false,
            rtt_ms: Some(40.2),
            loss: Some(0.0031),
            score: Some(0.75),
            delivery_rate: None,
            loss_received: Some(0.036),
            arrival_rate: None,
            subflows: 1,
            bytes_sent: 1_200,
            bytes_copied: 0,
            bytes_retransmitted: 0,
            bytes_received: 8_100_000,
        }
    }

    fn conn_path(name: &str, state: SubflowState) -> ConnPathStatus {
        ConnPathStatus {
            path: name.to_owned(),
            remote: [203, 0, 113, 7].into(),
            state,
            rtt_ms: Some(40.2),
            loss: Some(0.01),
            bytes_sent: 1_200,
            bytes_copied: 300,
            bytes_retransmitted: 0,
            bytes_received: 8_100_000,
            bytes_duplicate: 0,
            subflow: None,
        }
    }

    fn conn() -> ConnStatus {
        ConnStatus {
            id: 7,
            user: Some("192.168.1.20".to_owned()),
            destination: Some("198.51.100.1:443".to_owned()),
            host: Some("example.org".to_owned()),
            protocol: None,
            state: "open".to_owned(),
            age_s: 12.7,
            mptcp: true,
            size: Some(20_000_000),
            size_from: SizeFrom::Read,
            class: Class::Elephant,
            alpha: 0.0,
            urgency: 3,
            strategy: "minrtt".to_owned(),
            congestion: "cubic".to_owned(),
            bytes_up: 1_200,
            bytes_down: 8_100_000,
            stream: StreamStatus::default(),
            paths: vec![
                conn_path("dsl", SubflowState::Up),
                ConnPathStatus {
                    rtt_ms: None,
                    loss: None,
                    bytes_copied: 0,
                    ..conn_path("lte", SubflowState::Gone)
                },
            ],
        }
    }

    fn box_status() -> Status {
        Status {
            version: 2,
            verdict: Verdict::default(),
            role: Role::Box,
            name: "attic".to_owned(),
            pid: 4242,
            uptime_s: 4_350.0,
            strategy: "minrtt".to_owned(),
            congestion: "cubic".to_owned(),
            proxy: Some(ProxyStatus {
                on: true,
                intercepting: true,
            }),
            servers: vec![ServerStatus {
                name: "paris".to_owned(),
                measured: Measured::default(),
                condition: Condition::Working,
                over_links: vec![Condition::Working; 2],
                by_bandwidth: true,
                by_delay: true,
                families: braid_secure::Families::BOTH,
                protocol: None,
                addresses: vec!["203.0.113.7:1080".parse().unwrap()],
                reached: true,
                current: true,
                protected: true,
                destinations: Vec::new(),
            }],
            select: None,
            idle_pool: Some(IdlePoolStatus {
                ready: 2,
                opening: 1,
                most: 4,
            }),
            tunnel: None,
            rules: RulesStatus::Sound,
            paths: vec![
                path("dsl", PathState::Up, true),
                PathStatus {
                    rtt_ms: None,
                    loss: None,
                    score: None,
                    backup: true,
                    ..path("lte", PathState::Off, false)
                },
            ],
            connections_total: 3,
            connections: vec![conn()],
            counters: BTreeMap::from([
                ("accepted".to_owned(), 3),
                ("bytes_down".to_owned(), 8_100_000),
                ("retries".to_owned(), 0),
            ]),
        }
    }

    #[test]
    fn a_box_is_shown_as_a_page() {
        let mut before = box_status();
        before.uptime_s -= 2.0;
        // 5 MB in 2 s are 20 Mbit/s.
        before.paths[0].bytes_received -= 5_000_000;
        let expected = r#"working
box "attic", process 4242, up 1 h 12 min; strategy minrtt, congestion control cubic
new connections are aggregated
server 203.0.113.7:1080: working, in use
idle connections to servers: 2 ready, 1 opening

  link  state                   RTT  loss in  loss out  delivery rate       in now  out now  subflows  received    sent  copies
  dsl   up, default           40 ms    3.6 %     0.3 %              -  20.0 Mbit/s  0 bit/s         1    8.1 MB  1.2 kB     0 B
  lte   switched off, backup      -    3.6 %         -              -      0 bit/s  0 bit/s         1    8.1 MB  1.2 kB     0 B

3 connections (2 more, which moved fewer bytes, are not shown)
  user          destination                     state   age      up    down          size  urgency  strategy
  192.168.1.20  198.51.100.1:443 (example.org)  open   12 s  1.2 kB  8.1 MB  20.0 MB read        3  minrtt
      dsl: RTT 40 ms, received 8.1 MB, sent 1.2 kB, including 300 B of copies (1.0 % lost)
      lte: gone, received 8.1 MB, sent 1.2 kB

since the start: accepted 3, bytes down 8.1 MB
"#;
        assert_eq!(page(&box_status(), &before, false), expected);
    }

    #[test]
    fn the_values_of_strategies_are_shown_if_verbose() {
        let mut status = box_status();
        let mut other = status.servers[0].clone();
        other.name = "rome".to_owned();
        status.servers.push(other);
        let names = ["score", "class", "alpha", "elephant", "D_s"];
        let [default, verbose] = [false, true].map(|verbose| page(&status, &status, verbose));
        for name in names {
            assert!(!default.contains(name), "{name}: {default}");
            assert!(verbose.contains(name), "{name}: {verbose}");
        }
    }

    #[test]
    fn old_names_of_counters_are_for_json_only() {
        let mut status = box_status();
        for (old, new) in RENAMED_COUNTERS {
            status
                .counters
                .extend([(old.to_owned(), 1), (new.to_owned(), 1)]);
        }
        let page = page(&status, &status, false);
        for (old, new) in RENAMED_COUNTERS {
            let shown = |name: &str| page.contains(&format!(" {} 1", name.replace('_', " ")));
            assert!(shown(new) && !shown(old), "{old}: {page}");
        }
    }

    #[test]
    fn a_server_is_shown_by_the_boxes_addresses() {
        let server = Status {
            role: Role::Server,
            proxy: None,
            servers: Vec::new(),
            connections_total: 1,
            ..box_status()
        };
        let page = page(&server, &server, true);
        assert!(page.contains("\n      203.0.113.7: RTT 40 ms, "), "{page}");
        assert!(page.contains("\n1 connection\n"), "{page}");
        // Both statuses are of the same time, so there is no rate.
        assert!(
            page.contains("40 ms    3.6 %     0.3 %   0.75              -       -  "),
            "{page}"
        );
    }

    #[test]
    fn a_server_without_encryption_is_marked() {
        let mut status = box_status();
        status.servers[0].protected = false;
        let page = page(&status, &status, false);
        let line = "\nserver 203.0.113.7:1080: working, in use, not protected\n";
        assert!(page.contains(line), "{page}");
    }

    #[test]
    fn a_page_begins_with_the_problems() {
        let mut status = box_status();
        let wrong = Condition::CaptivePortal.link_problem("lte");
        status.verdict = Verdict::new(wrong.into_iter().collect());
        let page = page(&status, &status, false);
        let lines: Vec<&str> = page.lines().take(4).collect();
        assert_eq!(lines[0], "degraded");
        assert!(
            lines[1].starts_with("  link lte is behind a captive portal"),
            "{page}"
        );
        assert!(lines[2].starts_with("    to do: "), "{page}");
        assert!(lines[3].starts_with("box \"attic\""), "{page}");
    }

    #[test]
    fn a_page_says_why_nothing_is_aggregated() {
        let line = |on| {
            let mut status = box_status();
            let intercepting = false;
            status.proxy = Some(ProxyStatus { on, intercepting });
            let page = page(&status, &status, false);
            page.lines().nth(2).map(str::to_owned)
        };
        let why = "new connections are forwarded over one link: ";
        assert_eq!(line(true), Some(format!("{why}no server can be used")));
        assert_eq!(line(false), Some(format!("{why}switched off")));
    }

    #[test]
    fn a_box_that_is_idle_has_a_short_page() {
        let status = Status {
            connections_total: 0,
            connections: Vec::new(),
            counters: BTreeMap::new(),
            ..box_status()
        };
        assert!(page(&status, &status, false).ends_with("\n0 connections\n"));
    }
}
