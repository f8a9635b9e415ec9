//! Turns the results of the probes into findings.

use std::io;
use std::net::IpAddr;

use braid_proxy::config::{BoxConfig, Finding, Protection, Verdict, weigh};
use braid_proxy::status::Status;
use braid_proxy::trial::{Multipath, TrialEnd, TrialReport};

use super::echo::Echoes;
use super::next_hop::Neighbour;
use super::probe_result::{ProbeResult, ProbedPair};

/// The MTU in bytes that every IPv6 link must support (RFC 8200 section 5).
const MIN_MTU: u16 = 1_280;

/// Reports that the links could not be probed.
pub(super) fn not_possible(subject: &str, error: &str) -> Finding {
    let message = format!("nothing was sent: {error}");
    let remedy = "run the check as root, one at a time";
    Finding::new(
        Verdict::CouldNotCheck,
        ("link.tcp", subject),
        message,
        remedy,
    )
}

/// Reports whether the gateway of a link answers.
pub(super) fn next_hop(link: &str, gateway: IpAddr, state: Neighbour) -> Finding {
    let id_and_subject = ("link.next_hop", format!("link {link}"));
    match state {
        Neighbour::Answers => Finding::ok(id_and_subject, format!("gateway {gateway} answers")),
        Neighbour::Silent => {
            let message = format!(
                "gateway {gateway} does not answer: it is off, or not on this link; the link cannot send packets \
                 through it"
            );
            let remedy =
                "check that the modem or router of this link is on, and has the gateway's address";
            Finding::warning(id_and_subject, message, remedy).healing()
        }
    }
}

