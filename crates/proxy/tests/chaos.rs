//! Many connections at once over links that come, go, lose packets and fall silent. The seed is printed.

use core::time::Duration;

use crate::world::downstream::Content;
use crate::world::{Setup, World};
use braid_proxy::app::DownstreamId;
use braid_wire::Rng;

fn pattern(seed: u64, n: usize) -> Vec<u8> {
    let mut data = vec![0; n];
    Rng::for_component(seed, 77).fill(&mut data);
    data
}

/// The behaviour of a user.
enum Wish {
    Download(Vec<u8>),
    Echo(Vec<u8>),
    Upload(usize),
    /// A user who leaves in the middle.
    Abort,
}

struct Run {
    w: World,
    rng: Rng,
    users: Vec<(DownstreamId, Wish)>,
}

impl Run {
    fn open(&mut self, n: u64) {
        let size = 1u64 << self.rng.below(19);
        let size = (size + self.rng.below(size)) as usize;
        let data = pattern(n, size);
        let address = format!("198.51.{}.{}:80", 100 + n / 250, n % 250 + 1);
        let wish = match self.rng.below(4) {
            0 => Wish::Download(data.clone()),
            1 => Wish::Echo(data.clone()),
            2 => Wish::Upload(size),
            _ => Wish::Abort,
        };
        let (content, sends, ends) = match &wish {
            Wish::Download(_) => (Content::Sends(data, true), b"GET".to_vec(), true),
            Wish::Echo(_) | Wish::Abort => (Content::Echoes, data, true),
            Wish::Upload(_) => (Content::Counts, data, true),
        };
        self.w.content(&address, content);
        let user = self.w.open(&address, &sends, ends);
        self.users.push((user, wish));
    }

    /// Disturbs one link, never both, for a while.
    fn trouble(&mut self) {
        let link = self.rng.below(2) as usize;
        match self.rng.below(4) {
            0 => self.w.links[link].dark = true,
            1 => self.w.set_link(link, false),
            2 => self.w.links[link].loss = 0.05,
            _ => {}
        }
        let time = Duration::from_millis(self.rng.below(12_000));
        self.w.run_for(time);
        self.w.links[link].dark = false;
        self.w.links[link].loss = 0.0;
        self.w.set_link(link, true);
    }

    fn aborts(&mut self) {
        for i in 0..self.users.len() {
            let (user, wish) = &self.users[i];
            let stream = self.w.user(*user);
            if matches!(wish, Wish::Abort) && !stream.closed && !stream.broken {
                let user = *user;
                self.w.boxed.downstream.break_stream(user);
            }
        }
    }

    fn check(&mut self, seed: u64) {
        for (i, (user, wish)) in self.users.iter().enumerate() {
            let stream = self.w.user(*user);
            assert!(stream.closed, "seed {seed}: user {i} hangs");
            let reset = stream.reset;
            match wish {
                Wish::Download(data) | Wish::Echo(data) => {
                    assert!(!reset, "seed {seed}: user {i} was reset");
                    assert!(stream.got == *data, "seed {seed}: user {i} got other bytes");
                }
                Wish::Upload(n) => {
                    assert!(!reset, "seed {seed}: user {i} was reset");
                    assert_eq!(
                        stream.got,
                        n.to_string().as_bytes(),
                        "seed {seed}: user {i}"
                    );
                }
                Wish::Abort => {}
            }
        }
        assert_eq!(self.w.core.connections(), 0, "seed {seed}");
        assert_eq!(self.w.server().connections(), 0, "seed {seed}");
        let open = |w: &mut World| {
            w.server_downstream()
                .streams
                .values()
                .filter(|s| !s.closed)
                .count()
        };
        assert_eq!(open(&mut self.w), 0, "seed {seed}: streams left open");
        let (node, _) = self.w.server.as_ref().unwrap();
        for stack in [&self.w.boxed.stack, &node.stack] {
            assert_eq!(stack.connections(), 0, "seed {seed}: connections left");
            assert_eq!(stack.buffered(), 0, "seed {seed}: buffers left");
        }
    }
}

fn run(seed: u64, users: u64) {
    println!("seed {seed}");
    // Every other box has idle connections.
    let warm = (seed % 2) as usize * 4;
    let setup = Setup {
        warm,
        ..Setup::default()
    };
    let mut run = Run {
        w: World::ready(2, setup),
        rng: Rng::for_component(seed, 1),
        users: Vec::new(),
    };
    for n in 0..users {
        run.open(n);
        if n % 10 == 9 {
            run.trouble();
            run.aborts();
        }
    }
    let all =
        |w: &World, users: &[(DownstreamId, Wish)]| users.iter().all(|(u, _)| w.user(*u).closed);
    run.aborts();
    let users = std::mem::take(&mut run.users);
    run.w.run_until(|w| all(w, &users));
    run.users = users;
    run.w.run_for(Duration::from_secs(30));
    // Take the links down, so that no probe is under way when the connections are counted.
    for link in 0..2 {
        run.w.set_link(link, false);
    }
    run.w.run_for(Duration::from_secs(15));
    if warm > 0 {
        // With the links down, the server does not learn that the idle connections are closed.
        assert!(run.w.core.counters().idle_used > 0, "seed {seed}");
        run.w.run_for(Duration::from_secs(120));
    }
    run.check(seed);
}

#[test]
fn every_connection_ends_as_it_should() {
    for seed in 0..60 {
        run(seed, 60);
    }
}
