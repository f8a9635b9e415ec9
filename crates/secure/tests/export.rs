//! Secrets that both ends of a channel export.

use std::net::SocketAddr;
use std::time::Duration;

use braid_engine::{ApiError, Config, ConnectOptions, Event, PathConfig, RxMeta, Stack};
use braid_secure::channel::{Channel, ChannelError, Client, Server, Versions};
use braid_secure::keys::PrivateKey;
use braid_wire::{Instant, Rng};

const LABEL: &[u8] = b"EXPERIMENTAL test";
const DELAY: Duration = Duration::from_millis(10);

/// The errors of reading a channel.
#[derive(Debug)]
struct Failed;

impl From<ApiError> for Failed {
    fn from(_: ApiError) -> Self {
        Failed
    }
}

impl From<ChannelError> for Failed {
    fn from(_: ChannelError) -> Self {
        Failed
    }
}

/// A client and a server, whose packets take [`DELAY`].
struct World {
    now: Instant,
    stacks: [Stack; 2],
    server: Server,
    /// The end of the server, once it has accepted the connection.
    accepted: Option<Channel>,
    /// True if the server exported a secret on the connection when it could open early data.
    early_secret: Option<bool>,
}

fn strategy() -> Box<dyn braid_engine::strategy::Strategy> {
    braid_strategy::by_name("minrtt").unwrap()
}

fn remote() -> SocketAddr {
    SocketAddr::from(([10, 0, 9, 1], 80))
}

fn keys() -> [PrivateKey; 2] {
    [1, 2].map(|n| PrivateKey::from_seed([n; 32]))
}

impl World {
    fn new() -> World {
        let mut stacks = [[1; 32], [2; 32]]
            .map(|seed| Stack::new(Config::default(), Rng::from_seed(seed), Box::new(strategy)));
        for (stack, addr) in stacks.iter_mut().zip([[10, 0, 0, 2], [10, 0, 9, 1]]) {
            stack.add_path(PathConfig::v4(addr.into())).unwrap();
        }
        stacks[1].listen(remote()).unwrap();
        let [user, key] = keys();
        World {
            now: Instant::from_millis(1_000),
            stacks,
            server: Server::new(&key, [user.public()], Versions::OURS),
            accepted: None,
            early_secret: None,
        }
    }

    fn connect(&mut self) -> braid_engine::ConnId {
        let options = ConnectOptions::new(remote(), strategy());
        self.stacks[0].connect(self.now, options).unwrap()
    }

    /// Runs for some round trips.
    fn run(&mut self, channel: &mut Channel) {
        for _ in 0..20 {
            let mut packets = Vec::new();
            for end in 0..2 {
                while let Some(event) = self.stacks[end].poll_event() {
                    self.on_event(end, channel, &event);
                }
                while let Some(transmit) = self.stacks[end].poll_transmit(self.now) {
                    let packet = [transmit.header, &transmit.payload.concat()].concat();
                    packets.push((1 - end, packet, transmit.gso_size));
                }
            }
            self.now += DELAY;
            for (to, packet, gso_size) in packets {
                let meta = RxMeta {
                    checksum_ok: true,
                    gso_size,
                };
                self.stacks[to].receive(self.now, &packet, meta);
            }
            for stack in &mut self.stacks {
                if stack.next_timeout().is_some_and(|at| at <= self.now) {
                    stack.handle_timeout(self.now);
                }
            }
        }
    }

    fn on_event(&mut self, end: usize, channel: &mut Channel, event: &Event) {
        let (now, stack) = (self.now, &mut self.stacks[end]);
        if end == 0 {
            channel.drive::<Failed>(now, stack).unwrap();
            return;
        }
        if let Event::Accepted { conn, .. } = event {
            self.accepted = Some(Channel::incoming(now, *conn, stack));
        }
        let Some(accepted) = &mut self.accepted else {
            return;
        };
        if !accepted.is_protected()
            && let Some(protected) = Channel::accept(now, accepted.conn, &self.server, stack)
        {
            *accepted = protected;
        }
        accepted.drive::<Failed>(now, stack).unwrap();
        if accepted.is_protected() && accepted.peer().is_some() {
            let has_secret = export(accepted, b"x").is_some();
            self.early_secret.get_or_insert(has_secret);
        }
    }
}

fn export(channel: &Channel, context: &[u8]) -> Option<[u8; 32]> {
    channel.export_secret(LABEL, context).map(|secret| *secret)
}

#[test]
fn both_ends_export_the_same_secret_for_the_same_context_and_no_other() {
    let mut w = World::new();
    let [user, key] = keys();
    let client = Client::new(&user, key.public(), Versions::OURS);
    let mut secrets = Vec::new();
    for round in 0..2 {
        w.accepted = None;
        w.early_secret = None;
        let conn = w.connect();
        let mut channel = Channel::open(w.now, conn, &client, &mut w.stacks[0]).unwrap();
        // With a ticket, these bytes are early data.
        channel
            .write_all(w.now, &mut w.stacks[0], b"first bytes")
            .unwrap();
        assert_eq!(export(&channel, b"x"), None, "before the handshake");
        w.run(&mut channel);
        let accepted = w.accepted.as_ref().unwrap();
        for context in [&b"x"[..], b"y", b""] {
            let secret = export(&channel, context).expect("after the handshake");
            assert_eq!(export(accepted, context), Some(secret));
            assert!(!secrets.contains(&secret), "round {round}");
            secrets.push(secret);
        }
        let other = channel.export_secret(b"EXPERIMENTAL other", b"x").unwrap();
        assert!(!secrets.contains(&*other));
        // The first connection has no early data; on the second one, early data comes before the handshake ends.
        assert_eq!(w.early_secret, Some(round == 0));
    }
}

#[test]
fn plaintext_has_no_secrets() {
    let mut w = World::new();
    let conn = w.connect();
    assert_eq!(export(&Channel::plaintext(conn), b"x"), None);
}
