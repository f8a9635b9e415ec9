//! Links whose networks interfere with Multipath TCP, and servers that cannot be used.

use core::time::Duration;

use braid_links::Settings;
use braid_links::middlebox::{Chain, Edit, OptionEdit, Scope, Target};
use braid_proxy::config::Select;
use braid_proxy::control::{Answer, Request};
use braid_proxy::status::Status;
use braid_proxy::verdict::{Condition, Health};
use braid_secure::keys::PrivateKey;
use braid_sim::aggregation::{Action, Aggregation, AggregationConfig, Load};
use braid_sim::transfer::PathSettings;

use crate::support::{dark, link, millis, secs, start};

/// Starts a network that removes the options of Multipath TCP on one link.
fn stripping(config: &AggregationConfig, link: usize) -> Aggregation {
    let chain = Chain::new().and(OptionEdit::new(Target::MPTCP, Scope::All, Edit::Remove));
    let mut net = Aggregation::with_middlebox(1, config, Some((link, chain))).unwrap();
    assert!(net.run_until_intercepting(), "no server was found");
    net.run_for(secs(2));
    net
}

/// Returns the payload rate of a link of `mbit`, bit/s.
fn payload_rate(mbit: f64) -> f64 {
    mbit * 1e6 * 1_400.0 / 1_500.0
}

/// Whichever link strips, and whichever is faster or nearer, connections get the rate of the clean link.
/// Once that link is dark, a new connection is served within 3 s.
#[test]
fn a_link_that_strips_draws_no_connections() {
    let links = [link(20, 40), link(4, 20)];
    for (order, stripped) in [([0, 1], 0), ([0, 1], 1), ([1, 0], 0), ([1, 0], 1)] {
        let config = AggregationConfig::new(order.map(|n| links[n].clone()).to_vec()).unwrap();
        let mut net = stripping(&config, stripped);
        let clean = 1 - stripped;
        let mbit = [20.0, 4.0][order[clean]];
        let id = net.open(0, 0, Load::Down(5_000_000)).unwrap();
        assert!(net.finish(secs(60)), "{:?}", net.at_user(id));
        let rate = 40e6 / net.duration(id).unwrap().as_secs_f64();
        let least = 0.9 * payload_rate(mbit);
        assert!(rate > least, "{order:?}, {stripped}: {rate} of {least}");
        net.after(
            secs(0),
            Action::Access {
                link: clean,
                settings: dark(config.access[clean].clone()),
            },
        );
        net.run_for(millis(10));
        let id = net.open(0, 0, Load::Down(10_000)).unwrap();
        net.run_for(secs(3));
        let got = net.at_user(id).received;
        assert_eq!(got, 10_000, "{order:?}, {stripped}");
    }
}

fn status(net: &mut Aggregation) -> Box<Status> {
    let Some(Answer::Status(status)) = net.ask(Request::Status) else {
        panic!("no status");
    };
    status
}

fn conditions(net: &mut Aggregation) -> Vec<Condition> {
    status(net).servers.iter().map(|s| s.condition).collect()
}

/// The network of one link drops packets to the server in use, and passes packets to the other server.
/// Both links and both servers work, and users get less than they pay for.
#[test]
fn a_way_that_carries_nothing_is_said_so() {
    let mut config = AggregationConfig::new(vec![link(20, 30), link(10, 70)]).unwrap();
    config.set_servers(2).unwrap();
    config.boxed.select = Select::Order;
    let clean = PathSettings::both(Settings::default());
    config.servers[0].from_access = vec![clean.clone(), *dark(clean)];
    let mut net = start(&config);
    net.run_for(secs(20));
    let status = status(&mut net);
    let links: Vec<_> = status.paths.iter().map(|l| l.condition).collect();
    assert_eq!(links, [Some(Condition::Working); 2]);
    let [reason] = &status.verdict.reasons[..] else {
        panic!("{:?}", status.verdict);
    };
    assert_eq!(status.verdict.health, Health::Degraded);
    assert_eq!(reason.code, "no-answers");
    let [link, server] = [&status.paths[1].name, &status.servers[0].name];
    assert_eq!(reason.subject, Some(format!("{link} to {server}")));
}

/// The preferred server cannot be used: no connection fails after the first 3 s.
#[test]
fn a_server_of_no_use_is_left_for_the_next() {
    let stranger = PrivateKey::from_seed([77; 32]);
    type Change = fn(&mut AggregationConfig, &PrivateKey);
    let cases: [(Change, Condition); 2] = [
        (
            |config, stranger| config.servers[0].config.users[0].key = stranger.public(),
            Condition::KeyRefused,
        ),
        (
            |config, stranger| config.boxed.servers[0].key = stranger.public(),
            Condition::WrongKey,
        ),
    ];
    for (change, condition) in cases {
        let mut config = AggregationConfig::new(vec![link(20, 30), link(10, 70)]).unwrap();
        config.set_servers(2).unwrap();
        change(&mut config, &stranger);
        let mut net = start(&config);
        net.run_for(secs(3));
        let users: Vec<_> = (0..30)
            .map(|_| {
                let id = net.open(0, 0, Load::Down(10_000)).unwrap();
                net.run_for(Duration::from_millis(200));
                id
            })
            .collect();
        net.run_for(secs(3));
        let served = users
            .iter()
            .filter(|id| net.at_user(**id).received == 10_000);
        assert_eq!(served.count(), 30, "{condition:?}");
        assert_eq!(conditions(&mut net), [condition, Condition::Working]);
    }
}
