//! Traffic models over the engine: all sent data arrives, at the right time.

use core::time::Duration;
use std::sync::Arc;

use braid_engine::{CloseReason, Config};
use braid_links::{Rate, Settings};
use braid_sim::host::options;
use braid_sim::traffic::{
    Bulk, Exchange, Frame, HEADER, Kind, Received, Role, Session, Stream, Video, jitter,
};
use braid_sim::transfer::{Direction, PathSettings, REMOTE, TransferConfig};
use braid_sim::{Transfer, World};
use braid_wire::{Instant, Rng};

use crate::support::{at, link, ms};

/// Two hosts with a link for each path.
struct Fixture(Transfer);

impl Fixture {
    fn new(seed: u64, engine: &Config, links: &[Settings]) -> Fixture {
        let paths: Vec<_> = links.iter().cloned().map(PathSettings::both).collect();
        Fixture(Transfer::build(
            seed,
            &TransferConfig {
                engine: engine.clone(),
                ..TransferConfig::new(&paths, 0, Direction::Down)
            },
        ))
    }

    /// Opens a connection whose ends have these roles.
    fn open(&mut self, asks: Role, answers: Role) {
        let (asks, answers) = (Stream::new(asks), Stream::new(answers));
        self.0.open_with(options(REMOTE), asks, answers).unwrap();
    }

    /// Runs until `count` connections have ended in order at both ends.
    fn finish(&mut self, count: usize, limit: Duration) {
        let ends = self.0.ends();
        let finished = |w: &World, end| w.host(end).finished().len();
        let world = &mut self.0.world;
        let done = world.run(limit, |w| ends.iter().all(|end| finished(w, *end) == count));
        assert!(done, "{:?}", ends.map(|end| finished(world, end)));
        for end in ends {
            for stream in world.host(end).finished() {
                let (_, reason) = stream.closed.unwrap();
                assert_eq!(reason, CloseReason::Finished);
            }
        }
    }

    /// Returns the first stream that ended at the client.
    fn at_client(&self) -> &Stream {
        at(&self.0, self.0.client)
    }

    fn at_server(&self) -> &Stream {
        at(&self.0, self.0.server)
    }
}

/// Draws an exponentially distributed time.
fn exponential(mean: Duration, rng: &mut Rng) -> Duration {
    mean.mul_f64(-(1.0 - rng.unit()).ln())
}

#[test]
fn requests_follow_answers() {
    let mut rng = Rng::for_component(1, 1);
    let draw = |_| Exchange {
        think: exponential(ms(80), &mut rng),
        request: 200,
        answer: 1 + rng.below(100_000),
    };
    let exchanges: Vec<Exchange> = (0..50).map(draw).collect();
    let mut fixture = Fixture::new(
        1,
        &Config::default(),
        &[link(5, 20, 0.01), link(5, 50, 0.01)],
    );
    fixture.open(Role::Ask(exchanges.clone().into()), Role::Serve);
    fixture.finish(1, Duration::from_secs(100));

    let client = fixture.at_client();
    let answers = client.messages();
    assert_eq!(answers.len(), exchanges.len());
    let mut free_at = client.opened_at;
    for (exchange, answer) in exchanges.iter().zip(answers) {
        assert_eq!(answer.message.kind, Kind::Answer);
        assert_eq!(answer.message.len, exchange.answer);
        // An answer has the time of its request, so its delay covers the exchange.
        assert_eq!(answer.message.made_at, free_at + exchange.think);
        assert!(answer.delay() >= ms(40), "{answer:?}");
        free_at = answer.complete_at;
    }
    let bytes: u64 = exchanges.iter().map(|e| e.answer).sum();
    assert_eq!(client.received, bytes + headers(answers));
    assert_eq!(client.sent, 50 * (200 + HEADER));
}

#[test]
fn a_greedy_sender_fills_its_span() {
    let mut fixture = Fixture::new(2, &Config::default(), &[link(5, 20, 0.0), link(5, 50, 0.0)]);
    let span = Duration::from_secs(20);
    fixture.open(Role::Greedy { span }, Role::Sink);
    fixture.0.world.run(span, |_| false);
    let server = fixture.0.world.host(fixture.0.server);
    let received: u64 = server.open_streams().map(|(_, s)| s.received).sum();
    let rate = received as f64 * 8.0 / 20.0;
    assert!(rate > 0.95 * 10e6 * 1428.0 / 1500.0, "{rate}");
    // Data written by then still arrives.
    fixture.finish(1, Duration::from_secs(30));
    assert_eq!(fixture.at_server().received, fixture.at_client().sent);
}

