//! A call while a link of the box dies: gaps at both ends.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::net::{Link, Net, answer, identify, packet};
use braid_tunnel::{Config, FlowPolicy, Mode, Urgency};
use braid_wire::Instant;

const MS: Duration = Duration::from_millis(1);
/// The time between packets of the call.
const GAP: Duration = Duration::from_millis(20);

/// Both ends of a call send a packet of 200 bytes each [`GAP`]. The box knows the policy; the server follows.
struct Call {
    net: Net,
    policy: FlowPolicy,
    sent: u32,
    /// The numbers that came at the box and at the server, and the time of the last packet.
    came: [(BTreeSet<u32>, Instant); 2],
    /// The longest time between two packets at the box and at the server.
    gaps: [Duration; 2],
}

impl Call {
    fn new(mode: Mode, links: &[Link], seed: u64) -> Self {
        let mut net = Net::new(&Config::default(), links, seed);
        net.pass(MS * 500);
        let now = net.now;
        let mut call = Call {
            net,
            policy: FlowPolicy {
                urgency: Urgency::new(1),
                mode: Some(mode),
            },
            sent: 0,
            came: Default::default(),
            gaps: [Duration::ZERO; 2],
        };
        call.came.iter_mut().for_each(|(_, at)| *at = now);
        call.pass(MS * 2000);
        call
    }

    /// Runs for some time. Returns the longest gap in it at the box and at the server.
    fn pass(&mut self, time: Duration) -> [Duration; 2] {
        self.gaps = [Duration::ZERO; 2];
        for _ in 0..time.div_duration_f64(GAP) as u32 {
            let packet = packet(0, self.sent, 200);
            self.net.send_as(0, self.policy, &packet).unwrap();
            self.sent += 1;
            self.step(GAP / 2);
            let answer = answer(&packet);
            self.net.send_as(1, FlowPolicy::default(), &answer).unwrap();
            self.step(GAP / 2);
        }
        self.gaps
    }

    fn step(&mut self, time: Duration) {
        let until = self.net.now + time;
        while self.net.now < until {
            self.net.pass(MS / 2);
            for end in 0..2 {
                let delivered = core::mem::take(&mut self.net.delivered[end]);
                for bytes in delivered {
                    // Answers are the packets of the box the other way round.
                    let bytes = if end == 0 { answer(&bytes) } else { bytes };
                    let (_, number) = identify(&bytes);
                    let (came, at) = &mut self.came[end];
                    assert!(came.insert(number), "packet {number} came twice");
                    let gap = self.net.now.saturating_since(*at);
                    *at = self.net.now;
                    self.gaps[end] = self.gaps[end].max(gap);
                }
            }
        }
    }
}

/// Returns links with these one-way delays.
fn links(delays: [u32; 2]) -> [Link; 2] {
    delays.map(|millis| Link {
        delay: MS * millis,
        ..Link::PLAIN
    })
}

#[test]
fn a_link_that_dies_leaves_a_short_gap() {
    for (mode, longest) in [
        (Mode::Redundant, MS * 40),
        (Mode::Fastest, MS * 250),
        (Mode::Aggregate, MS * 250),
    ] {
        for delays in [[20, 20], [10, 20], [25, 10], [5, 24]] {
            for dying in 0..2 {
                let mut call = Call::new(mode, &links(delays), 1);
                call.net.dark[dying] = true;
                let gaps = call.pass(MS * 2000);
                assert!(
                    gaps.iter().all(|gap| *gap <= longest),
                    "{mode:?}, link {dying} of {delays:?}: {gaps:?}"
                );
                call.net.dark[dying] = false;
                let gaps = call.pass(MS * 3000);
                assert!(gaps.iter().all(|gap| *gap <= longest), "{gaps:?}");
                // All but what is on its way has come.
                let came = call.came.each_ref().map(|(came, _)| came.len() as u32);
                assert!(came.iter().all(|n| n + 2 >= call.sent), "{came:?}");
            }
        }
    }
}