/// Reports on all links and servers. A link that reaches no server is a failure only if no other link reaches a
/// server.
pub(super) fn links(
    config: &BoxConfig,
    results: &[(ProbedPair<'_>, &ProbeResult)],
) -> Vec<Finding> {
    let mut found = Vec::new();
    let is_signed_in = |found: &ProbeResult| {
        let trial = found.trial.as_ref();
        trial.is_ok_and(|report| report.end == TrialEnd::SignedIn)
    };
    let links = config.links.iter();
    let failed_links = links.filter(|link| {
        let mut of_link = results.iter().filter(|(about, _)| about.link == link.name);
        !of_link.any(|(_, found)| is_signed_in(found))
    });
    let failed_links = failed_links.count();
    for (about, result) in results {
        let mut trial = of_trial(about, &result.trial);
        weigh(
            config.links.len(),
            failed_links,
            &mut trial,
            "no link reaches a server, so users' connections are forwarded over one link, unprotected",
        );
        // The cause may end without a change of the configuration, for example when the server is back.
        found.extend(trial.into_iter().map(Finding::healing));
        let opened = result.trial.as_ref().is_ok_and(|r| r.opened.is_some());
        found.extend(of_echoes(about, &result.echoes, opened));
    }
    found
}

fn of_trial(about: &ProbedPair<'_>, trial: &io::Result<TrialReport>) -> Vec<Finding> {
    let report = match trial {
        Ok(report) => report,
        Err(error) => {
            let message = format!("this machine cannot send there: {error}");
            let remedy = "check `ip route get` and the firewall's rules for outgoing packets";
            return vec![Finding::warning(
                ("link.tcp", about.subject()),
                message,
                remedy,
            )];
        }
    };
    let Some(rtt) = report.opened else {
        return vec![unopened(about, report.end)];
    };
    let milliseconds = rtt.as_secs_f64() * 1e3;
    let message = format!("TCP reaches the server, round trip {milliseconds:.1} ms");
    let tcp = Finding::ok(("link.tcp", about.subject()), message);
    let [mptcp, server] = [of_multipath(about, report), of_end(about, report.end)];
    [tcp].into_iter().chain(mptcp).chain(server).collect()
}

/// Reports that nothing answered the SYN, or that something refused it.
fn unopened(about: &ProbedPair<'_>, end: TrialEnd) -> Finding {
    let id_and_subject = ("link.tcp", about.subject());
    let port = about.remote.port();
    let (message, remedy) = match end {
        TrialEnd::Refused => (
            format!("the server's machine refuses port {port}: no server listens there, or a firewall rejects it"),
            format!(
                "start the server, compare `port` in both files, and open TCP port {port} in the server's \
                 firewall"
            ),
        ),
        TrialEnd::Unreachable => (
            "a router reports that the server is unreachable: the link is down behind its first hop, or has no \
             route for this address family"
                .to_owned(),
            "check that the link's router is online; if the link lacks this address family, write v4 = false or \
             v6 = false at the link"
                .to_owned(),
        ),
        _ => (
            "no answer within the timeout, with and without Multipath TCP: the link carries nothing, the server \
             is off, or a firewall drops the packets"
                .to_owned(),
            format!(
                "check that the link works at all; start the server; open TCP port {port} in the server's \
                 firewall and at its provider"
            ),
        ),
    };
    Finding::warning(id_and_subject, message, remedy)
}

fn of_multipath(about: &ProbedPair<'_>, report: &TrialReport) -> Option<Finding> {
    let id_and_subject = ("link.mptcp", about.subject());
    let harm = "connections that open over this link use it alone, or do not open at all";
    let remedy = "ask the link's provider, or use another server port (443 often passes) or a VPN over this \
                  link; if all links have this problem, the middlebox is near the server";
    match report.multipath? {
        // A middlebox may remove Multipath TCP once data flows, so only a complete trial shows that Multipath
        // TCP passes.
        Multipath::Intact if report.end != TrialEnd::SignedIn => None,
        Multipath::Intact => Some(Finding::ok(id_and_subject, "Multipath TCP passes")),
        Multipath::Stripped => Some(Finding::warning(
            id_and_subject,
            format!("a middlebox removes the options of Multipath TCP (stripped): {harm}"),
            remedy,
        )),
        Multipath::Blocked => Some(Finding::warning(
            id_and_subject,
            format!(
                "a middlebox drops the packets that open Multipath TCP, others pass (blocked): {harm}, and each \
                 attempt costs seconds"
            ),
            remedy,
        )),
        Multipath::Lost(cause) => Some(Finding::warning(
            id_and_subject,
            format!(
                "Multipath TCP opens, but a middlebox changes what follows ({cause:?}): {harm}"
            ),
            remedy,
        )),
    }
}

fn of_end(about: &ProbedPair<'_>, end: TrialEnd) -> Option<Finding> {
    let id_and_subject = |id| (id, about.subject());
    let warn = |id, message: &str, remedy: &str| {
        Some(Finding::warning(id_and_subject(id), message, remedy))
    };
    let key = "compare `key` of the server in box.toml with `braid key show server.key` there, and `key` of \
               the user in server.toml with `braid key show box.key` here";
    match end {
        TrialEnd::SignedIn if about.server.protection == Protection::None => Some(Finding::ok(
            id_and_subject("link.server"),
            "the server accepts the password",
        )),
        TrialEnd::SignedIn => Some(Finding::ok(
            id_and_subject("link.server"),
            "the server knows this box's key",
        )),
        TrialEnd::WebPage => warn(
            "link.portal",
            "a web page answers in the server's place: a captive portal wants a login, and until then the link is \
             not used",
            "open a web page over this link and log in, as in the wireless network of a hotel",
        ),
        TrialEnd::NoServer => warn(
            "link.server",
            "the peer is not a Braid server, or has a different version; this server is not used over this link",
            "check address, port and versions: compare `address` and `port` in box.toml with `listen` and \
             `port` in server.toml",
        ),
        TrialEnd::CutOff => warn(
            "link.portal",
            "the connection opens and is cut off after the first bytes: a captive portal or a filter is on the \
             path, or another program has the server's port",
            "open a web page over this link and log in if a portal asks; compare address and port in both files",
        ),
        TrialEnd::Pending => warn(
            "link.server",
            "the connection opens, and no answer comes to the first bytes: a filter on the path drops them, or \
             another program has the server's port",
            "compare address and port in both files; check whether other links reach the server",
        ),
        TrialEnd::Broken(broken) => {
            let (kind, meaning) = broken.at_box();
            let message = format!("{kind}: {meaning}; the box does not use this server");
            warn("link.server", &message, key)
        }
        TrialEnd::PasswordRefused => warn(
            "link.server",
            "the server does not accept the box's password: it does not know the box's key, the clocks differ \
             by more than `time_window`, or it requires protected connections",
            key,
        ),
        TrialEnd::Refused | TrialEnd::Unreachable => warn(
            "link.server",
            "the connection opens and ends at once: the server is overloaded, or a middlebox ends it",
            "look in the server's log",
        ),
    }
}

fn of_echoes(about: &ProbedPair<'_>, echoes: &io::Result<Echoes>, opened: bool) -> Vec<Finding> {
    let not_checked =
        |id, message: String| Finding::new(Verdict::NotChecked, (id, about.subject()), message, "");
    let echoes = match echoes {
        Ok(echoes) => echoes,
        Err(error) => {
            return vec![not_checked(
                "link.mtu",
                format!("this machine cannot send there: {error}"),
            )];
        }
    };
    // If no TCP connection opened either, the finding on TCP has already reported that nothing passes.
    if !opened && *echoes == Echoes::default() {
        return Vec::new();
    }
    let udp = match echoes.udp {
        true => Finding::ok(
            ("link.udp", about.subject()),
            "UDP reaches the server's machine",
        ),
        false => not_checked(
            "link.udp",
            "the server's machine does not report whether UDP arrives; only a running box shows it (link.tunnel)"
                .to_owned(),
        ),
    };
    vec![udp, of_size(about, echoes)]
}

fn of_size(about: &ProbedPair<'_>, echoes: &Echoes) -> Finding {
    let id_and_subject = || ("link.mtu", about.subject());
    match echoes.largest {
        None => Finding::new(
            Verdict::NotChecked,
            id_and_subject(),
            "the server's machine does not answer pings, so the largest packet size is unknown",
            "",
        ),
        Some(size) if size == about.mtu => Finding::ok(
            id_and_subject(),
            format!("packets of {size} bytes pass, which is the MTU of the link"),
        ),
        Some(size) if size < MIN_MTU => Finding::warning(
            id_and_subject(),
            format!(
                "packets of {size} bytes come back, but none of {MIN_MTU} bytes: large transfers over this link \
                 stall again and again"
            ),
            "ask the link's provider",
        ),
        Some(size) if echoes.size_reported => {
            let message = format!(
                "packets of {size} bytes pass, and routers report larger ones as too large"
            );
            Finding::ok(id_and_subject(), message)
        }
        Some(size) => Finding::warning(
            id_and_subject(),
            format!(
                "packets above {size} bytes vanish without a report (the MTU of the link is {}): Braid detects \
                 this, but forwarded connections of users may stall",
                about.mtu
            ),
            format!("write mtu = {size} at the link, or set the MTU of the interface"),
        ),
    }
}

/// Reports over which links datagrams of the tunnel arrive, as the running box knows it. Without a running box that has
/// a tunnel, nothing is reported.
pub(super) fn tunnel(config: &BoxConfig, status: Option<&Status>) -> Vec<Finding> {
    let tunnel = status.and_then(|status| status.tunnel.as_ref());
    let session = tunnel.and_then(|tunnel| tunnel.sessions.first());
    let paths = session.map_or(&[][..], |session| &session.paths);
    let works_somewhere = paths.iter().any(|path| path.usable);
    let mut found = Vec::new();
    for link in &config.links {
        let Some(path) = paths.iter().find(|path| path.name == link.name) else {
            continue;
        };
        let id_and_subject = ("link.tunnel", format!("link {}", link.name));
        found.push(match (path.usable, works_somewhere) {
            (true, _) => Finding::ok(id_and_subject, "datagrams of the tunnel (UDP) arrive"),
            (false, true) => Finding::warning(
                id_and_subject,
                "no datagrams (UDP) come back over this link: it carries connections only, and all other traffic \
                 uses the other links",
                "allow UDP to the server's port in this link's network, or ask its provider",
            ),
            (false, false) => Finding::warning(
                id_and_subject,
                "no datagrams (UDP) come back over any link: all traffic other than TCP is forwarded over one link, \
                 unprotected",
                "allow UDP to the server's port in the firewalls of the server and of the links' networks",
            ),
        });
    }
    found
}

/// Reports the rates of the links, which only a running box measures.
pub(super) fn rates(config: &BoxConfig, status: Option<&Status>) -> Vec<Finding> {
    let not_measured = |subject: String, remedy: &str| {
        let message = "not measured";
        Finding::new(Verdict::NotChecked, ("link.rate", subject), message, remedy)
    };
    let Some(status) = status else {
        let remedy = "start the box and check again after it has carried traffic, or run: \
                      braid box servers --probe";
        return vec![not_measured("links".to_owned(), remedy)];
    };
    let mut found = Vec::new();
    for (index, link) in config.links.iter().enumerate() {
        // Measurements of servers cover the direction towards users only. A server's own link may be slower than this
        // link, so the highest rate of all servers counts. In the other direction only the delivery rate of users'
        // data is known.
        let down = status.servers.iter().filter_map(|server| {
            let path = server.measured.paths.get(index)?;
            path.bandwidth
        });
        let down = down.reduce(f64::max);
        let up = status.paths.get(index).and_then(|path| path.delivery_rate);
        let subject = format!("link {}", link.name);
        if down.is_none() && up.is_none() {
            found.push(not_measured(subject, "run: braid box servers --probe"));
            continue;
        }
        let text = |rate: Option<f64>| match rate {
            Some(rate) => format!("{:.1} Mbit/s", rate / 1e6),
            None => "not measured".to_owned(),
        };
        let message = format!(
            "free bandwidth towards users {}, delivery rate from users {}",
            text(down),
            text(up)
        );
        found.push(Finding::ok(("link.rate", subject), message));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use braid_engine::FallbackCause;
    use braid_proxy::tunnel_status::{TunnelPathStatus, TunnelSessionStatus, TunnelStatus};
    use braid_secure::channel::ChannelError;
    use braid_secure::keys::PrivateKey;

    use super::*;

    fn config() -> BoxConfig {
        let key = PrivateKey::generate([2; 32]).public();
        let text = format!(
            "lan = \"eth0\"\n[[link]]\ninterface = \"wlan0\"\n[[link]]\ninterface = \"wwan0\"\n\
             [server]\naddress = \"203.0.113.7\"\nkey = \"{key}\"\n"
        );
        BoxConfig::with_key("box.toml", &text, PrivateKey::generate([1; 32])).unwrap()
    }

    const GOOD: TrialReport = TrialReport {
        opened: Some(Duration::from_millis(20)),
        multipath: Some(Multipath::Intact),
        end: TrialEnd::SignedIn,
    };

    fn found(trial: TrialReport) -> ProbeResult {
        ProbeResult {
            trial: Ok(trial),
            echoes: Ok(Echoes {
                largest: Some(1_500),
                size_reported: false,
                udp: true,
            }),
        }
    }

    /// Returns the findings on the second link. The first link works if `other_good` is true, and otherwise has
    /// the same result as the second link.
    fn judged(found_there: ProbeResult, other_good: bool) -> Vec<Finding> {
        let config = config();
        let about = |link| ProbedPair {
            link,
            server: &config.servers[0],
            remote: config.servers[0].endpoint_v4().unwrap(),
            mtu: 1_500,
        };
        let good = found(GOOD);
        let first = if other_good { &good } else { &found_there };
        let results = [(about("wlan0"), first), (about("wwan0"), &found_there)];
        let links = links(&config, &results).into_iter();
        links
            .filter(|f| f.subject.starts_with("link wwan0"))
            .collect()
    }

    fn verdicts(findings: &[Finding]) -> Vec<(&str, Verdict)> {
        findings.iter().map(|f| (f.id, f.verdict)).collect()
    }

    #[test]
    fn a_good_link_passes_all_checks() {
        let ids = [
            "link.tcp",
            "link.mptcp",
            "link.server",
            "link.udp",
            "link.mtu",
        ];
        let all = ids.map(|id| (id, Verdict::Ok));
        assert_eq!(verdicts(&judged(found(GOOD), true)), all);
    }

    #[test]
    fn a_gateway_that_is_silent_is_named() {
        let gateway = "192.0.2.1".parse().unwrap();
        assert!(!next_hop("wlan0", gateway, Neighbour::Answers).is_bad());
        let silent = next_hop("wlan0", gateway, Neighbour::Silent);
        assert_eq!(
            (silent.verdict, silent.subject.as_str()),
            (Verdict::Warning, "link wlan0")
        );
        assert!(silent.message.contains("192.0.2.1 does not answer") && silent.may_heal);
    }

    #[test]
    fn each_end_of_a_trial_has_its_name() {
        let bad = |end, multipath| TrialReport {
            end,
            multipath,
            ..GOOD
        };
        let signed = TrialEnd::SignedIn;
        for (trial, id, words) in [
            (
                bad(signed, Some(Multipath::Stripped)),
                "link.mptcp",
                "(stripped)",
            ),
            (
                bad(signed, Some(Multipath::Blocked)),
                "link.mptcp",
                "(blocked)",
            ),
            (
                bad(signed, Some(Multipath::Lost(FallbackCause::DataPlain))),
                "link.mptcp",
                "changes what follows",
            ),
            (
                bad(TrialEnd::WebPage, None),
                "link.portal",
                "captive portal",
            ),
            (
                bad(TrialEnd::CutOff, None),
                "link.portal",
                "cut off after the first bytes",
            ),
            (
                bad(TrialEnd::NoServer, None),
                "link.server",
                "not a Braid server",
            ),
            (
                bad(TrialEnd::Pending, None),
                "link.server",
                "no answer comes",
            ),
            (
                bad(TrialEnd::PasswordRefused, None),
                "link.server",
                "password",
            ),
            (
                bad(TrialEnd::Broken(ChannelError::WrongKey), None),
                "link.server",
                "wrong key: the server does not have the key",
            ),
        ] {
            let findings = judged(found(trial), true);
            let bad: Vec<&Finding> = findings.iter().filter(|f| f.is_bad()).collect();
            let [finding] = bad[..] else {
                panic!("{findings:#?}")
            };
            assert_eq!((finding.id, finding.verdict), (id, Verdict::Warning));
            assert!(finding.message.contains(words), "{words:?} in {finding:#?}");
            assert!(!finding.remedy.is_empty() && !finding.refuses_start());
        }
    }

    #[test]
    fn nothing_works_where_no_link_reaches_a_server() {
        let failed_links = || ProbeResult {
            trial: Ok(TrialReport {
                opened: None,
                multipath: None,
                end: TrialEnd::Pending,
            }),
            echoes: Ok(Echoes::default()),
        };
        assert_eq!(
            verdicts(&judged(failed_links(), true)),
            [("link.tcp", Verdict::Warning)]
        );
        let all = judged(failed_links(), false);
        assert_eq!(verdicts(&all), [("link.tcp", Verdict::Failure)]);
        assert!(all[0].message.contains("no link reaches a server"));
    }

    #[test]
    fn lost_sizes_are_worse_than_reported_ones() {
        for (largest, size_reported, verdict) in [
            (Some(1_500), false, Verdict::Ok),
            (Some(1_492), true, Verdict::Ok),
            (Some(1_400), false, Verdict::Warning),
            (Some(100), true, Verdict::Warning),
            (None, false, Verdict::NotChecked),
        ] {
            let with = ProbeResult {
                echoes: Ok(Echoes {
                    largest,
                    size_reported,
                    udp: false,
                }),
                ..found(GOOD)
            };
            let findings = judged(with, true);
            let [.., udp, size] = &findings[..] else {
                panic!("{findings:#?}")
            };
            assert_eq!((udp.id, udp.verdict), ("link.udp", Verdict::NotChecked));
            assert_eq!((size.id, size.verdict), ("link.mtu", verdict), "{size:#?}");
        }
    }

    #[test]
    fn a_link_over_which_no_datagram_comes_back_is_named() {
        let path = |name: &str, usable| TunnelPathStatus {
            name: name.to_owned(),
            usable,
            datagrams_sent: 9,
            bytes_sent: 900,
            datagrams_lost: 0,
            datagrams_received: 0,
            bytes_received: 0,
            rtt_ms: None,
            rate: None,
        };
        let judged = |first, second| {
            let session = TunnelSessionStatus {
                paths: vec![path("wlan0", first), path("wwan0", second)],
                ..TunnelSessionStatus::default()
            };
            let tunnel = TunnelStatus {
                sessions: vec![session],
                ..TunnelStatus::default()
            };
            let text = r#"{"version": 2, "role": "box", "name": "", "pid": 1, "uptime_s": 1.0, "strategy": "",
                "congestion": "", "verdict": {"health": "working", "reasons": []}, "paths": [],
                "connections_total": 0, "connections": [], "counters": {}}"#;
            let mut status: Status = serde_json::from_str(text).unwrap();
            status.tunnel = Some(tunnel);
            let found = super::tunnel(&config(), Some(&status));
            found.iter().map(|f| f.is_bad()).collect::<Vec<_>>()
        };
        assert_eq!(judged(true, true), [false, false]);
        assert_eq!(judged(true, false), [false, true]);
        assert_eq!(judged(false, false), [true, true]);
        assert!(tunnel(&config(), None).is_empty());
    }

    #[test]
    fn rates_are_those_of_the_box_that_runs() {
        let none = rates(&config(), None);
        assert_eq!(verdicts(&none), [("link.rate", Verdict::NotChecked)]);
    }
}
