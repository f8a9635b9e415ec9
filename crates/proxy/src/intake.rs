//! What is known of a user's connection beforehand, and from where.

use braid_engine::Urgency;
use braid_engine::strategy::FlowSize;
use braid_strategy::predict::{Place, Predictor};
use braid_wire::Instant;

use crate::config::Rule;
use crate::hints::FlowHints;
use crate::sniff::Seen;
use crate::socks::Destination;

/// Most places whose flows are remembered; 2 MB with all of them.
const MAX_PLACES: usize = 4_096;

/// An upload beyond this is likely to be more than its answer; of a smaller one nothing follows.
const LARGE_UPLOAD: u64 = 16 << 10;

/// A user's connection, as far as it tells of itself.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) destination: Destination,
    /// What its program says of it.
    pub(crate) declared: FlowHints,
    /// Code point of its SYN.
    pub(crate) dscp: u8,
    /// Name of the destination in lower case, where it is known.
    host: Option<String>,
    upload: Option<u64>,
}

impl Flow {
    /// A connection of which no more is known.
    pub(crate) fn new(destination: Destination, declared: FlowHints, dscp: u8) -> Self {
        let host = match &destination {
            Destination::Address(_) => None,
            Destination::Name(name, _) => Some(name.trim_end_matches('.').to_ascii_lowercase()),
        };
        Flow {
            destination,
            declared,
            dscp,
            host,
            upload: None,
        }
    }

    /// Its first bytes were seen.
    pub(crate) fn see(&mut self, seen: Seen) {
        self.host = self.host.take().or(seen.host);
        self.upload = seen.upload;
    }

    /// Where it goes; what says most of it comes first.
    fn places(&self) -> Vec<Place> {
        let (address, port) = match self.destination {
            Destination::Address(addr) => {
                (Some(Place::Address(addr.ip(), addr.port())), addr.port())
            }
            Destination::Name(_, port) => (None, port),
        };
        let name = self.host.clone().map(|host| Place::Name(host, port));
        name.into_iter().chain(address).collect()
    }
}

/// Knows connections beforehand: by what they say, by rules, and by those of the past.
#[derive(Debug)]
pub(crate) struct Intake {
    rules: Vec<Rule>,
    past: Predictor,
}

impl Intake {
    pub(crate) fn new(rules: Vec<Rule>) -> Self {
        Intake {
            rules,
            past: Predictor::new(MAX_PLACES),
        }
    }

    /// What is known of `flow`. What its program says counts before the rules, these before the
    /// marks of its packets and what those before it were like.
    pub(crate) fn hints(&mut self, now: Instant, flow: &Flow) -> FlowHints {
        let host = flow.host.as_deref();
        let mut rules = self.rules.iter();
        let rule = rules.find(|rule| rule.is_for(&flow.destination, host));
        let usual = match rule.and_then(|rule| rule.size) {
            Some(bytes) => FlowSize::Predicted(bytes),
            None => self.past.predict(now, &flow.places()),
        };
        let least = usual.bytes().unwrap_or(0).max(LARGE_UPLOAD);
        let upload = flow.upload.filter(|bytes| *bytes > least);
        let read = upload.map_or(FlowSize::Unknown, FlowSize::Read);
        let declared = &flow.declared;
        let by_rule = rule.and_then(|rule| rule.urgency);
        let strategy = rule.and_then(|rule| rule.strategy.as_ref());
        FlowHints {
            size: usual.or_better(read).or_better(declared.size),
            urgency: declared.urgency.or(by_rule).or(urgency_of(flow.dscp)),
            deadline: declared.deadline,
            strategy: declared.strategy.as_ref().or(strategy).cloned(),
        }
    }

    /// A connection ended that carried `bytes` in the direction that carried more.
    pub(crate) fn learn(&mut self, now: Instant, flow: &Flow, bytes: u64) {
        if bytes > 0 {
            self.past.record(now, &flow.places(), bytes);
        }
    }
}

/// What the code point of a packet asks for, by the classes of RFC 8325 section 4.3: voice and
/// network control, video, background; `None` for the others.
fn urgency_of(dscp: u8) -> Option<Urgency> {
    match dscp {
        // CS5, VOICE-ADMIT, EF, CS6, CS7.
        40 | 44 | 46 | 48 | 56 => Urgency::new(1),
        // AF41, AF42, AF43.
        34 | 36 | 38 => Urgency::new(2),
        // LE (RFC 8622), CS1.
        1 | 8 => Some(Urgency::LEAST),
        _ => None,
    }
}
