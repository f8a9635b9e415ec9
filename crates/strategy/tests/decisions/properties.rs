//! Properties of all strategies, on random views.

use std::time::Duration;

use braid_engine::SubflowId;
use braid_engine::strategy::{
    Copies, Decision, FlowSize, InFlight, Payload, SendView, StrategyEvent, SubflowView, Writer,
};
use braid_strategy::{by_name, names};
use braid_wire::{Instant, Rng};
use proptest::prelude::*;

use crate::views::subflow;

/// The input of one decision: subflows, connection, and the events before it.
#[derive(Debug, Clone)]
struct Moment {
    subflows: Vec<SubflowView>,
    ms: u64,
    sent: u64,
    unsent: [u64; 8],
    peer_window: u64,
    flow_size: FlowSize,
    events: Vec<StrategyEvent>,
}

impl Moment {
    fn view(&self) -> SendView<'_> {
        let unsent = self.unsent.iter().sum();
        let copies = self.subflows.iter().filter_map(|s| s.copies.any);
        SendView {
            now: Instant::from_millis(self.ms),
            subflows: &self.subflows,
            sent: self.sent,
            copied: 0,
            unsent,
            unsent_by_urgency: self.unsent,
            peer_window: self.peer_window,
            outstanding: self.sent.min(50_000),
            may_send_new: unsent > 0 && self.peer_window > 0,
            writer: Writer::Done,
            flow_size: self.flow_size,
            oldest: copies.min_by_key(|data| data.start),
            ..SendView::new(Instant::from_millis(self.ms), &self.subflows, unsent)
        }
    }
}

fn in_flight() -> impl Strategy<Value = InFlight> {
    (0..40_000u64, 1..5_000u64, 0..6u32, 0..9_000u64).prop_map(|(start, len, last_sender, ms)| {
        InFlight {
            start,
            end: start + len,
            last_sender: SubflowId(last_sender),
            sent_at: Instant::from_millis(ms),
        }
    })
}

fn copies() -> impl Strategy<Value = Copies> {
    let one = || proptest::option::of(in_flight());
    (one(), one(), one()).prop_map(|(lost, single, any)| Copies {
        lost,
        single,
        any: any.or(single).or(lost),
    })
}

fn a_subflow() -> impl Strategy<Value = SubflowView> {
    let times = (0..400u64, 0..400u64, 0..400u64);
    let window = (0..60_000u64, 0..60_000u64, any::<bool>());
    let state = (any::<bool>(), any::<bool>(), any::<bool>());
    let counts = (0..100_000u64, 0..100_000u64, 0..2_000_000u64);
    (times, window, state, counts, copies()).prop_map(|(times, window, state, counts, copies)| {
        let ms = Duration::from_millis;
        let (ready, stale, backup) = state;
        SubflowView {
            latest_rtt: ms(times.1),
            base_rtt: ms(times.0.min(times.2)),
            cwnd: window.0,
            in_flight: window.1,
            ssthresh: if window.2 { u64::MAX } else { 10_000 },
            queued: counts.0,
            sent: counts.1,
            pacing_rate: counts.2,
            ready,
            stale,
            backup,
            copies: if ready { copies } else { Copies::default() },
            ..subflow(0, times.0)
        }
    })
}

fn a_size() -> impl Strategy<Value = FlowSize> {
    prop_oneof![
        Just(FlowSize::Unknown),
        (0..2_000_000u64).prop_map(FlowSize::Predicted),
        (0..2_000_000u64).prop_map(FlowSize::Read),
        (0..2_000_000u64).prop_map(FlowSize::Declared),
        Just(FlowSize::Declared(u64::MAX)),
    ]
}

fn an_event() -> impl Strategy<Value = StrategyEvent> {
    (0..6u32, 0..20_000u64, 0..6u8).prop_map(|(id, bytes, kind)| {
        let subflow = SubflowId(id);
        match kind {
            0 => StrategyEvent::SubflowUp {
                subflow,
                record: None,
            },
            1 => StrategyEvent::SubflowDown { subflow },
            2 => StrategyEvent::Lost { subflow, bytes },
            3 => StrategyEvent::TimedOut { subflow },
            4 => StrategyEvent::WindowBlocked,
            _ => StrategyEvent::Acknowledged { subflow, bytes },
        }
    })
}

