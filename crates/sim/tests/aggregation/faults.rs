//! Failing links and machines.

use braid_engine::CloseReason;
use braid_links::Rate;
use braid_sim::aggregation::{Action, Aggregation, Load, TransferId};

use crate::support::{
    box_counters, dark, ending, millis, received_by_interval, secs, start, two_links,
};

/// A link goes dark without a link-down, as when a radio link drops out.
#[test]
fn a_link_that_goes_dark_for_a_while_costs_its_share_only() {
    for link in [0, 1] {
        let config = two_links();
        let mut net = start(&config);
        let id = net.open(0, 0, Load::Down(100_000_000)).unwrap();
        net.run_for(secs(3));
        let lit = Box::new(config.access[link].clone());
        let settings = dark(config.access[link].clone());
        net.after(secs(0), Action::Access { link, settings });
        net.after(
            secs(10),
            Action::Access {
                link,
                settings: lit,
            },
        );
        let seconds = received_by_interval(&mut net, secs(1), 13);
        let other = [10e6, 20e6][link] / 8.0 * 1_400.0 / 1_500.0;
        // The dead link's timeout holds up the data that it carried.
        assert!(seconds[0] as f64 > 0.3 * other, "{link}: {seconds:?}");
        for bytes in &seconds[1..10] {
            assert!(*bytes as f64 > 0.9 * other, "{link}: {seconds:?}");
        }
        let both = 30e6 / 8.0 * 1_400.0 / 1_500.0;
        for bytes in &seconds[11..] {
            assert!(*bytes as f64 > 0.9 * both, "{link}: {seconds:?}");
        }
        assert!(net.at_user(id).closed.is_none());
    }
}

/// A link's rate falls without a loss: no timer tells, and all data behind its long queue waits. In both
/// directions, and for either link, the other one gives its full rate from a second after the change on.
#[test]
fn a_link_that_slows_down_costs_its_share_only() {
    for (link, load, at) in [
        (0, Load::Down(100_000_000), 3_000),
        (0, Load::Up(100_000_000), 3_130),
        (1, Load::Down(100_000_000), 3_300),
        (1, Load::Up(100_000_000), 2_850),
    ] {
        let config = two_links();
        let mut net = start(&config);
        let id = net.open(0, 0, load).unwrap();
        net.run_for(millis(at));
        let sound = config.access[link].clone();
        let mut slow = sound.clone();
        for direction in [&mut slow.up, &mut slow.down] {
            direction.rate = Rate::bits_per_second(100_000);
        }
        net.after(
            secs(0),
            Action::Access {
                link,
                settings: Box::new(slow),
            },
        );
        net.after(
            secs(11),
            Action::Access {
                link,
                settings: Box::new(sound),
            },
        );
        let mut arrived = vec![0];
        for _ in 0..15 {
            net.run_for(secs(1));
            let content = net.at_content(id).map_or(0, |s| s.received);
            arrived.push(content.max(net.at_user(id).received));
        }
        let rates: Vec<u64> = arrived.windows(2).map(|w| w[1] - w[0]).collect();
        let other = [10e6, 20e6][link] / 8.0 * 1_400.0 / 1_500.0;
        for bytes in &rates[1..11] {
            assert!(*bytes as f64 > 0.9 * other, "{link} {load:?}: {rates:?}");
        }
        let both = 30e6 / 8.0 * 1_400.0 / 1_500.0;
        for bytes in &rates[13..] {
            assert!(*bytes as f64 > 0.9 * both, "{link} {load:?}: {rates:?}");
        }
        assert!(net.at_user(id).closed.is_none());
    }
}

#[test]
fn a_link_that_is_taken_away_for_good_is_not_missed() {
    for link in [0, 1] {
        let mut net = start(&two_links());
        let id = net.open(0, 0, Load::Down(8_000_000)).unwrap();
        net.after(secs(1), Action::Carrier { link, up: false });
        assert!(net.finish(secs(30)), "{:?}", net.at_user(id));
        assert_eq!(net.at_user(id).received, 8_000_000);
        let new = net.open(0, 0, Load::Down(100_000)).unwrap();
        assert!(net.finish(secs(10)));
        assert!(net.duration(new).unwrap() < secs(1));
    }
}

/// Opens some transfers in each direction, all in progress.
fn busy(net: &mut Aggregation) -> Vec<TransferId> {
    let loads = [
        Load::Down(50_000_000),
        Load::Up(50_000_000),
        Load::Down(50_000_000),
    ];
    let ids = loads.map(|load| net.open(0, 0, load).unwrap());
    net.run_for(secs(2));
    assert!(ids.iter().all(|id| net.at_user(*id).closed.is_none()));
    ids.to_vec()
}

