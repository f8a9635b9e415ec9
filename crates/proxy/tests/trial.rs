//! Trials of a server over a link, and their results.

use core::net::SocketAddr;
use core::time::Duration;

use braid_engine::{ApiError, Config, ConnId, Event, PathConfig, RxMeta, Stack};
use braid_proxy::config::ServerEntry;
use braid_proxy::trial::{Multipath, Trial, TrialEnd, TrialReport, TrialSetup};
use braid_secure::channel::{ChannelError, Versions};
use braid_secure::keys::PrivateKey;
use braid_wire::{Instant, Rng, ip, tcp};

use crate::world::{self, EPOCH, SERVER, Setup, TRIAL, World, box_key};

const MPTCP: u8 = 30;

fn begin(now: Instant, key: &PrivateKey, server: &ServerEntry, versions: Versions) -> Trial {
    let setup = TrialSetup {
        local: SocketAddr::from((TRIAL, 40_000)),
        remote: SocketAddr::from((SERVER, 1080)),
        mtu: 1500,
        key,
        server,
        versions,
        seed: [9; 32],
        since_epoch: EPOCH,
    };
    Trial::begin(now, &setup).unwrap()
}

/// Runs a trial with `key` in a world where `tamper` modifies packets.
fn tried(
    setup: Setup<'_>,
    key: &PrivateKey,
    change: impl FnOnce(&mut ServerEntry),
    tamper: Option<world::Tamper>,
) -> (World, TrialReport) {
    let mut world = World::new(1, setup);
    let mut entry = world.config.servers[0].clone();
    change(&mut entry);
    world.tamper = tamper;
    world.trial = Some(begin(world.now, key, &entry, world.config.versions));
    world.run_until(|w| w.trial.as_ref().is_some_and(Trial::is_over));
    let report = world.trial.as_ref().unwrap().report();
    (world, report)
}

/// Returns the range of a segment's options, and whether the segment is a SYN.
fn options(packet: &[u8]) -> Option<(core::ops::Range<usize>, bool)> {
    let (ip, segment) = ip::Repr::parse(packet).ok()?;
    let (repr, _) = tcp::Repr::parse(segment).ok()?;
    let start = ip.header_len() + tcp::HEADER_LEN;
    let end = ip.header_len() + repr.header_len();
    Some((start..end, repr.flags.contains(tcp::Flags::SYN)))
}

fn has_mptcp(packet: &[u8]) -> bool {
    let Some((range, _)) = options(packet) else {
        return false;
    };
    let mut options = tcp::raw_options(&packet[range]);
    options.any(|o| o.is_ok_and(|o| o.kind() == MPTCP))
}

/// Overwrites the options of Multipath TCP with NOPs, as some firewalls do.
fn strip(packet: &mut [u8]) {
    let Some((range, _)) = options(packet) else {
        return;
    };
    let (mut at, end) = (range.start, range.end);
    while at < end {
        match packet[at] {
            0 => return,
            1 => at += 1,
            kind => {
                let length = usize::from(packet[at + 1]).max(2);
                if kind == MPTCP {
                    packet[at..at + length].fill(1);
                }
                at += length;
            }
        }
    }
}

#[test]
fn a_server_that_knows_the_box_is_signed_in_to() {
    for clear in [false, true] {
        let setup = Setup {
            clear,
            ..Setup::default()
        };
        let (mut world, report) = tried(setup, &box_key(), |_| {}, None);
        assert_eq!(report.end, TrialEnd::SignedIn, "clear: {clear}");
        assert_eq!(report.multipath, Some(Multipath::Intact));
        assert_eq!(report.opened, Some(Duration::from_millis(10)));
        let now = world.now;
        world.trial.as_mut().unwrap().give_up(now);
        world.run_for(Duration::from_secs(1));
        assert_eq!(world.server().connections(), 0, "the server is rid of it");
    }
}

#[test]
fn options_that_are_removed_and_dropped_are_told_apart() {
    let strips: world::Tamper = Box::new(|_, packet| {
        strip(packet);
        true
    });
    let (_, report) = tried(Setup::default(), &box_key(), |_| {}, Some(strips));
    assert_eq!(report.multipath, Some(Multipath::Stripped));
    assert_eq!(report.end, TrialEnd::SignedIn);

    let drops: world::Tamper = Box::new(|_, packet| !has_mptcp(packet));
    let (world, report) = tried(Setup::default(), &box_key(), |_| {}, Some(drops));
    assert_eq!(report.multipath, Some(Multipath::Blocked));
    assert_eq!(report.end, TrialEnd::SignedIn);
    let took = world.now.saturating_since(Instant::from_millis(1_000));
    assert!(took < Duration::from_secs(7), "{took:?}");
}

#[test]
fn options_that_are_removed_after_the_handshake_are_noticed() {
    let strips: world::Tamper = Box::new(|_, packet| {
        if options(packet).is_some_and(|(_, syn)| !syn) {
            strip(packet);
        }
        true
    });
    let (_, report) = tried(Setup::default(), &box_key(), |_| {}, Some(strips));
    assert!(
        matches!(report.multipath, Some(Multipath::Lost(_))),
        "{report:?}"
    );
}

