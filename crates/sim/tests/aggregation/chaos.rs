//! Random faults of links and machines: complete data is whole, and every connection ends.

use core::time::Duration;

use braid_engine::CloseReason;
use braid_links::{Loss, Reorder};
use braid_sim::aggregation::{Action, Aggregation, AggregationConfig, Load, TransferId};
use braid_wire::Rng;

use crate::support::{dark, link, nothing_is_left, secs};

/// The parts that may fail.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Faults {
    Links,
    LinksAndMachines,
}

fn network(rng: &mut Rng) -> AggregationConfig {
    let access = (0..1 + rng.below(3)).map(|_| {
        let mut path = link(1 + rng.below(30), 10 + rng.below(150));
        let loss = Loss::Uniform(rng.unit().powi(3) * 0.05);
        (path.up.loss, path.down.loss) = (loss, loss);
        path.down.reorder = Reorder {
            share: rng.unit().powi(4) * 0.02,
            detour: Duration::from_millis(rng.below(20)),
        };
        path.down.duplicate = rng.unit().powi(6) * 0.02;
        path
    });
    let mut config = AggregationConfig::new(access.collect()).unwrap();
    let users = 1 + rng.below(3) as usize;
    config.users = vec![config.users[0].clone(); users];
    if rng.chance(0.4) {
        config.set_servers(2).unwrap();
    }
    for server in &mut config.servers {
        server.to_content = link(5 + rng.below(200), rng.below(60));
        server.to_content.up.loss = Loss::Uniform(rng.unit().powi(4) * 0.03);
        server.to_content.down.loss = server.to_content.up.loss;
    }
    for link in &mut config.boxed.links {
        link.backup = rng.chance(0.2);
        link.metered = rng.chance(0.2);
    }
    config
}

/// Makes one random fault, which is repaired within 20 s.
fn fault(faults: Faults, rng: &mut Rng, config: &AggregationConfig, net: &mut Aggregation) {
    let back = Duration::from_millis(rng.below(20_000));
    let link = rng.below(config.access.len() as u64) as usize;
    let server = rng.below(config.servers.len() as u64) as usize;
    let kinds = if faults == Faults::Links { 4 } else { 6 };
    let (bad, good) = match rng.below(kinds) {
        0 | 1 => {
            let lit = config.access[link].clone();
            let settings = dark(lit.clone());
            let good = Action::Access {
                link,
                settings: Box::new(lit),
            };
            (Action::Access { link, settings }, good)
        }
        2 | 3 => (
            Action::Carrier { link, up: false },
            Action::Carrier { link, up: true },
        ),
        4 => (Action::KillServer(server), Action::StartServer(server)),
        _ => (Action::KillBox, Action::StartBox),
    };
    net.after(Duration::ZERO, bad);
    net.after(back, good);
}

fn load(rng: &mut Rng) -> Load {
    let mut size = || 1 + (rng.unit().powi(4) * 3e6) as u64;
    let (a, b) = (size(), size());
    match rng.below(4) {
        0 => Load::Up(a),
        1 => Load::Post {
            sends: a,
            answer: b,
        },
        _ => Load::Down(a),
    }
}

/// The end of one connection.
struct End {
    /// The destination got the connection.
    arrived: bool,
    whole: bool,
}

fn run(seed: u64, faults: Faults) -> Vec<End> {
    // The test's output shows the seed if it fails.
    println!("seed {seed}");
    let mut rng = Rng::for_component(seed, 1 << 40);
    let config = network(&mut rng);
    let mut net = Aggregation::new(seed, &config).unwrap();
    net.run_for(secs(1));
    let mut loads = Vec::new();
    for _ in 0..25 {
        net.run_for(Duration::from_millis(rng.below(800)));
        let load = load(&mut rng);
        let user = rng.below(config.users.len() as u64) as usize;
        let id = net.open(user, 0, load).unwrap();
        match rng.below(12) {
            0 => net.pause(id, true),
            1 | 2 => fault(faults, &mut rng, &config, &mut net),
            _ => {}
        }
        loads.push((id, load));
    }
    net.run_for(secs(25));
    for (id, _) in &loads {
        net.pause(*id, false);
    }
    assert!(net.finish(secs(400)));
    let ends = loads.iter().map(|(id, load)| end(&net, *id, *load));
    let ends = ends.collect();
    // After this time no connection waits for users any more.
    net.run_for(secs(320));
    nothing_is_left(&net);
    ends
}

fn end(net: &Aggregation, id: TransferId, load: Load) -> End {
    let (user, content) = (net.at_user(id), net.at_content(id));
    let (to_content, to_user) = match load {
        Load::Down(size) => (100, size),
        Load::Up(size) => (size, 0),
        Load::Post { sends, answer } => (sends, answer),
    };
    let whole = user
        .closed
        .is_some_and(|(_, reason)| reason == CloseReason::Finished);
    // The end of a stream is never seen before all of its bytes.
    if whole || user.complete_at.is_some() {
        assert_eq!(user.received, to_user, "{user:?}");
    }
    if let Some(content) = content.filter(|c| c.complete_at.is_some()) {
        assert_eq!(content.received, to_content, "{content:?}");
    }
    let arrived = content.is_some_and(|c| c.received > 0);
    End { arrived, whole }
}

/// No outage here is longer than connections survive.
#[test]
fn failing_links_break_nothing_that_reached_its_destination() {
    let runs = (0..12).map(|seed| run(seed, Faults::Links));
    let arrived: Vec<End> = runs.flatten().filter(|e| e.arrived).collect();
    assert!(arrived.len() > 150, "{} arrived", arrived.len());
    assert!(arrived.iter().all(|e| e.whole));
}

#[test]
fn whatever_fails_what_looks_complete_is_whole_and_everything_ends() {
    let runs = (100..112).map(|seed| run(seed, Faults::LinksAndMachines));
    let (whole, broken): (Vec<End>, Vec<End>) = runs.flatten().partition(|e| e.whole);
    assert!(whole.len() > 50 && broken.len() > 50, "it tests both");
}
