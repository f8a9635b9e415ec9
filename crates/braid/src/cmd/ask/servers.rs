//! The table of servers, in the form of table 1 of the T-MPTCP paper: bandwidth and delay of each path and of the
//! server's egress, and the criteria (bandwidth, delay) by which a server is the best.

use braid_proxy::selection::{Measured, Quality};
use braid_proxy::status::{DestinationStatus, ServerStatus};
use braid_secure::Families;
use braid_secure::channel::Versions;

use super::columns::{Align, Columns};
use super::units::{self, or_none};

/// Returns the table as text. `with_measurements` includes bandwidth (B) and delay (D).
pub fn table(servers: &[ServerStatus], with_measurements: bool) -> String {
    let path_count = servers.iter().map(|s| s.measured.paths.len()).max();
    let path_count = path_count.unwrap_or(0);
    // The paper's names: B_1 and D_1 for the first path, B_s and D_s for the server's egress.
    let indices = (1..=path_count).map(|n| n.to_string());
    let indices = indices.chain(["s".to_owned()]);
    let measured = indices.flat_map(|index| [format!("B_{index}"), format!("D_{index}")]);
    let measured: Vec<String> = measured.collect();
    let measured: Vec<&str> = measured.iter().map(String::as_str).collect();
    let mut headings = vec![("server", Align::Left), ("state", Align::Left)];
    headings.extend(measured.iter().map(|heading| (*heading, Align::Right)));
    headings.push(("chosen", Align::Left));
    let mut columns = Columns::new(&headings);
    for server in servers {
        let Measured { paths, egress } = &server.measured;
        // A server that no link has reached yet has fewer measurements than the other servers.
        let missing = path_count - paths.len();
        let qualities = paths.iter().copied();
        let qualities = qualities.chain(std::iter::repeat_n(Quality::default(), missing));
        let mut cells = vec![server.name.clone(), state(server)];
        cells.extend(qualities.chain([*egress]).flat_map(quality));
        cells.push(best_by(server).to_owned());
        let with_measurements = server.destinations.iter().filter(|_| with_measurements);
        columns.row(cells, with_measurements.map(destination).collect());
    }
    if !with_measurements {
        columns.hide(&measured);
    }
    columns.text()
}

/// Returns the cells for bandwidth and delay.
fn quality(quality: Quality) -> [String; 2] {
    [
        or_none(quality.bandwidth, units::rate),
        or_none(quality.delay_ms, units::milliseconds),
    ]
}

/// Returns a server's state, with remarks for an operator: new connections go to the server, it reaches only one
/// address family, its connections are not encrypted, or its release is older than this one.
pub fn state(server: &ServerStatus) -> String {
    let in_use = match server.reached && server.current {
        true => ", in use",
        false => "",
    };
    let plaintext = match server.protected {
        true => "",
        false => ", not protected",
    };
    let families = match server.families {
        Families::BOTH => String::new(),
        Families {
            v4: false,
            v6: false,
        } => ", reaches no destinations".to_owned(),
        one_family => format!(", reaches {one_family} only"),
    };
    let older = match &server.protocol {
        Some(protocol) if protocol.version < Versions::OURS.newest() => ", older release",
        _ => "",
    };
    format!("{}{in_use}{families}{plaintext}{older}", server.condition)
}

/// Returns the line of destinations with a choice of their own.
fn destination(destination: &DestinationStatus) -> String {
    let criterion = match destination.by_delay {
        true => "delay",
        false => "bandwidth",
    };
    format!("also to {}, by {criterion}", destination.prefix)
}

/// Returns the criteria by which the server is the best one.
fn best_by(server: &ServerStatus) -> &'static str {
    match (server.by_bandwidth, server.by_delay) {
        (true, true) => "by bandwidth, by delay",
        (true, false) => "by bandwidth",
        (false, true) => "by delay",
        (false, false) => "",
    }
}

#[cfg(test)]
mod tests {
    use braid_proxy::status::ProtocolStatus;
    use braid_proxy::verdict::Condition;

    use super::*;

    fn quality(mbit: f64, ms: f64) -> Quality {
        Quality {
            bandwidth: Some(mbit * 1e6),
            delay_ms: Some(ms),
        }
    }

    #[test]
    fn the_table_looks_as_in_the_paper() {
        let server = |name: &str, paths: &[Quality], egress| ServerStatus {
            name: name.to_owned(),
            addresses: Vec::new(),
            reached: name != "oslo",
            current: name == "rome",
            condition: match name {
                "oslo" => Condition::NoAnswers,
                _ => Condition::Working,
            },
            over_links: Vec::new(),
            families: Families {
                v4: true,
                v6: name != "bern",
            },
            protected: name != "oslo",
            protocol: (name == "bern").then(|| ProtocolStatus {
                version: Versions::OURS.newest() - 1,
                features: Vec::new(),
            }),
            measured: Measured {
                paths: paths.to_vec(),
                egress,
            },
            by_bandwidth: name == "rome",
            by_delay: name == "bern",
            destinations: match name {
                "bern" => vec![DestinationStatus {
                    prefix: "198.51.100.0/24".to_owned(),
                    by_delay: false,
                }],
                _ => Vec::new(),
            },
        };
        let servers = [
            server(
                "bern",
                &[quality(22.63, 44.6), quality(15.38, 64.34)],
                quality(98.4, 36.05),
            ),
            server(
                "rome",
                &[quality(27.57, 53.97), quality(19.75, 67.66)],
                Quality::default(),
            ),
            server("oslo", &[], Quality::default()),
        ];
        let expected = "  \
server  state                                              B_1    D_1          B_2    D_2          B_s    D_s  chosen
  bern    working, reaches IPv4 only, older release  22.6 Mbit/s  45 ms  15.4 Mbit/s  64 ms  98.4 Mbit/s  36 ms  by delay
      also to 198.51.100.0/24, by bandwidth
  rome    working, in use                            27.6 Mbit/s  54 ms  19.8 Mbit/s  68 ms            -      -  by bandwidth
  oslo    no answers, not protected                            -      -            -      -            -      -
";
        assert_eq!(table(&servers, true), expected);
        let expected = "  \
server  state                                      chosen
  bern    working, reaches IPv4 only, older release  by delay
  rome    working, in use                            by bandwidth
  oslo    no answers, not protected
";
        assert_eq!(table(&servers, false), expected);
    }
}
