//! Servers as a table, in the form of table 1 of T-MPTCP: bandwidth and delay of each path and of the server's
//! egress, and the criteria by which a server is chosen.

use braid_proxy::selection::{Measured, Quality};
use braid_proxy::status::ServerStatus;
use braid_secure::Families;
use braid_secure::channel::Versions;

use super::columns::{Align, Columns};
use super::units::{self, or_none};

/// Returns the table as text, with the measurements if `measured`.
pub fn table(servers: &[ServerStatus], measured: bool) -> String {
    let paths = servers.iter().map(|s| s.measured.paths.len()).max();
    let paths = paths.unwrap_or(0);
    let places = (1..=paths).map(|n| n.to_string()).chain(["s".to_owned()]);
    let heads = places.flat_map(|place| [format!("B_{place}"), format!("D_{place}")]);
    let heads: Vec<String> = heads.collect();
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let mut columns = vec![("server", Align::Left), ("state", Align::Left)];
    columns.extend(heads.iter().map(|head| (*head, Align::Right)));
    columns.push(("chosen", Align::Left));
    let mut columns = Columns::new(&columns);
    for server in servers {
        let Measured {
            paths: over,
            egress,
        } = &server.measured;
        let missing = paths - over.len();
        let all = over.iter().copied();
        let all = all.chain(std::iter::repeat_n(Quality::default(), missing));
        let mut cells = vec![server.name.clone(), state(server)];
        cells.extend(all.chain([*egress]).flat_map(quality));
        cells.push(chosen(server).to_owned());
        columns.row(cells, Vec::new());
    }
    if !measured {
        columns.hide(&heads);
    }
    columns.text()
}

fn quality(quality: Quality) -> [String; 2] {
    [
        or_none(quality.bandwidth, units::rate),
        or_none(quality.delay_ms, units::milliseconds),
    ]
}

/// Returns a server's state, whether new connections go there, the destinations that it does not reach, and
/// whether it is to be updated.
pub fn state(server: &ServerStatus) -> String {
    let in_use = match server.reached && server.current {
        true => ", in use",
        false => "",
    };
    let plaintext = match server.protected {
        true => "",
        false => ", not protected",
    };
    let one_family = match server.families {
        Families::BOTH => String::new(),
        Families {
            v4: false,
            v6: false,
        } => ", reaches no destinations".to_owned(),
        families => format!(", reaches {families} only"),
    };
    let older = match &server.protocol {
        Some(protocol) if protocol.version < Versions::OURS.newest() => ", older release",
        _ => "",
    };
    format!("{}{in_use}{one_family}{plaintext}{older}", server.condition)
}

fn chosen(server: &ServerStatus) -> &'static str {
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
    fn it_looks_as_in_the_paper() {
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
