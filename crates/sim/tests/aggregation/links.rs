//! Links that are used only when no other works (`backup`, `metered` of `box.toml`).

use braid_proxy::control::{Answer, Request};
use braid_sim::aggregation::{Action, Aggregation, Load};

use crate::support::{dark, millis, secs, start, two_links};

/// Returns the bytes that each link carried from the box and to it, headers included.
fn carried(net: &Aggregation) -> [[u64; 2]; 2] {
    let bytes = |line| net.world.counters(line).delivered.bytes;
    [0, 1].map(|link| [net.access[link].0, net.access[link].1].map(bytes))
}

/// Returns the bytes that each link carried to the box, headers included.
fn delivered(net: &Aggregation) -> [u64; 2] {
    carried(net).map(|[_, down]| down)
}

/// Downloads for 8 s at least, with the first link out from the 2nd to the 4th second. Returns the bytes
/// of each link before, during and after the outage.
fn around_an_outage(net: &mut Aggregation) -> Vec<[u64; 2]> {
    let id = net.open(0, 0, Load::Down(16_000_000)).unwrap();
    net.after(secs(2), Action::Carrier { link: 0, up: false });
    net.after(secs(4), Action::Carrier { link: 0, up: true });
    let mut before = delivered(net);
    let mut parts = Vec::new();
    for part in [secs(2), secs(2), secs(3)] {
        net.run_for(part);
        let now = delivered(net);
        parts.push([0, 1].map(|link| now[link] - before[link]));
        before = now;
    }
    assert!(net.finish(secs(60)));
    assert_eq!(net.at_user(id).received, 16_000_000);
    parts
}

#[test]
fn a_backup_link_carries_data_only_while_no_other_can() {
    let mut config = two_links();
    config.boxed.links[1].backup = true;
    let mut net = start(&config);
    let parts = around_an_outage(&mut net);
    // The backup link carries joins and probes, no more.
    assert!(parts[0][1] < 5_000, "{parts:?}");
    assert!(parts[0][0] > 4_000_000, "{parts:?}");
    // 10 Mbit/s for 2 s, less the start.
    assert!(parts[1][1] > 1_800_000, "{parts:?}");
    assert!(parts[2][1] < 300_000, "{parts:?}");
    assert!(parts[2][0] > 6_000_000, "{parts:?}");
}

/// A change at run time takes effect at once, in both directions, for existing connections.
#[test]
fn a_link_that_is_made_a_backup_rests_until_it_is_needed() {
    let config = two_links();
    let mut net = start(&config);
    let order = |net: &mut Aggregation, on| {
        let name = config.boxed.links[1].name.clone();
        let answer = net.ask(Request::Backup { name, on });
        assert_eq!(answer, Some(Answer::Done));
    };
    let light = |net: &mut Aggregation, settings| {
        net.after(secs(0), Action::Access { link: 0, settings });
    };
    let loads = [Load::Down(100_000_000), Load::Up(100_000_000)];
    for load in loads {
        net.open(0, 0, load).unwrap();
    }
    // The bytes that both directions of the links carry in half a second.
    let moved = |net: &mut Aggregation| {
        let before = carried(net);
        net.run_for(millis(500));
        let now = carried(net);
        [0, 1].map(|link| [0, 1].map(|direction| now[link][direction] - before[link][direction]))
    };
    net.run_for(secs(2));
    order(&mut net, true);
    // Time for the link's queue to drain.
    net.run_for(millis(300));
    let spared = moved(&mut net);
    assert!(spared[1].iter().all(|bytes| *bytes < 3_000), "{spared:?}");
    // 20 Mbit/s are 1.25 MB.
    assert!(spared[0].iter().all(|b| *b > 1_000_000), "{spared:?}");

    light(&mut net, dark(config.access[0].clone()));
    net.run_for(secs(1));
    let needed = moved(&mut net);
    assert!(needed[1].iter().all(|b| *b > 500_000), "{needed:?}");

    light(&mut net, Box::new(config.access[0].clone()));
    net.run_for(secs(3));
    let spared = moved(&mut net);
    assert!(spared[1].iter().all(|bytes| *bytes < 3_000), "{spared:?}");

    order(&mut net, false);
    net.run_for(secs(2));
    let both = moved(&mut net);
    assert!(both[1].iter().all(|b| *b > 500_000), "{both:?}");
}

