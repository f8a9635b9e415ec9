//! The flow classifier: determines hints about a user's connection from several sources.

use braid_engine::strategy::FlowSize;
use braid_strategy::predict::{Place, Predictor};
use braid_wire::Instant;

use crate::config::Rule;
use crate::protocol::hints::{self, FlowHints};
use crate::protocol::socks::Destination;
use crate::relay::sniff::Sniffed;

/// The maximum number of destinations whose flows are remembered. All of them take 2 MB; the value is a guess.
const MAX_REMEMBERED_PLACES: usize = 4_096;

/// The minimum size of an upload, bytes, that counts as the size of its flow. After a smaller upload, the response
/// is often larger than the upload, and the size of the response is unknown. The value is a guess.
const MIN_LARGE_UPLOAD_BYTES: u64 = 16 << 10;

/// A user's connection, with the properties by which it is classified.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) destination: Destination,
    /// Hints from the user's program.
    pub(crate) declared: FlowHints,
    /// The differentiated services code point (RFC 2474) of the user's SYN.
    pub(crate) dscp: u8,
    /// Name of the destination in lower case, if it is known.
    host: Option<String>,
    /// Size of the upload that the first request announces, bytes, if it is known.
    upload: Option<u64>,
}

impl Flow {
    /// Returns the destination's name in lower case, if it is known and the destination is given by address.
    pub(crate) fn host(&self) -> Option<&str> {
        let named = matches!(self.destination, Destination::Name(..));
        self.host.as_deref().filter(|_| !named)
    }

    /// Creates a flow without further properties.
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

    /// Adds the properties found in the first bytes. A name that the user's program gave stays.
    pub(crate) fn add_sniffed(&mut self, sniffed: Sniffed) {
        self.host = self.host.take().or(sniffed.host);
        self.upload = sniffed.upload;
    }

    /// Returns the keys of the destination for predictions, the most specific first: name, then address.
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

/// The flow classifier, which uses hints of programs, the configured rules, and the sizes of earlier flows.
#[derive(Debug)]
pub(crate) struct FlowClassifier {
    rules: Vec<Rule>,
    predictor: Predictor,
}

impl FlowClassifier {
    pub(crate) fn new(rules: Vec<Rule>) -> Self {
        FlowClassifier {
            rules,
            predictor: Predictor::new(MAX_REMEMBERED_PLACES),
        }
    }

    pub(crate) fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Replaces the rules. The history of destinations stays.
    pub(crate) fn set_rules(&mut self, rules: Vec<Rule>) {
        self.rules = rules;
    }

    /// Returns the hints about `flow`. Hints of the program take precedence over rules, and rules over the SYN's
    /// code point and predictions from earlier flows.
    pub(crate) fn hints(&mut self, now: Instant, flow: &Flow) -> FlowHints {
        let host = flow.host.as_deref();
        let mut rules = self.rules.iter();
        let rule = rules.find(|rule| rule.is_for(&flow.destination, host));
        let predicted = match rule.and_then(|rule| rule.size) {
            Some(bytes) => FlowSize::Predicted(bytes),
            None => self.predictor.predict(now, &flow.places()),
        };
        // The upload counts as the flow's size only if it exceeds the size predicted for the flow.
        let min_upload = predicted.bytes().unwrap_or(0).max(MIN_LARGE_UPLOAD_BYTES);
        let upload = flow.upload.filter(|bytes| *bytes > min_upload);
        let read = upload.map_or(FlowSize::Unknown, FlowSize::Read);
        let declared = &flow.declared;
        let by_rule = rule.and_then(|rule| rule.urgency);
        let strategy = rule.and_then(|rule| rule.strategy.as_ref());
        FlowHints {
            size: predicted.or_better(read).or_better(declared.size),
            urgency: declared
                .urgency
                .or(by_rule)
                .or(hints::urgency_of_dscp(flow.dscp)),
            deadline: declared.deadline,
            strategy: declared.strategy.as_ref().or(strategy).cloned(),
        }
    }

