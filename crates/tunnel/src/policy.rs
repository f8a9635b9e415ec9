//! The treatment that callers want for their flows, and what the box states about it to the server.
//!
//! The rules of a box hold for both directions of a flow. Each packet of the box says how its flow is sent, and the
//! server sends the answers in the same way.

use braid_engine::Urgency;
use braid_wire::Rng;
use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;
use hashbrown::HashMap;

use crate::classify::FlowKey;
use crate::config::Mode;

/// The treatment that a caller wants for the flow of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowPolicy {
    /// The urgency; the default urgency if it is `None`.
    pub urgency: Option<Urgency>,
    /// The rule by which packets are given to paths; if it is `None`, the mode of [`crate::Config`] counts.
    pub mode: Option<Mode>,
}

impl FlowPolicy {
    /// Returns the policy with what it leaves open taken from `other`.
    pub fn or(self, other: FlowPolicy) -> FlowPolicy {
        FlowPolicy {
            urgency: self.urgency.or(other.urgency),
            mode: self.mode.or(other.mode),
        }
    }
}

/// A change of what the peer states about a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Statement {
    /// The number of the flow at the peer.
    pub number: u16,
    /// The flow that had the number until now.
    pub former: Option<FlowKey>,
    /// The flow, as packets of the peer have it.
    pub key: FlowKey,
    pub policy: FlowPolicy,
}

/// The policies that the peer has stated, one for each number of its flows.
#[derive(Debug)]
pub(crate) struct StatedPolicies {
    /// By the key that answers have.
    by_key: HashMap<FlowKey, (u16, FlowPolicy), SeedableRandomState>,
}

impl StatedPolicies {
    pub fn new(rng: &mut Rng) -> Self {
        let hasher = SeedableRandomState::with_seed(rng.u64(), SharedSeed::global_fixed());
        StatedPolicies {
            by_key: HashMap::with_hasher(hasher),
        }
    }

    /// Takes a statement of the peer. A number stands for one flow at a time.
    pub fn take(&mut self, statement: &Statement) {
        let number = statement.number;
        if let Some(former) = statement.former.map(FlowKey::reversed)
            && self.by_key.get(&former).is_some_and(|(n, _)| *n == number)
        {
            self.by_key.remove(&former);
        }
        let answers = statement.key.reversed();
        self.by_key.insert(answers, (number, statement.policy));
    }

    /// Returns the policy for packets with this key.
    pub fn get(&self, key: &FlowKey) -> Option<FlowPolicy> {
        self.by_key.get(key).map(|(_, policy)| *policy)
    }

    /// Returns the number of flows with a policy.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::key;

    fn policy(level: u8, mode: Mode) -> FlowPolicy {
        FlowPolicy {
            urgency: Urgency::new(level),
            mode: Some(mode),
        }
    }

    #[test]
    fn what_is_left_open_comes_from_the_other() {
        let open = FlowPolicy::default();
        let call = policy(1, Mode::Redundant);
        assert_eq!(open.or(call), call);
        assert_eq!(call.or(policy(5, Mode::Single)), call);
        let mode_alone = FlowPolicy {
            urgency: None,
            mode: Some(Mode::Fastest),
        };
        assert_eq!(mode_alone.or(call), policy(1, Mode::Fastest));
    }

    #[test]
    fn a_number_has_one_flow_and_answers_have_its_policy() {
        let mut stated = StatedPolicies::new(&mut Rng::from_seed([1; 32]));
        let mut take = |number, former: Option<u8>, last, policy| {
            let former = former.map(key);
            let key = key(last);
            stated.take(&Statement {
                number,
                former,
                key,
                policy,
            });
            let of = |last: u8| stated.get(&self::key(last).reversed());
            ([1, 2].map(of), stated.len())
        };
        let (call, other) = (policy(1, Mode::Redundant), policy(7, Mode::Single));
        assert_eq!(take(0, None, 1, call), ([Some(call), None], 1));
        assert_eq!(take(0, Some(1), 1, other), ([Some(other), None], 1));
        assert_eq!(take(0, Some(1), 2, call), ([None, Some(call)], 1));
        // The flow got another number before its former number came to stand for another flow.
        assert_eq!(take(1, None, 2, other), ([None, Some(other)], 1));
        assert_eq!(take(0, Some(2), 1, call), ([Some(call), Some(other)], 2));
    }

    #[test]
    fn packets_of_the_peer_itself_have_no_policy() {
        let mut stated = StatedPolicies::new(&mut Rng::from_seed([1; 32]));
        stated.take(&Statement {
            number: 0,
            former: None,
            key: key(1),
            policy: policy(1, Mode::Redundant),
        });
        assert_eq!(stated.get(&key(1)), None);
    }
}