#[test]
fn a_capped_sender_keeps_its_rate_and_does_not_catch_up() {
    let rate = 448_000;
    let span = Duration::from_secs(60);
    let mut fixture = Fixture::new(3, &Config::default(), &[link(5, 20, 0.0)]);
    fixture.open(Role::Capped { rate, span }, Role::Sink);
    fixture.finish(1, Duration::from_secs(70));
    let expected = rate * 60 / 8;
    let received = fixture.at_server().received;
    assert!(
        received.abs_diff(expected) <= 1_000,
        "{received} of {expected}"
    );

    // Over a link of half the rate the sender gets half, and little waits.
    let engine = Config {
        send_buffer: 32 << 10,
        ..Config::default()
    };
    let mut slow = link(5, 20, 0.0);
    slow.rate = Rate::bits_per_second(224_000);
    let mut fixture = Fixture::new(3, &engine, &[slow]);
    fixture.open(Role::Capped { rate, span }, Role::Sink);
    fixture.finish(1, Duration::from_secs(70));
    let received = fixture.at_server().received;
    assert!(
        received < expected / 2 + (32 << 10),
        "{received} of {expected}"
    );
    assert!(received > expected * 2 / 5, "{received} of {expected}");
}

/// Returns the bytes of the headers of all parts.
fn headers(messages: &[Received]) -> u64 {
    messages.iter().map(|m| HEADER * u64::from(m.parts)).sum()
}

fn of_stream(messages: &[Received], stream: u16) -> Vec<Received> {
    let all = messages.iter().filter(|m| m.message.stream == stream);
    all.copied().collect()
}

#[test]
fn a_video_arrives_frame_by_frame() {
    let span = Duration::from_secs(12);
    let video = Video::default();
    let session = Session {
        frames: video.frames(span).into(),
        bulk: Vec::new(),
    };
    let mut fixture = Fixture::new(4, &Config::default(), &[link(20, 10, 0.0)]);
    fixture.open(Role::Collect, Role::Send(session));
    fixture.finish(1, Duration::from_secs(15));

    let messages = fixture.at_client().messages();
    let count = |kind| messages.iter().filter(|m| m.message.kind == kind).count();
    assert_eq!([Kind::I, Kind::P, Kind::B].map(count), [25, 75, 200]);
    let bytes: u64 = messages.iter().map(|m| m.message.len).sum();
    let rate = bytes as f64 * 8.0 / 12.0;
    assert!((rate / 4e6 - 1.0).abs() < 0.001, "{rate}");
    let [important, other] = [0, 1].map(|stream| of_stream(messages, stream));
    assert!(
        important
            .iter()
            .all(|m| m.message.priority == 0 && m.message.kind == Kind::I)
    );
    assert!(other.iter().all(|m| m.message.priority == 1));
    // I frames have 62 kB: 26 ms at 20 Mbit/s, and 10 ms of propagation.
    for m in messages {
        let at = m
            .message
            .made_at
            .saturating_since(fixture.at_server().opened_at);
        assert_eq!(at.as_nanos() % 40_000_000, 0);
        assert!((ms(10)..ms(120)).contains(&m.delay()), "{m:?}");
        assert_eq!(m.deadline_miss(), Duration::ZERO);
        assert_eq!(m.message.deadline, Some(m.message.made_at + ms(250)));
    }
    assert_eq!(jitter(messages).count(), messages.len() - 1);
    assert!(jitter(messages).max().unwrap() > ms(10));
}

/// The link has less rate than the video, so each frame waits longer than the one before.
#[test]
fn a_video_over_too_slow_a_link_is_late() {
    let session = Session {
        frames: Video::default().frames(Duration::from_secs(10)).into(),
        bulk: Vec::new(),
    };
    let mut fixture = Fixture::new(5, &Config::default(), &[link(3, 10, 0.0)]);
    fixture.open(Role::Collect, Role::Send(session));
    fixture.finish(1, Duration::from_secs(30));
    let last = fixture.at_client().messages().last().copied().unwrap();
    // 40 Mbit and the headers take 14 s.
    assert!(
        (3_500..4_500).contains(&last.delay().as_millis()),
        "{last:?}"
    );
    assert_eq!(last.deadline_miss() + ms(250), last.delay());
}

#[test]
fn streams_of_one_session_are_told_apart() {
    let span = Duration::from_secs(10);
    let session = Session {
        frames: Video::default().frames(span).into(),
        bulk: vec![
            Bulk {
                stream: 2,
                priority: 2,
                message: 8_000,
                rate: None,
                span,
            },
            Bulk {
                stream: 3,
                priority: 1,
                message: 1_000,
                rate: Some(400_000),
                span,
            },
        ],
    };
    let engine = Config {
        send_buffer: 64 << 10,
        ..Config::default()
    };
    let links = [link(5, 20, 0.01), link(5, 30, 0.01)];
    let mut fixture = Fixture::new(6, &engine, &links);
    fixture.open(Role::Collect, Role::Send(session));
    fixture.finish(1, Duration::from_secs(15));
    let client = fixture.at_client();
    let streams = [0, 1, 2, 3].map(|stream| of_stream(client.messages(), stream));
    assert_eq!(streams[0].len() + streams[1].len(), 250);
    assert!(streams[2].len() > 50, "bulk takes what is left");
    // 400 kbit/s: 50 messages a second, each at its time.
    assert_eq!(streams[3].len(), 500);
    let made: Vec<_> = streams[3].iter().map(|m| m.message.made_at).collect();
    assert!(
        made.windows(2)
            .all(|w| w[1].saturating_since(w[0]) == ms(20))
    );
    let total: u64 = streams.iter().flatten().map(|m| m.message.len).sum();
    assert_eq!(total + headers(client.messages()), client.received);
    assert_eq!(fixture.at_server().messages_dropped(), 0);
}

