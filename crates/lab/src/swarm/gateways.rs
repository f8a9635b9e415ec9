//! Worlds in which unmodified users sit behind a box, and content behind servers.

use std::collections::BTreeMap;
use std::time::Duration;

use braid_links::middlebox::Chain;
use braid_links::{Loss, QueueLimit, Rate};
use braid_sim::MiddleboxNode;
use braid_sim::aggregation::{Action, Aggregation, AggregationConfig, Load, TransferId};
use braid_sim::oracle::{Rule, Violation};
use braid_sim::transfer::PathSettings;
use braid_wire::Rng;

use super::adversary::{Adversary, Attacked};
use super::draw::{CHANGES_WITHIN_MS, Draw, MAX_OUTAGE_MS};
use super::expect::{self, Counter, Ends, is_lossy};
use super::figures::Figures;
use super::scenario::{End, Flow, Opener, Scenario, Step, steps};

/// Logarithm to base 2 of the maximum size of a transfer: 1 MiB.
const MAX_SIZE_BITS: u64 = 20;
/// Simulated time after the last action within which all connections must end. A connection that is still
/// open at the end of this time counts as hanging.
const RUN_LIMIT: Duration = Duration::from_secs(1_800);

/// Number of the stream of the attacker's random numbers. The streams of the world's components have other
/// numbers.
const ADVERSARY_STREAM: u64 = 1 << 42;

/// Rules that a correct end may violate if a third party forges segments of its peer. In a world with an
/// attacker, these rules are not checked at boxes and servers.
const BREAKABLE_BY_FORGERY: [Rule; 3] = [Rule::Flight, Rule::Gap, Rule::WindowShrunk];

/// Everything that is drawn from one seed.
#[derive(Debug, Clone)]
pub struct GatewayScenario {
    access: Vec<PathSettings>,
    servers: usize,
    events: Vec<(Duration, Action)>,
    /// The users' connections.
    flows: Vec<Flow>,
    attacked: Option<Attacked>,
}

impl GatewayScenario {
    /// Draws a scenario. If `attacked`, it has an attacker on one of its links.
    pub fn draw(d: &mut Draw, attacked: bool) -> Self {
        let count = 1 + d.below(4) as usize;
        let access: Vec<PathSettings> = (0..count).map(|_| d.access_link()).collect();
        let servers = 1 + d.below(2) as usize;
        let mut events = Vec::new();
        for (link, settings) in access.iter().enumerate() {
            events.extend(d.outage(link, settings).into_iter().flatten());
        }
        if d.chance(0.15) {
            let (at, restored) = d.outage_times();
            let server = d.below(servers as u64) as usize;
            let (down, up) = match d.chance(0.7) {
                true => (Action::KillServer(server), Action::StartServer(server)),
                false => (Action::KillBox, Action::StartBox),
            };
            events.extend([(at, down), (restored, up)]);
        }
        let flows = (0..=d.below(5)).map(|_| d.user_flow()).collect();
        let attacked = attacked.then(|| Attacked {
            link: d.below(access.len() as u64) as usize,
            every: d.size(8),
            attacks: d.size(8) as u32,
            joins_only: false,
        });
        GatewayScenario {
            access,
            servers,
            events,
            flows,
            attacked,
        }
    }

    fn config(&self) -> AggregationConfig {
        let config = AggregationConfig::new(self.access.clone());
        let mut config = config.expect("as many links as a box may have");
        let set = config.set_servers(self.servers);
        set.expect("as many servers as a box may have");
        config
    }

    /// Does the same as [`Scenario::simulate`], but with the given configuration.
    fn simulate_with(&self, seed: u64, config: &AggregationConfig) -> Result<Figures, String> {
        let attacker = self.attacked.map(|attacked| {
            let rng = Rng::for_component(seed, ADVERSARY_STREAM);
            let adversary = Adversary::new(rng, &attacked);
            (attacked.link, Chain::new().and(adversary))
        });
        let net = Aggregation::with_middlebox(seed, config, attacker);
        let mut net = net.map_err(|e| e.to_string())?;
        if self.attacked.is_some() {
            net.world.keep_violations();
        }
        let intercepts = net.run_until_intercepting();
        if !intercepts && !self.loses() && self.attacked.is_none() {
            return Err("the box finds no server over links that lose nothing".to_owned());
        }
        let transfers = self.run(&mut net)?;
        check_world(&mut net)?;
        let ends = |n| Some(self.ends(&net, n, transfers[&n]));
        let explain = |flow: &Flow, ends: &Ends<'_>| self.explain(flow, ends);
        let mut figures = expect::check(&self.flows, ends, explain)?;
        let links = net.access.iter().flat_map(|(up, down)| [*up, *down]);
        figures.record(&net.world, links);
        Ok(figures)
    }