/// A connection that had to open on a backup leaves it for a link that comes back. MP_CAPABLE has no
/// backup bit, so the server is told afterwards.
#[test]
fn a_backup_that_a_connection_opened_on_rests_later() {
    let mut config = two_links();
    config.boxed.links[1].backup = true;
    let mut net = start(&config);
    net.after(secs(0), Action::Carrier { link: 0, up: false });
    net.after(secs(3), Action::Carrier { link: 0, up: true });
    net.run_for(secs(1));
    net.open(0, 0, Load::Down(100_000_000)).unwrap();
    net.run_for(secs(4));
    let before = delivered(&net);
    net.run_for(secs(2));
    let now = delivered(&net);
    assert!(now[0] - before[0] > 4_000_000);
    assert!(now[1] - before[1] < 5_000, "{}", now[1] - before[1]);
}

#[test]
fn a_metered_link_is_not_even_joined_before_it_is_needed() {
    let mut config = two_links();
    config.boxed.links[1].metered = true;
    let mut net = start(&config);
    assert_eq!(delivered(&net)[1], 0, "no probe either");
    let parts = around_an_outage(&mut net);
    assert_eq!(parts[0][1], 0, "{parts:?}");
    assert!(parts[1][1] > 1_500_000, "{parts:?}");
    // The server uses the metered link until a probe, one in 200 ms, has shown that the other link works
    // again, and then has 140 ms' worth in flight.
    assert!(parts[2][1] < 400_000, "{parts:?}");
    assert!(parts[2][0] > 6_000_000, "{parts:?}");
    let before = delivered(&net);
    net.run_for(secs(120));
    assert_eq!(delivered(&net)[1], before[1], "it rests again");
}

#[test]
fn a_lone_metered_link_is_used() {
    let mut config = two_links();
    config.boxed.links[0].metered = true;
    config.boxed.links[1].metered = true;
    let mut net = start(&config);
    net.open(0, 0, Load::Down(1_000_000)).unwrap();
    assert!(net.finish(secs(20)));
}

/// New connections open on the regular link, even if it is slower.
#[test]
fn connections_do_not_open_on_a_backup_link() {
    let mut config = two_links();
    config.boxed.links[0].backup = true;
    let mut net = start(&config);
    let before = delivered(&net);
    net.open(0, 0, Load::Down(2_000)).unwrap();
    net.run_for(millis(190 + 60));
    let now = delivered(&net);
    assert!(now[1] - before[1] > 2_000);
    assert!(now[0] - before[0] < 300, "{}", now[0] - before[0]);
}

/// A user's download goes on over the other link meanwhile, and then over both.
#[test]
fn a_link_that_is_switched_off_carries_nothing_until_it_is_on_again() {
    let config = two_links();
    for link in [0, 1] {
        let mut net = start(&config);
        let order = |net: &mut Aggregation, on| {
            let name = config.boxed.links[link].name.clone();
            let answer = net.ask(Request::Link { name, on });
            assert_eq!(answer, Some(Answer::Done));
        };
        // The rates of the links to the box in a second, as shares of their full rates.
        let shares = |net: &mut Aggregation| {
            let before = delivered(net);
            net.run_for(secs(1));
            let now = delivered(net);
            [0, 1].map(|n| (now[n] - before[n]) as f64 * 8.0 / [20e6, 10e6][n])
        };
        net.open(0, 0, Load::Down(100_000_000)).unwrap();
        net.run_for(secs(3));
        order(&mut net, false);
        // Time for the link's queue to drain.
        net.run_for(millis(300));
        for _ in 0..3 {
            let shares = shares(&mut net);
            assert_eq!(shares[link], 0.0, "{link}: {shares:?}");
            assert!(shares[1 - link] > 0.9, "{link}: {shares:?}");
        }
        order(&mut net, true);
        net.run_for(secs(2));
        let shares = shares(&mut net);
        assert!(shares.iter().all(|s| *s > 0.9), "{link}: {shares:?}");
    }
}