/// Returns sizes and times of the flows of one run. They arrive as a Poisson process within 40 s. Nine in ten have
/// 1 to 20 kB, the others 20 to 200 kB.
fn arrivals(seed: u64) -> Vec<(u64, Instant, Duration)> {
    let mut rng = Rng::for_component(seed, 1 << 40);
    let mut fixture = Fixture::new(
        seed,
        &Config::default(),
        &[link(5, 10, 0.0), link(5, 10, 0.0)],
    );
    let Transfer {
        world,
        client,
        server,
        ..
    } = &mut fixture.0;
    let serve = Stream::new(Role::Serve);
    world.serve(*server, REMOTE, serve).unwrap();
    let end = world.now() + Duration::from_secs(40);
    loop {
        world.advance(exponential(ms(82), &mut rng));
        if world.now() >= end {
            break;
        }
        let size = if rng.chance(0.9) {
            1_000 + rng.below(19_000)
        } else {
            20_000 + rng.below(180_000)
        };
        let ask = Exchange {
            think: Duration::ZERO,
            request: 100,
            answer: size,
        };
        let asks = Stream::new(Role::Ask(Arc::new([ask])));
        world.open(*client, options(REMOTE), asks).unwrap();
    }
    world.advance(Duration::from_secs(20));
    let client = world.host(*client);
    assert_eq!(client.open_streams().count(), 0);
    let flow = |s: &Stream| {
        let [answer] = s.messages() else {
            panic!("no answer: {s:?}");
        };
        let took = answer.complete_at.saturating_since(s.opened_at);
        (answer.message.len, s.opened_at, took)
    };
    client.finished().iter().map(flow).collect()
}

#[test]
fn flows_arrive_by_chance() {
    let flows = arrivals(7);
    assert_eq!(flows, arrivals(7));
    assert_ne!(flows, arrivals(8));
    // 2 Mbit/s with a mean of 20.45 kB are 12.2 flows a second, 489 in 40 s, +- 22.
    assert!((420..560).contains(&flows.len()), "{}", flows.len());
    let bits = 8.0 * flows.iter().map(|f| f.0 as f64).sum::<f64>() / 40.0;
    assert!((1.6e6..2.4e6).contains(&bits), "{bits}");
    assert!(
        flows.iter().all(|f| f.2 >= ms(40)),
        "two round trips at least"
    );
    // Exponential: a share of 1/e of the gaps is longer than the mean.
    let mut opened: Vec<Instant> = flows.iter().map(|f| f.1).collect();
    opened.sort_unstable();
    let gaps = opened.windows(2).map(|w| w[1].saturating_since(w[0]));
    let long = gaps.filter(|gap| *gap > ms(82)).count() as f64 / flows.len() as f64;
    assert!((long - 0.368).abs() < 0.07, "{long}");
}

/// Returns the mean delay of frames of `priority` beside a greedy bulk transfer of priority `bulk`, and
/// the bytes of bulk.
fn beside_bulk(priority: u8, bulk: u8) -> (Duration, u64) {
    let span = Duration::from_secs(20);
    let frame = |n: u32| Frame {
        at: ms(250) * n,
        stream: 0,
        priority,
        kind: Kind::I,
        len: 5_000,
        deadline: ms(250),
    };
    let session = Session {
        frames: (4..80).map(frame).collect(),
        bulk: vec![Bulk {
            stream: 1,
            priority: bulk,
            message: 8_000,
            rate: None,
            span,
        }],
    };
    let links = [link(5, 20, 0.01), link(5, 30, 0.01)];
    let mut fixture = Fixture::new(9, &Config::default(), &links);
    fixture.open(Role::Send(session), Role::Collect);
    fixture.finish(1, Duration::from_secs(30));

    let messages = fixture.at_server().messages();
    let [frames, bulk] = [0, 1].map(|stream| of_stream(messages, stream));
    assert_eq!(frames.len(), 76);
    // The reader found every byte of either stream in its place, and the messages came in order.
    for stream in [&frames, &bulk] {
        assert!(stream.is_sorted_by_key(|m| m.message.made_at));
        assert!(stream.is_sorted_by_key(|m| m.complete_at));
    }
    let delays: Duration = frames.iter().map(Received::delay).sum();
    (delays / 76, bulk.iter().map(|m| m.message.len).sum())
}

/// Urgent data waits for data in flight and not for data only written, and costs the bulk beside it no
/// rate.
#[test]
fn an_urgent_stream_overtakes_bulk() {
    let (waiting, all) = beside_bulk(3, 3);
    let (overtaking, rest) = beside_bulk(0, 6);
    assert!(waiting > ms(250), "{waiting:?}");
    assert!(overtaking < waiting / 2, "{overtaking:?} of {waiting:?}");
    assert!(rest.abs_diff(all) < all / 20, "{rest} of {all}");
}
