//! The servers of a box: their keys, the protection of connections to them, the choice among them, and the address
//! families that they reach.

use core::time::Duration;

use braid_engine::{ApiError, ConnectOptions, Stack};
use braid_secure::Families;
use braid_secure::auth::{SignIn, WallClock};
use braid_secure::channel::{Channel, Client, Versions};
use braid_secure::keys::PrivateKey;
use braid_wire::{Instant, Rng};

use super::families::ReachedFamilies;
use super::log::LoggedState;
use crate::admin::status::ProtocolStatus;
use crate::config::{BoxConfig, Protection, Select, ServerEntry};
use crate::select::choice::Choice;
use crate::select::selection::Need;

/// The servers, in the order of the configuration.
pub(super) struct Servers {
    /// The box's private key.
    pub(super) key: PrivateKey,
    pub(super) entries: Vec<ServerEntry>,
    /// The TLS client for each server; `None` if connections to it are plaintext.
    pub(super) clients: Vec<Option<Client>>,
    pub(super) choice: Choice,
    /// For each server the state that the log reported last.
    pub(super) logged: Vec<LoggedState>,
    /// The address families that each server reaches.
    pub(super) reached: ReachedFamilies,
    pub(super) clock: WallClock,
    /// The source of nonces for sign-ins in plaintext.
    rng: Rng,
}

impl Servers {
    pub(super) fn new(config: &BoxConfig, rng: Rng) -> Self {
        let client = |server: &ServerEntry| match server.protection {
            Protection::Tls => Some(Client::new(&config.key, server.key, config.versions)),
            Protection::None => None,
        };
        Servers {
            key: config.key.clone(),
            entries: config.servers.clone(),
            clients: config.servers.iter().map(client).collect(),
            choice: Choice::new(config.select, config.measuring.gain),
            logged: vec![LoggedState::default(); config.servers.len()],
            reached: ReachedFamilies::new(config.servers.len()),
            clock: WallClock::default(),
            rng,
        }
    }

    pub(super) fn set_wall_clock(&mut self, now: Instant, since_epoch: Duration) {
        self.clock.set(now, since_epoch);
        for client in self.clients.iter().flatten() {
            client.set_clock(now, &self.clock);
        }
    }

    /// Opens a connection to a server. Also returns the password to sign in with if the connection is plaintext.
    pub(super) fn channel(
        &mut self,
        (now, server): (Instant, usize),
        options: ConnectOptions,
        stack: &mut Stack,
    ) -> Result<(Channel, Option<SignIn>), ApiError> {
        let conn = stack.connect(now, options)?;
        let Some(client) = &self.clients[server] else {
            let mut nonce = [0; 16];
            self.rng.fill(&mut nonce);
            let sign_in = SignIn::new(self.clock.unix_ms(now), nonce);
            return Ok((Channel::plaintext(conn), Some(sign_in)));
        };
        let channel = Channel::open(now, conn, client, stack);
        if channel.is_err() {
            stack.abort(now, conn);
        }
        channel.map(|channel| (channel, None))
    }

    /// Returns the index of the server that is chosen for `need`.
    pub(super) fn current(&self, need: Need) -> usize {
        self.choice.server(need)
    }

    /// Returns whether measurements choose among several servers.
    pub(super) fn has_choice(&self) -> bool {
        self.entries.len() > 1 && self.choice.select != Select::Order
    }

    /// Returns the needs of connections, the more frequent first.
    pub(super) fn needs(&self) -> impl Iterator<Item = Need> + use<> {
        let usual = self.choice.default_need();
        // All rules except `Auto` use one server for all connections.
        let other = (self.choice.select == Select::Auto).then_some(Need::Latency);
        core::iter::once(usual).chain(other)
    }

    /// Returns the families that a server reaches, by its latest report.
    pub(super) fn families_of(&self, server: usize) -> Families {
        self.reached.of(server)
    }

    /// Returns the version and features agreed with a server; `None` before the first handshake, and for a
    /// plaintext server.
    pub(super) fn agreed_with(&self, server: usize) -> Option<ProtocolStatus> {
        let client = self.clients.get(server)?.as_ref()?;
        client.agreed().map(ProtocolStatus::from)
    }

    /// Returns whether a server may offer a tunnel, by what is known of it: the connection is protected, and the last
    /// handshake showed the feature.
    pub(super) fn may_offer_tunnel(&self, server: usize) -> bool {
        let client = self.clients.get(server).and_then(Option::as_ref);
        client.is_some_and(|client| {
            let agreed = client.agreed();
            agreed.is_none_or(|agreed| agreed.has(Versions::TUNNEL))
        })
    }

    /// Returns the name of the server that the operator has selected by hand.
    pub(super) fn wanted(&self) -> Option<&str> {
        let wanted = self.choice.operator_choice?;
        Some(&self.entries[wanted].name)
    }

    /// Returns the time at which measurements begin to decide, or a server is asked again for its address
    /// families.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let timeouts = [self.choice.next_timeout(), self.reached.next_timeout()];
        timeouts.into_iter().flatten().min()
    }
}