    /// Records a flow that carried `bytes` in the larger direction.
    pub(crate) fn learn(&mut self, now: Instant, flow: &Flow, bytes: u64) {
        // A flow without bytes, such as a refused one, predicts nothing.
        if bytes > 0 {
            self.predictor.record(now, &flow.places(), bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use braid_engine::Urgency;

    use super::*;

    const NOW: Instant = Instant::ZERO;

    /// Creates a classifier with these rules, as written in `box.toml`.
    fn classifier(rules: &str) -> FlowClassifier {
        let text = format!(
            "lan = \"eth0\"\nlink = {{ interface = \"wlan0\" }}\n[server]\n\
             address = \"203.0.113.7\"\nkey = \"Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\"\n\
             {rules}"
        );
        let key = braid_secure::keys::PrivateKey::from_seed([1; 32]);
        let config = crate::BoxConfig::with_key("box.toml", &text, key).unwrap();
        FlowClassifier::new(config.rules)
    }

    fn flow() -> Flow {
        let destination = "198.51.100.1:443".parse::<core::net::SocketAddr>().unwrap();
        Flow::new(destination.into(), FlowHints::default(), 0)
    }

    fn declared(text: &str) -> Flow {
        let (declared, mistakes) = FlowHints::from_text(text);
        assert_eq!(mistakes, []);
        Flow { declared, ..flow() }
    }

    fn sniffed(host: Option<&str>, upload: Option<u64>) -> Sniffed {
        let host = host.map(str::to_owned);
        Sniffed { host, upload }
    }

    #[test]
    fn a_connection_without_properties_has_no_hints() {
        assert_eq!(classifier("").hints(NOW, &flow()), FlowHints::default());
    }

    /// Tests the code points of RFC 8325 section 4.3 that are more or less urgent than the default.
    #[test]
    fn code_points_set_the_urgency() {
        let mut classifier = classifier("");
        let levels = (0..64u8).filter_map(|dscp| {
            let flow = Flow { dscp, ..flow() };
            let urgency = classifier.hints(NOW, &flow).urgency?;
            Some((dscp, urgency.level()))
        });
        let expected = [
            (1, 7),
            (8, 7),
            (34, 2),
            (36, 2),
            (38, 2),
            (40, 1),
            (44, 1),
            (46, 1),
            (48, 1),
            (56, 1),
        ];
        assert_eq!(levels.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_first_rule_comes_after_hints_of_the_program_and_before_code_points() {
        let mut classifier = classifier(
            "[[rule]]\nport = 443\nurgency = 5\nstrategy = \"redundant\"\nsize = \"1MB\"\n\
             [[rule]]\nurgency = 6\n",
        );
        let marked = Flow { dscp: 46, ..flow() };
        let by_rule = FlowHints {
            size: FlowSize::Predicted(1_000_000),
            urgency: Urgency::new(5),
            deadline: None,
            strategy: Some("redundant".to_owned()),
        };
        assert_eq!(classifier.hints(NOW, &marked), by_rule);
        let flow = declared("urgency=0,size=7,strategy=roundrobin,deadline=1s");
        assert_eq!(classifier.hints(NOW, &flow), flow.declared);
        let flow = declared("urgency=0");
        let urgency = Some(Urgency::MOST_URGENT);
        assert_eq!(
            classifier.hints(NOW, &flow),
            FlowHints { urgency, ..by_rule }
        );
    }

    #[test]
    fn a_rule_for_a_domain_waits_for_its_name() {
        let mut classifier = classifier("[[rule]]\ndomain = \"example\"\nurgency = 7\n");
        let mut flow = flow();
        assert_eq!(classifier.hints(NOW, &flow).urgency, None);
        flow.add_sniffed(sniffed(Some("a.example"), None));
        assert_eq!(
            classifier.hints(NOW, &flow).urgency,
            Some(Urgency::LEAST_URGENT)
        );
        let destination = Destination::Name("B.Example.".to_owned(), 80);
        let named = Flow::new(destination, FlowHints::default(), 0);
        assert_eq!(
            classifier.hints(NOW, &named).urgency,
            Some(Urgency::LEAST_URGENT)
        );
    }

    #[test]
    fn the_length_of_an_upload_counts_where_it_is_likely_to_be_the_larger_direction() {
        let mut classifier = classifier("");
        let mut size = |flow: &mut Flow, upload| {
            flow.add_sniffed(sniffed(None, Some(upload)));
            classifier.hints(NOW, flow).size
        };
        assert_eq!(size(&mut flow(), 300), FlowSize::Unknown);
        assert_eq!(size(&mut flow(), 16 << 10), FlowSize::Unknown);
        assert_eq!(size(&mut flow(), 100_000), FlowSize::Read(100_000));
        let mut with_hint = declared("size=5kB");
        assert_eq!(size(&mut with_hint, 100_000), FlowSize::Declared(5_000));
        // Eight flows are more than a prediction needs.
        (0..8).for_each(|_| classifier.learn(NOW, &flow(), 200_000));
        let mut size = |upload| {
            let mut flow = flow();
            flow.add_sniffed(sniffed(None, Some(upload)));
            classifier.hints(NOW, &flow).size
        };
        assert_eq!(size(100_000), FlowSize::Predicted(200_000));
        assert_eq!(size(300_000), FlowSize::Read(300_000));
    }

    #[test]
    fn sizes_are_predicted_by_name_where_it_is_known_and_by_address_where_it_is_not() {
        let mut classifier = classifier("");
        for (host, bytes) in [("a.example", 20_000), ("b.example", 80_000)] {
            let mut flow = flow();
            flow.add_sniffed(sniffed(Some(host), None));
            (0..8).for_each(|_| classifier.learn(NOW, &flow, bytes));
        }
        let mut size = |host| {
            let mut flow = flow();
            flow.add_sniffed(sniffed(host, None));
            classifier.hints(NOW, &flow).size
        };
        assert_eq!(size(Some("a.example")), FlowSize::Predicted(20_000));
        assert_eq!(size(Some("b.example")), FlowSize::Predicted(80_000));
        // A flow to an unknown name gets the prediction of the address, which all 16 flows share: (20,000 +
        // 80,000) / 2.
        assert_eq!(size(Some("c.example")), FlowSize::Predicted(50_000));
        assert_eq!(size(None), FlowSize::Predicted(50_000));
    }

    #[test]
    fn a_flow_without_bytes_is_not_recorded() {
        let mut classifier = classifier("");
        (0..8).for_each(|_| classifier.learn(NOW, &flow(), 0));
        assert!(classifier.predictor.is_empty());
    }
}
