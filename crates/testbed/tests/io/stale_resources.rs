//! Tests that nothing of an instance remains.

use std::thread;
use std::time::Duration;

use braid_linux::net::{InstanceNames, cleanup};
use braid_proxy::config::Quic;

use crate::interception::{Interception, Net};
use crate::support::wait_for;

/// Returns everything that an instance could have changed. Routes that IPv6 adds by itself for new interfaces
/// are left out.
fn state(net: &Net) -> Vec<String> {
    let text = net.world.sh(
        "box",
        "ip -4 rule; ip -6 rule; ip -4 route show table all; \
         ip -6 route show table all | grep -v -e fe80: -e ff00:; \
         ip -o link | grep -o '^[0-9]*: [a-z0-9]*'; nft list ruleset; \
         cd /proc/sys/net; head -n 99 ipv6/conf/all/forwarding ipv4/conf/*/forwarding \
         ipv4/conf/*/rp_filter netfilter/nf_conntrack_tcp_be_liberal",
    );
    text.lines().map(str::to_owned).collect()
}

/// Returns the state once the kernel has finished its reaction to new interfaces.
fn settled_state(net: &Net) -> Vec<String> {
    let mut last = state(net);
    for _ in 0..50 {
        thread::sleep(Duration::from_millis(100));
        let now = state(net);
        if now == last {
            break;
        }
        last = now;
    }
    last
}

/// Waits until the state is `before` again, which may take the kernel a moment.
fn wait_for_same(net: &Net, before: &[String]) {
    let difference = || {
        let after = state(net);
        let gone: Vec<_> = before.iter().filter(|l| !after.contains(l)).collect();
        let new: Vec<_> = after.iter().filter(|l| !before.contains(l)).collect();
        format!("gone: {gone:#?} new: {new:#?}")
    };
    wait_for("nothing is left", difference, || {
        (state(net) == before).then_some(())
    });
}

#[test]
#[ignore = "network"]
fn nothing_is_left_of_a_killed_instance() {
    let net = Net::new();
    let before = settled_state(&net);
    Interception::start(&net, Quic::Reject).die();
    assert_ne!(state(&net), before);
    let instance_names = InstanceNames::of_tun("braid0");
    net.world
        .inside("box", || cleanup::cleanup(&instance_names, &[]))
        .unwrap();
    wait_for_same(&net, &before);
}

#[test]
#[ignore = "network"]
fn a_restart_finds_the_settings_that_were_in_force_before_the_killed_instance() {
    let net = Net::new();
    let before = settled_state(&net);
    Interception::start(&net, Quic::Reject).die();
    Interception::start(&net, Quic::Forward).end();
    wait_for_same(&net, &before);
}