    /// Runs to the end of all connections, and returns the transfer of each flow.
    fn run(&self, net: &mut Aggregation) -> Result<BTreeMap<usize, TransferId>, String> {
        let start = net.world.now();
        for (after, action) in &self.events {
            net.after(*after, action.clone());
        }
        let mut transfers = BTreeMap::new();
        for (at, step) in steps(&self.flows, &[]) {
            net.run_for((start + at).saturating_since(net.world.now()));
            match step {
                Step::Open(n) => {
                    let opened = net.open(0, 0, self.flows[n].load);
                    let failed = |e| format!("flow {n} does not open: {e}");
                    transfers.insert(n, opened.map_err(failed)?);
                }
                Step::Abort(n, _) => net.abort(transfers[&n]),
                // Users behind a box do not pause, and get no notices.
                Step::Pause(..) | Step::Notice(_) => {}
            }
        }
        if !net.finish(RUN_LIMIT) {
            let ends = transfers.iter().flat_map(|(n, id)| self.ends(net, *n, *id));
            let ends: String = ends.map(|end| format!("\n  {end}")).collect();
            return Err(format!("hangs: {ends}"));
        }
        Ok(transfers)
    }

    fn ends<'a>(&self, net: &'a Aggregation, n: usize, id: TransferId) -> Ends<'a> {
        self.flows[n].ends([Some(net.at_user(id)), net.at_content(id)])
    }

    /// Returns the counter of the fault that explains the end of `flow`, if there is one.
    ///
    /// # Errors
    /// No fault may explain the end.
    fn explain(
        &self,
        flow: &Flow,
        [user, content]: &Ends<'_>,
    ) -> Result<Option<Counter>, &'static str> {
        // The box terminates the user's TCP and acknowledges an upload before the content host has it. A
        // user's orderly close therefore requires complete data at the user, not at the content host.
        if user.is_finished() && !user.is_complete() {
            return Err("ends in order at the user, who has not read or written all bytes");
        }
        let fetches = matches!(flow.load, Load::Down(_));
        if fetches && user.is_finished() && content.stream.is_none() {
            return Err("ends in order at the user, but the content host saw no connection");
        }
        let disturbed = !self.events.is_empty() || self.loses() || self.attacked.is_some();
        Ok(disturbed.then_some(|figures| &mut figures.broken))
    }

    /// Returns whether the links drop or corrupt packets at random.
    fn loses(&self) -> bool {
        self.access.iter().any(is_lossy)
    }
}

impl Scenario for GatewayScenario {
    fn simulate(self: Box<Self>, seed: u64) -> Result<Figures, String> {
        self.simulate_with(seed, &self.config())
    }
}

/// Checks that no rule is violated, and that no packet on the attacker's link shows users' bytes.
fn check_world(net: &mut Aggregation) -> Result<(), String> {
    let counts = |(node, violation): &&(_, Violation)| {
        let gateway = *node == net.boxed || net.servers.contains(node);
        !(gateway && BREAKABLE_BY_FORGERY.contains(&violation.rule))
    };
    if let Some((node, violation)) = net.world.violations().iter().find(counts) {
        return Err(format!("{node:?} {violation}"));
    }
    let leaks = net.middlebox.map_or(0, |node| {
        let leaks = |node: &mut MiddleboxNode, _| node.get_mut::<Adversary>().leaks;
        net.world.with_node(node, leaks)
    });
    match leaks {
        0 => Ok(()),
        leaks => Err(format!("{leaks} packets show users' bytes")),
    }
}

