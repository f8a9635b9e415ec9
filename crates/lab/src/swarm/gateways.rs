//! Worlds in which unmodified users sit behind a box, and content behind servers.

use std::time::Duration;

use braid_engine::CloseReason;
use braid_links::middlebox::Chain;
use braid_links::{Loss, QueueLimit, Rate, Settings};
use braid_sim::MiddleboxNode;
use braid_sim::aggregation::{Action, Aggregation, AggregationConfig, Load, TransferId};
use braid_sim::oracle::{Rule, Violation};
use braid_sim::traffic::{Role, Stream};
use braid_sim::transfer::{PathSettings, REQUEST};

use braid_wire::Rng;

use super::adversary::Adversary;
use super::draw::{CHANGES_WITHIN_MS, Draw, MAX_OUTAGE_MS};
use super::expect::describe_end;
use super::figures::Figures;

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
    transfers: Vec<Transfer>,
    attacked: Option<Attacked>,
}

/// An access link with an attacker on it.
#[derive(Debug, Clone, Copy)]
struct Attacked {
    link: usize,
    /// The attacker uses one packet of this many for an attack, on average.
    every: u64,
    /// Maximum number of attacks.
    attacks: u32,
    /// True if all attacks are new subflows (MP_JOIN).
    joins_only: bool,
}

/// A user's connection.
#[derive(Debug, Clone, Copy)]
struct Transfer {
    at: Duration,
    load: Load,
    /// The time from the opening until the user resets the connection.
    abort: Option<Duration>,
}

/// An action of a user.
#[derive(Debug, Clone, Copy)]
enum Step {
    Open(usize),
    Abort(usize),
}