#[test]
fn keys_that_do_not_fit_are_told_apart() {
    let stranger = PrivateKey::from_seed([8; 32]);
    let (_, report) = tried(Setup::default(), &stranger, |_| {}, None);
    assert_eq!(report.end, TrialEnd::Broken(ChannelError::Refused));

    let other = |server: &mut ServerEntry| server.key = stranger.public();
    let (_, report) = tried(Setup::default(), &box_key(), other, None);
    assert_eq!(report.end, TrialEnd::Broken(ChannelError::WrongKey));

    let clear = Setup {
        clear: true,
        ..Setup::default()
    };
    let (_, report) = tried(clear, &stranger, |_| {}, None);
    assert_eq!(report.end, TrialEnd::PasswordRefused);
}

/// Runs a trial of another host at the server's address; `says` is called once the host has received something.
fn of_stranger(listens: bool, says: impl Fn(Instant, &mut Stack, ConnId)) -> TrialReport {
    let entry = World::new(1, Setup::default()).config.servers[0].clone();
    let mut now = Instant::from_millis(1_000);
    let mut trial = begin(now, &box_key(), &entry, Versions::OURS);
    let strategy = || braid_strategy::by_name("minrtt").unwrap();
    let mut other = Stack::new(
        Config::default(),
        Rng::from_seed([3; 32]),
        Box::new(strategy),
    );
    let path = other.add_path(PathConfig::v4(SERVER)).unwrap();
    other.set_path_up(now, path, true);
    if listens {
        other.listen(SocketAddr::from((SERVER, 1080))).unwrap();
    }
    let end = now + Duration::from_secs(9);
    let meta = RxMeta {
        checksum_ok: true,
        gso_size: 0,
    };
    while now < end && !trial.is_over() {
        let mut idle = true;
        while let Some(packet) = trial.poll_transmit(now) {
            other.receive(now, &packet, meta);
            idle = false;
        }
        while let Some(event) = other.poll_event() {
            if let Event::Readable { conn } = event {
                says(now, &mut other, conn);
            }
        }
        while let Some(transmit) = other.poll_transmit(now) {
            let packet = [transmit.header, &transmit.payload.concat()].concat();
            trial.receive(now, &packet);
            idle = false;
        }
        if idle {
            let next = [trial.next_timeout(), other.next_timeout()];
            now = next.into_iter().flatten().min().unwrap_or(end).max(now);
            trial.handle_timeout(now);
            other.handle_timeout(now);
        }
    }
    trial.report()
}

#[test]
fn what_is_no_server_is_told_apart() {
    let page = |now, stack: &mut Stack, conn| {
        let answer = b"HTTP/1.1 302 Found\r\nLocation: http://portal.example/\r\n\r\n";
        let _: Result<usize, ApiError> = stack.write(now, conn, answer);
    };
    assert_eq!(of_stranger(true, page).end, TrialEnd::WebPage);

    let abort = |now, stack: &mut Stack, conn| stack.abort(now, conn);
    assert_eq!(of_stranger(true, abort).end, TrialEnd::CutOff);

    let close = |now, stack: &mut Stack, conn| {
        let _ = stack.shutdown(now, conn);
    };
    let report = of_stranger(true, close);
    let is_off = |end| {
        matches!(
            end,
            TrialEnd::CutOff | TrialEnd::Broken(ChannelError::Truncated)
        )
    };
    assert!(is_off(report.end), "{report:?}");

    let other = |now, stack: &mut Stack, conn| {
        let _ = stack.write(now, conn, b"SSH-2.0-OpenSSH_9.2\r\n");
    };
    let report = of_stranger(true, other);
    assert!(
        matches!(report.end, TrialEnd::Broken(..) | TrialEnd::NoServer),
        "{report:?}"
    );

    let report = of_stranger(true, |_, _, _| {});
    assert_eq!(report.end, TrialEnd::Pending);
    assert!(report.opened.is_some());

    assert_eq!(of_stranger(false, |_, _, _| {}).end, TrialEnd::Refused);
}

/// Box and server of releases that are too far apart; each end may be the older one.
#[test]
fn releases_without_a_version_in_common_are_told_what_each_speaks() {
    let speaks = |oldest, newest| Versions::new(oldest, newest, 0).unwrap();
    // The release before version 2 says nothing of versions.
    for (ours, theirs) in [
        (speaks(2, 3), speaks(1, 1)),
        (speaks(2, 3), speaks(4, 4)),
        (speaks(1, 1), speaks(2, 3)),
    ] {
        let setup = Setup {
            versions: Some([ours, theirs]),
            ..Setup::default()
        };
        let (mut world, report) = tried(setup, &box_key(), |_| {}, None);
        let expected = ChannelError::OtherVersions {
            ours,
            theirs: Some(theirs),
        };
        assert_eq!(report.end, TrialEnd::Broken(expected));
        let now = world.now;
        world.trial.as_mut().unwrap().give_up(now);
        world.run_for(Duration::from_secs(1));
        assert_eq!(world.server().counters().incompatible, 1);
        assert_eq!(world.server().connections(), 0);
    }
}
