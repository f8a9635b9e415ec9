//! What aggregation is for.

use braid_sim::aggregation::Load;

use crate::support::{secs, start, two_links};

#[test]
fn a_download_takes_what_both_links_have() {
    let mut net = start(&two_links());
    let size = 40_000_000;
    let id = net.open(0, 0, Load::Down(size)).unwrap();
    assert!(net.finish(secs(60)), "{:?}", net.at_user(id));
    let took = net.duration(id).unwrap();
    let rate = size as f64 * 8.0 / took.as_secs_f64();
    // Of 30 Mbit/s headers take a part.
    let most = 30e6 * 1_400.0 / 1_500.0;
    assert!(rate > 0.95 * most);
}