impl GatewayScenario {
    /// Draws a scenario. If `attacked`, it has an attacker on one of its links.
    pub fn draw(d: &mut Draw, attacked: bool) -> Self {
        let count = 1 + d.below(4) as usize;
        let access: Vec<PathSettings> = (0..count).map(|_| d.access_link()).collect();
        let servers = 1 + d.below(2) as usize;
        let mut events = Vec::new();
        for (link, settings) in access.iter().enumerate() {
            events.extend(d.outages(link, settings));
        }
        if d.chance(0.15) {
            let at = d.up_to_ms(CHANGES_WITHIN_MS);
            let restored = at + d.up_to_ms(MAX_OUTAGE_MS);
            let server = d.below(servers as u64) as usize;
            let (down, up) = match d.chance(0.7) {
                true => (Action::KillServer(server), Action::StartServer(server)),
                false => (Action::KillBox, Action::StartBox),
            };
            events.extend([(at, down), (restored, up)]);
        }
        let transfers = (0..=d.below(5)).map(|_| d.transfer()).collect();
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
            transfers,
            attacked,
        }
    }

    /// Runs the scenario and checks how its connections end.
    ///
    /// # Errors
    /// The first expectation that was not met.
    pub fn simulate(&self, seed: u64) -> Result<Figures, String> {
        let config = AggregationConfig::new(self.access.clone());
        let mut config = config.map_err(|e| e.to_string())?;
        config
            .set_servers(self.servers)
            .map_err(|e| e.to_string())?;
        self.simulate_with(seed, &config)
    }

    /// Does the same as [`Self::simulate`], but with the given configuration.
    fn simulate_with(&self, seed: u64, config: &AggregationConfig) -> Result<Figures, String> {
        let attacker = self.attacked.map(|attacked| {
            let rng = Rng::for_component(seed, ADVERSARY_STREAM);
            let attacker = Adversary::new(rng, attacked.every, attacked.attacks);
            let attacker = attacker.with_joins_only(attacked.joins_only);
            (attacked.link, Chain::new().and(attacker))
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
        let start = net.world.now();
        for (after, action) in &self.events {
            net.after(*after, action.clone());
        }
        let mut open: Vec<Option<TransferId>> = vec![None; self.transfers.len()];
        for (at, step) in self.steps() {
            net.run_for((start + at).saturating_since(net.world.now()));
            match step {
                Step::Open(n) => {
                    let opened = net.open(0, 0, self.transfers[n].load);
                    open[n] = Some(opened.map_err(|e| format!("transfer {n} does not open: {e}"))?);
                }
                Step::Abort(n) => {
                    if let Some(id) = open[n] {
                        net.abort(id);
                    }
                }
            }
        }
        if !net.finish(RUN_LIMIT) {
            return Err(format!("hangs: {}", self.describe_ends(&net, &open)));
        }
        let counts = |(node, violation): &&(_, Violation)| {
            let gateway = *node == net.boxed || net.servers.contains(node);
            !(gateway && BREAKABLE_BY_FORGERY.contains(&violation.rule))
        };
        if let Some((node, violation)) = net.world.violations().iter().find(counts) {
            return Err(format!("{node:?} {violation}"));
        }
        if let Some(node) = net.middlebox {
            let leaks = net.world.with_node(node, |node: &mut MiddleboxNode, _| {
                node.get_mut::<Adversary>().leaks
            });
            if leaks > 0 {
                return Err(format!("{leaks} packets show users' bytes"));
            }
        }
        let mut figures = Figures::default();
        figures.record(
            &net.world,
            net.access.iter().flat_map(|(up, down)| [*up, *down]),
        );
        for (n, id) in open.iter().enumerate() {
            let Some(id) = *id else { continue };
            self.check(n, (net.at_user(id), net.at_content(id)), &mut figures)?;
        }
        Ok(figures)
    }

    /// Returns the actions of all users in order of time.
    fn steps(&self) -> Vec<(Duration, Step)> {
        let mut steps = Vec::new();
        for (n, transfer) in self.transfers.iter().enumerate() {
            steps.push((transfer.at, Step::Open(n)));
            steps.extend(
                transfer
                    .abort
                    .map(|after| (transfer.at + after, Step::Abort(n))),
            );
        }
        steps.sort_by_key(|(at, _)| *at);
        steps
    }

    /// Checks the end of transfer `n`, and counts it in `figures`.
    fn check(
        &self,
        n: usize,
        (user, content): (&Stream, Option<&Stream>),
        figures: &mut Figures,
    ) -> Result<(), String> {
        figures.connections += 1;
        let transfer = &self.transfers[n];
        let wrong = |what: &str| {
            let ends = [("user", Some(user)), ("content", content)].map(describe_end);
            Err(format!(
                "transfer {n} {what}: {transfer:?}\n{}\n{}",
                ends[0], ends[1]
            ))
        };
        let (reads, writes) = match transfer.load {
            Load::Down(size) => (size, REQUEST),
            Load::Up(size) => (0, size),
            Load::Post { sends, answer } => (answer, sends),
        };
        let is_complete = |end: &Stream, received, sent| {
            end.received == received && end.sent == sent && end.complete_at.is_some()
        };
        let finished = |end: &Stream| end.closed.is_some_and(|(_, r)| r == CloseReason::Finished);
        let user_complete = is_complete(user, reads, writes);
        let content_complete = content.is_some_and(|c| is_complete(c, writes, reads));
        if user_complete && content_complete && finished(user) && content.is_some_and(finished) {
            return Ok(());
        }
        // The box terminates the user's TCP and acknowledges an upload before the content host has it. A
        // user's orderly close therefore requires complete data at the user, not at the content host.
        if finished(user) && !user_complete {
            return wrong("ends in order at the user, who has not read or written all bytes");
        }
        if matches!(user.role, Role::Fetch { .. }) && finished(user) && content.is_none() {
            return wrong("ends in order at the user, but the content host saw no connection");
        }
        if transfer.abort.is_some() {
            figures.aborted += 1;
            return Ok(());
        }
        if !self.events.is_empty() || self.loses() || self.attacked.is_some() {
            figures.broken += 1;
            return Ok(());
        }
        wrong("does not end in order, although its scenario has no fault")
    }

    /// Returns whether the links drop or corrupt packets at random. Drops of full queues do not count.
    fn loses(&self) -> bool {
        let lossy = |s: &Settings| s.loss != Loss::None || s.corrupt > 0.0;
        self.access
            .iter()
            .any(|link| lossy(&link.up) || lossy(&link.down))
    }

    fn describe_ends(&self, net: &Aggregation, open: &[Option<TransferId>]) -> String {
        let each = open.iter().flatten().flat_map(|id| {
            [
                ("user", Some(net.at_user(*id))),
                ("content", net.at_content(*id)),
            ]
            .map(describe_end)
        });
        each.collect::<Vec<_>>().join("\n")
    }
}

impl Draw {
    fn access_link(&mut self) -> PathSettings {
        let delay = Duration::from_micros(500) + self.up_to_ms(80);
        let mut link = PathSettings {
            up: self.link(delay),
            down: self.link(delay),
        };
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
    fn outages(&mut self, link: usize, settings: &PathSettings) -> Vec<(Duration, Action)> {
        let mut events = Vec::new();
        if self.chance(0.65) {
            return events;
        }
        let at = self.up_to_ms(CHANGES_WITHIN_MS);
        let restored = at + self.up_to_ms(MAX_OUTAGE_MS);
        if self.chance(0.4) {
            events.push((at, Action::Carrier { link, up: false }));
            events.push((restored, Action::Carrier { link, up: true }));
            return events;
        }
        let mut dark = settings.clone();
        (dark.up.up, dark.down.up) = (false, false);
        for (at, settings) in [(at, dark), (restored, settings.clone())] {
            let settings = Box::new(settings);
            events.push((at, Action::Access { link, settings }));
        }
        events
    }

    fn transfer(&mut self) -> Transfer {
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
        Transfer {
            at: self.up_to_ms(CHANGES_WITHIN_MS),
            load,
            abort: self.chance(0.1).then_some(abort),
        }
    }
}

#[cfg(test)]
mod tests {
    use braid_proxy::config::Protection;

    use super::*;

    impl GatewayScenario {
        fn config(&self, protection: Protection) -> AggregationConfig {
            let config = AggregationConfig::new(self.access.clone());
            let mut config = config.expect("as many links as a box may have");
            config
                .set_servers(self.servers)
                .expect("as many servers as a box may have");
            for server in &mut config.boxed.servers {
                server.protection = protection;
            }
            for server in &mut config.servers {
                server.config.unprotected = protection == Protection::None;
            }
            config
        }
    }

    /// Runs a scenario over links without loss. The attacker only adds subflows to connections whose keys
    /// passed its link.
    fn run_with_joins_only(seed: u64) -> Result<Figures, String> {
        let mut scenario = GatewayScenario::draw(&mut Draw::new(seed), true);
        scenario.events.clear();
        for transfer in &mut scenario.transfers {
            transfer.abort = None;
        }
        for link in &mut scenario.access {
            for settings in [&mut link.up, &mut link.down] {
                (settings.loss, settings.corrupt) = (Loss::None, 0.0);
            }
        }
        if let Some(attacked) = &mut scenario.attacked {
            // The attacker uses one packet in four on average, so that it opens many subflows.
            (attacked.joins_only, attacked.every, attacked.attacks) = (true, 4, 256);
        }
        scenario.simulate_with(seed, &scenario.config(Protection::Tls))
    }

    /// An attacker who knows only the keys of Multipath TCP disturbs no connection, however many subflows
    /// it opens: every transfer completes.
    #[test]
    fn an_attacker_who_joins_takes_nothing() {
        for seed in 0..60 {
            let figures = run_with_joins_only(seed).unwrap();
            assert_eq!(figures.broken, 0, "seed {seed}");
        }
    }

    /// Shows that the attacker is effective: without protection it reads and forges bytes.
    #[test]
    fn without_protection_an_attacker_reads_and_forges() {
        let mut seen = String::new();
        for seed in 0..60 {
            let mut scenario = GatewayScenario::draw(&mut Draw::new(seed), true);
            // Only the attacker disturbs the connections.
            scenario.events.clear();
            let config = scenario.config(Protection::None);
            seen.extend(scenario.simulate_with(seed, &config).err());
        }
        for what in ["packets show users' bytes", "is not what was sent"] {
            assert!(seen.contains(what), "{what}: {seen}");
        }
    }
}
