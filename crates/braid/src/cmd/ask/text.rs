//! A status as a page of text.

use braid_proxy::status::{
    ConnPathStatus, ConnStatus, PathState, PathStatus, Role, ServerStatus, SizeFrom, Status,
    SubflowState,
};

use super::columns::{Align, Columns};
use super::units;

/// What is not known.
const NONE: &str = "-";

/// The word for box or server.
pub fn role(role: Role) -> &'static str {
    match role {
        Role::Box => "box",
        Role::Server => "server",
    }
}

/// The page. `before` is an earlier status: what moved since then makes the rates of now.
pub fn page(now: &Status, before: &Status) -> String {
    let mut page = format!(
        "{} {:?}, process {}, up {}; strategy {}, congestion control {}\n",
        role(now.role),
        now.name,
        now.pid,
        units::age(now.uptime_s),
        now.strategy,
        now.congestion
    );
    if let Some(proxy) = now.proxy {
        page += match (proxy.on, proxy.taking_in) {
            (true, true) => "new connections are joined\n",
            (true, false) => "new connections are forwarded unjoined: no server is reached\n",
            (false, _) => "new connections are forwarded unjoined: switched off\n",
        };
    }
    for server in &now.servers {
        page += &server_line(server);
    }
    page.push('\n');
    page += &paths(now, before);
    page.push('\n');
    page += &connections(now);
    page += &counters(now);
    page
}

fn server_line(server: &ServerStatus) -> String {
    let addresses: Vec<String> = server.addresses.iter().map(ToString::to_string).collect();
    let reached = if server.reached {
        "reached"
    } else {
        "not reached"
    };
    let current = if server.current { ", in use" } else { "" };
    format!("server {}: {reached}{current}\n", addresses.join(", "))
}

fn paths(now: &Status, before: &Status) -> String {
    use Align::{Left, Right};
    let name = match now.role {
        Role::Box => "link",
        Role::Server => "address",
    };
    let mut columns = Columns::new(&[
        (name, Left),
        ("state", Left),
        ("RTT", Right),
        ("loss", Right),
        ("can send", Right),
        ("in now", Right),
        ("out now", Right),
        ("subflows", Right),
        ("received", Right),
        ("sent", Right),
        ("copies", Right),
    ]);
    let same = before.pid == now.pid && before.paths.len() == now.paths.len();
    let seconds = now.uptime_s - before.uptime_s;
    for (i, path) in now.paths.iter().enumerate() {
        let earlier = before.paths.get(i).filter(|_| same && seconds > 0.0);
        let since = |moved: fn(&PathStatus) -> u64| match earlier {
            Some(e) => units::rate(moved(path).saturating_sub(moved(e)) as f64 * 8.0 / seconds),
            None => NONE.to_owned(),
        };
        let row = [
            path.name.clone(),
            path_state(path),
            or_none(path.rtt_ms, units::milliseconds),
            or_none(path.loss, units::percent),
            or_none(path.delivery_rate, units::rate),
            since(|p| p.bytes_received),
            since(|p| p.bytes_sent + p.bytes_retransmitted),
            path.subflows.to_string(),
            units::bytes(path.bytes_received),
            units::bytes(path.bytes_sent),
            units::bytes(path.bytes_copied),
        ];
        columns.row(row, Vec::new());
    }
    columns.text()
}

fn path_state(path: &PathStatus) -> String {
    let state = match path.state {
        PathState::Up => "up",
        PathState::Dark => "no answers",
        PathState::Spared => "spared (metered)",
        PathState::Down => "down",
        PathState::Off => "switched off",
    };
    let default = if path.default { ", default" } else { "" };
    format!("{state}{default}")
}

fn connections(now: &Status) -> String {
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
        ("known", Left),
        ("urgency", Right),
        ("strategy", Left),
    ]);
    for conn in &now.connections {
        let below = conn.paths.iter().map(|p| path_of_conn(p, now.role));
        columns.row(row(conn), below.collect());
    }
    let shown = match now.connections_total.saturating_sub(now.connections.len()) {
        0 => String::new(),
        others => format!(" (and {others} that moved less)"),
    };
    let noun = match now.connections_total {
        1 => "connection",
        _ => "connections",
    };
    format!(
        "{} {noun}{shown}\n{}",
        now.connections_total,
        columns.text()
    )
}

fn row(conn: &ConnStatus) -> [String; 10] {
    let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| NONE.to_owned());
    let fallback = if conn.state == "open" && !conn.mptcp {
        ", plain TCP"
    } else {
        ""
    };
    [
        or_none(&conn.user),
        or_none(&conn.destination),
        format!("{}{fallback}", conn.state),
        units::age(conn.age_s),
        units::bytes(conn.bytes_up),
        units::bytes(conn.bytes_down),
        conn.size.map_or_else(|| NONE.to_owned(), units::bytes),
        match conn.size_from {
            SizeFrom::Unknown => NONE,
            SizeFrom::Predicted => "predicted",
            SizeFrom::Read => "read",
            SizeFrom::Declared => "declared",
        }
        .to_owned(),
        conn.urgency.to_string(),
        conn.strategy.clone(),
    ]
}

fn path_of_conn(path: &ConnPathStatus, role: Role) -> String {
    // Of a server the interesting end is the box's.
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
        n => format!(", of it {} copies", units::bytes(n)),
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
    let counted = now.counters.iter().filter(|(_, n)| **n > 0);
    let counted: Vec<String> = counted
        .map(|(name, n)| match name.starts_with("bytes") {
            true => format!("{} {}", name.replace('_', " "), units::bytes(*n)),
            false => format!("{} {n}", name.replace('_', " ")),
        })
        .collect();
    match counted.is_empty() {
        true => String::new(),
        false => format!("\nsince the start: {}\n", counted.join(", ")),
    }
}

fn or_none(value: Option<f64>, text: fn(f64) -> String) -> String {
    value.map_or_else(|| NONE.to_owned(), text)
}