#[test]
fn connections_end_with_their_server_and_new_ones_find_it_again() {
    let mut net = start(&two_links());
    let ids = busy(&mut net);
    net.after(secs(0), Action::KillServer(0));
    net.after(secs(5), Action::StartServer(0));
    net.run_for(secs(15));
    let new = net.open(0, 0, Load::Down(100_000)).unwrap();
    net.run_for(secs(45));
    assert!(net.duration(new).is_some(), "{:?}", net.at_user(new));
    for id in ids {
        let (_, reason) = ending(&net, id).expect("it ended");
        assert_eq!(reason, CloseReason::Reset);
    }
    assert_eq!(net.box_node().core().unwrap().connections(), 0);
}

/// A server is found again at once, at any time of the box's probing and after any absence. Meanwhile
/// nobody refuses the box's SYNs.
#[test]
fn a_server_that_is_back_is_found_at_once() {
    for away in (8_000..14_000).step_by(250) {
        let mut net = start(&two_links());
        busy(&mut net);
        net.after(secs(0), Action::KillServer(0));
        net.run_for(millis(away));
        assert!(
            !net.box_node().core().unwrap().wants_interception(),
            "{away}"
        );
        net.after(secs(0), Action::StartServer(0));
        net.run_for(millis(1_200));
        let before = box_counters(&net).accepted;
        let joined = net.open(0, 0, Load::Down(100_000)).unwrap();
        net.run_for(millis(600));
        assert!(net.duration(joined).is_some(), "{away}");
        assert_eq!(box_counters(&net).accepted, before + 1, "{away}");
    }
}

#[test]
fn while_the_only_server_is_away_connections_are_forwarded_unjoined() {
    let mut net = start(&two_links());
    let ids = busy(&mut net);
    net.after(secs(0), Action::KillServer(0));
    net.run_for(secs(20));
    assert!(!net.box_node().core().unwrap().wants_interception());
    let before = box_counters(&net).accepted;
    let direct = net.open(0, 0, Load::Down(100_000)).unwrap();
    net.run_for(secs(5));
    assert!(net.duration(direct).is_some());
    assert_eq!(box_counters(&net).accepted, before);
    net.after(secs(0), Action::StartServer(0));
    net.run_for(secs(35));
    assert!(net.box_node().core().unwrap().wants_interception());
    for id in ids {
        ending(&net, id).expect("it ended");
    }
    let joined = net.open(0, 0, Load::Down(100_000)).unwrap();
    net.run_for(secs(5));
    assert!(net.duration(joined).is_some());
    assert_eq!(box_counters(&net).accepted, before + 1);
}

#[test]
fn connections_move_to_the_second_server_when_the_first_is_gone() {
    let mut config = two_links();
    config.set_servers(2).unwrap();
    let mut net = start(&config);
    let ids = busy(&mut net);
    net.after(secs(0), Action::KillServer(0));
    net.run_for(secs(1));
    // The new connection succeeds even before the failure is noticed.
    let new = net.open(0, 0, Load::Down(100_000)).unwrap();
    net.run_for(secs(10));
    assert!(net.duration(new).is_some(), "{:?}", net.at_user(new));
    assert_eq!(net.server_node(1).core().unwrap().counters().finished, 1);
    // The users' own TCP would wait as long for a machine that is gone.
    net.run_for(secs(16 * 60));
    for id in ids {
        ending(&net, id).expect("it ended");
    }
}

/// A restarted box forwards segments of unknown connections; the content host does not know them either.
#[test]
fn connections_end_with_their_box() {
    let mut net = start(&two_links());
    let ids = busy(&mut net);
    net.after(secs(0), Action::KillBox);
    net.after(secs(5), Action::StartBox);
    net.run_for(secs(7));
    let new = net.open(0, 0, Load::Down(100_000)).unwrap();
    net.run_for(secs(53));
    assert!(net.duration(new).unwrap() < millis(500));
    assert_eq!(box_counters(&net).accepted, 1, "the new one is aggregated");
    // The uploader sends, and so gets a reset.
    let (_, reason) = ending(&net, ids[1]).expect("it ended");
    assert_eq!(reason, CloseReason::Reset);
    // The downloaders only listen: their keepalive asks after a while without data.
    for id in [ids[0], ids[2]] {
        ending(&net, id).expect("it ended");
    }
    // The server gives up data that it cannot send.
    assert_eq!(net.server_node(0).core().unwrap().connections(), 0);
}

/// A restarted box serves at once, after any absence.
#[test]
fn a_box_that_is_back_serves_at_once() {
    for away in (500..6_000).step_by(500) {
        let mut net = start(&two_links());
        net.after(secs(0), Action::KillBox);
        net.after(millis(away), Action::StartBox);
        net.run_for(millis(away + 2_000));
        let joined = net.open(0, 0, Load::Down(100_000)).unwrap();
        net.run_for(millis(600));
        assert!(net.duration(joined).is_some(), "{away}");
        assert_eq!(box_counters(&net).accepted, 1, "{away}");
        assert_eq!(box_counters(&net).connected, 1, "{away}");
    }
}