impl Draw {
    fn access_link(&mut self) -> PathSettings {
        let delay = Duration::from_micros(500) + self.up_to_ms(80);
        let mut link = self.link(delay);
        for settings in [&mut link.up, &mut link.down] {
            // Most access links lose little; scenarios without a box cover loss on every path.
            if self.chance(0.5) {
                settings.loss = Loss::None;
            }
            // A long queue on a slow link would delay packets by many seconds. The box would then take the
            // server for dead. 20 full packets take 0.6 s at the lowest rate, 400 kbit/s.
            if matches!(settings.rate, Rate::Fixed(rate) if rate.get() < 1_000_000) {
                settings.queue = QueueLimit::Packets(20);
            }
        }
        link
    }

    /// Draws at most one outage of a link. During the outage, the link drops all packets without notice, or
    /// loses its carrier.
    fn outage(&mut self, link: usize, settings: &PathSettings) -> Option<[(Duration, Action); 2]> {
        if self.chance(0.65) {
            return None;
        }
        let (at, restored) = self.outage_times();
        let carrier = |up| Action::Carrier { link, up };
        let access = |up| {
            let mut settings = Box::new(settings.clone());
            (settings.up.up, settings.down.up) = (up, up);
            Action::Access { link, settings }
        };
        let (down, up) = match self.chance(0.4) {
            true => (carrier(false), carrier(true)),
            false => (access(false), access(true)),
        };
        Some([(at, down), (restored, up)])
    }

    /// Draws the beginning and the end of an outage.
    fn outage_times(&mut self) -> (Duration, Duration) {
        let at = self.up_to_ms(CHANGES_WITHIN_MS);
        (at, at + self.up_to_ms(MAX_OUTAGE_MS))
    }

    fn user_flow(&mut self) -> Flow {
        let size = self.size(MAX_SIZE_BITS);
        let load = match self.below(4) {
            0 | 1 => Load::Down(size),
            2 => Load::Up(size),
            _ => Load::Post {
                sends: self.size(MAX_SIZE_BITS - 2),
                answer: size,
            },
        };
        let abort = self.up_to_ms(4_000);
        let at = self.up_to_ms(CHANGES_WITHIN_MS);
        let mut flow = Flow::tcp(Opener::Client, at, load);
        flow.abort = self.chance(0.1).then_some((End::Opener, abort));
        flow
    }
}

#[cfg(test)]
mod tests {
    use braid_proxy::config::Protection;

    use super::*;

    impl GatewayScenario {
        fn config_with(&self, protection: Protection) -> AggregationConfig {
            let mut config = self.config();
            for server in &mut config.boxed.servers {
                server.protection = protection;
            }
            for server in &mut config.servers {
                server.config.unprotected = protection == Protection::None;
            }
            config
        }
    }

    /// Draws a scenario that only the attacker disturbs, apart from losses.
    fn attacked_scenario(seed: u64) -> GatewayScenario {
        let mut scenario = GatewayScenario::draw(&mut Draw::new(seed), true);
        scenario.events.clear();
        scenario
    }

    /// An attacker who knows only the keys of Multipath TCP disturbs no connection, however many subflows
    /// it opens: every transfer completes. The attacker only adds subflows to connections whose keys passed its
    /// link. The links lose nothing.
    #[test]
    fn an_attacker_who_joins_takes_nothing() {
        for seed in 0..60 {
            let mut scenario = attacked_scenario(seed);
            scenario.flows.iter_mut().for_each(|flow| flow.abort = None);
            for link in &mut scenario.access {
                for settings in [&mut link.up, &mut link.down] {
                    (settings.loss, settings.corrupt) = (Loss::None, 0.0);
                }
            }
            if let Some(attacked) = &mut scenario.attacked {
                // The attacker uses one packet in four on average, so that it opens many subflows.
                (attacked.joins_only, attacked.every, attacked.attacks) = (true, 4, 256);
            }
            let config = scenario.config_with(Protection::Tls);
            let figures = scenario.simulate_with(seed, &config).unwrap();
            assert_eq!(figures.broken, 0, "seed {seed}");
        }
    }

    /// Shows that the attacker is effective: without protection it reads and forges bytes.
    #[test]
    fn without_protection_an_attacker_reads_and_forges() {
        let mut seen = String::new();
        for seed in 0..60 {
            let scenario = attacked_scenario(seed);
            let config = scenario.config_with(Protection::None);
            seen.extend(scenario.simulate_with(seed, &config).err());
        }
        for what in ["packets show users' bytes", "is not what was sent"] {
            assert!(seen.contains(what), "{what}: {seen}");
        }
    }
}