fn a_moment() -> impl Strategy<Value = Moment> {
    (
        proptest::collection::vec(a_subflow(), 0..6),
        (
            0..60_000u64,
            0..2_000_000u64,
            prop_oneof![Just(0), 0..200_000u64],
        ),
        proptest::array::uniform8(prop_oneof![Just(0), 0..50_000u64]),
        a_size(),
        proptest::collection::vec(an_event(), 0..4),
    )
        .prop_map(|(mut subflows, numbers, unsent, flow_size, events)| {
            for (n, subflow) in subflows.iter_mut().enumerate() {
                subflow.id = SubflowId(n as u32);
            }
            Moment {
                subflows,
                ms: numbers.0,
                sent: numbers.1,
                unsent,
                peer_window: numbers.2,
                flow_size,
                events,
            }
        })
}

/// Returns the decisions of a strategy at each of `moments`.
fn decisions(name: &str, moments: &[Moment]) -> Vec<Decision> {
    let mut strategy = by_name(name).unwrap();
    let mut rng = Rng::for_component(3, 3);
    let decisions = moments.iter().map(|moment| {
        moment.events.iter().for_each(|e| strategy.on_event(e));
        strategy.next(&moment.view(), &mut rng)
    });
    decisions.collect()
}

/// Generates moments in order of time.
fn some_moments() -> impl Strategy<Value = Vec<Moment>> {
    proptest::collection::vec(a_moment(), 1..12).prop_map(|mut moments| {
        moments.sort_by_key(|moment| moment.ms);
        moments
    })
}

proptest! {
    /// A strategy chooses only subflows with room, and only data that the view offers them.
    #[test]
    fn choices_are_among_those_of_the_view(moments in some_moments()) {
        let with_settings = ["maps:single", "maps:plr=measured,eps=1", "po:base=roundrobin"];
        for name in names().chain(with_settings) {
            for (moment, decision) in moments.iter().zip(decisions(name, &moments)) {
                let Decision::Send { subflow, data, max_bytes } = decision else {
                    continue;
                };
                let view = moment.view();
                let chosen = view.subflow(subflow);
                prop_assert!(chosen.is_some_and(|s| s.ready), "{name}: {decision:?}");
                match data {
                    Payload::New => {
                        prop_assert!(view.may_send_new, "{name}: {decision:?}");
                        let mss = chosen.map_or(0, |s| s.mss);
                        prop_assert!(max_bytes >= mss, "{name}: less than a segment, {decision:?}");
                    }
                    Payload::Copy { data, .. } => {
                        let copies = chosen.unwrap().copies;
                        let Copies { lost, single, any } = copies;
                        let is_offered = [lost, single, any].contains(&Some(data));
                        prop_assert!(is_offered, "{name}: {decision:?}");
                    }
                }
            }
        }
    }

    /// Without important data and background data `po` decides exactly as its base strategy does.
    #[test]
    fn po_without_priorities_is_its_base(mut moments in some_moments()) {
        for moment in &mut moments {
            moment.unsent[..3].fill(0);
            moment.unsent[7] = 0;
        }
        for base in ["minrtt", "roundrobin", "redundant", "blest", "ecf", "linux"] {
            let po = decisions(&format!("po:base={base}"), &moments);
            prop_assert_eq!(po, decisions(base, &moments), "{}", base);
        }
    }

    /// At alpha = 0 `fsa` copies only data that was lost with a failed path.
    #[test]
    fn fsa_copies_no_part_of_an_elephant(mut moments in some_moments()) {
        for moment in &mut moments {
            moment.flow_size = FlowSize::Declared(1 << 20);
            for subflow in &mut moment.subflows {
                subflow.copies.lost = None;
            }
        }
        for decision in decisions("fsa", &moments) {
            let copies = matches!(decision, Decision::Send { data: Payload::Copy { .. }, .. });
            prop_assert!(!copies, "{decision:?}");
        }
    }
}
