//! Records of paths that outlive a box's process.

use core::time::Duration;

use crate::world::downstream::Content;
use crate::world::{self, CONTENT, SERVER, Setup, World};
use braid_engine::PathRecord;
use braid_proxy::control::{Answer, Controlled as _, Request};
use braid_proxy::records::{MAX_RECORD_AGE, SavedMeasurement, SavedRecord, SavedState};
use braid_proxy::selection::{Measured, Quality};
use braid_wire::Instant;

fn saved(w: &World) -> Vec<SavedRecord> {
    w.core.saved_state(w.now, &w.boxed.stack).records
}

fn load(w: &mut World, saved: &[SavedRecord]) {
    let saved = SavedState {
        records: saved.to_vec(),
        ..SavedState::default()
    };
    w.core.restore_state(w.now, &mut w.boxed.stack, &saved);
}

/// Returns the path records of a box's engine, by link number.
fn remembered(w: &World) -> Vec<(usize, PathRecord)> {
    let records = w.boxed.stack.records();
    let link = |path| w.paths.iter().position(|p| *p == path).unwrap();
    records.map(|(_, path, r)| (link(path), r)).collect()
}

/// Returns the records of two links after an upload.
fn learnt() -> Vec<SavedRecord> {
    let mut w = World::ready(2, Setup::default());
    w.content(CONTENT, Content::Counts);
    let user = w.open(CONTENT, &vec![7; 3_000_000], true);
    w.run_until(|w| w.user(user).closed);
    w.run_for(Duration::from_secs(1));
    saved(&w)
}

#[test]
fn a_box_that_starts_again_knows_its_paths() {
    let learnt = learnt();
    let [first, second] = &learnt[..] else {
        panic!("{learnt:?}")
    };
    assert_eq!(
        (first.link.as_str(), second.link.as_str()),
        ("wan0", "wan1")
    );
    assert_eq!(first.server, SERVER);
    assert_eq!(first.record.srtt.as_millis(), 20);
    assert_eq!(second.record.srtt.as_millis(), 50);
    assert!(first.record.delivery_rate > 100_000, "{first:?}");

    // No probe and no connection has run yet.
    let mut w = World::new(2, Setup::default());
    load(&mut w, &learnt);
    let remembered = remembered(&w);
    for ((link, record), saved) in remembered.iter().zip(&learnt) {
        assert_eq!(saved.link, format!("wan{link}"));
        let at = record.at;
        assert_eq!(*record, PathRecord { at, ..saved.record });
    }
    assert_eq!(remembered.len(), 2);
    let status = w.core.status(w.now, &w.boxed.stack);
    assert_eq!(status.paths[0].rtt_ms.map(f64::round), Some(20.0));
}

#[test]
fn links_are_known_by_name() {
    let mut learnt = learnt();
    learnt[0].link = "wan1".to_owned();
    learnt[1].link = "gone".to_owned();
    let mut w = World::new(2, Setup::default());
    load(&mut w, &learnt);
    let [(link, record)] = remembered(&w)[..] else {
        panic!("one link");
    };
    assert_eq!((link, record.srtt), (1, learnt[0].record.srtt));
}

#[test]
fn records_age_by_the_wall_clock() {
    let learnt = learnt();
    let mut w = World::new(2, Setup::default());
    // As the driver's clock does, so that there is room for times before the start.
    w.now = Instant::ZERO + MAX_RECORD_AGE;
    let later = |ago: Duration| world::EPOCH + ago;
    let set = |w: &mut World, ago| w.core.set_wall_clock(w.now, later(ago));
    let hour = Duration::from_secs(3600);
    set(&mut w, MAX_RECORD_AGE + hour);
    load(&mut w, &learnt);
    assert_eq!(remembered(&w), []);
    set(&mut w, hour);
    load(&mut w, &learnt);
    let ages: Vec<u64> = remembered(&w)
        .iter()
        .map(|(_, r)| w.now.saturating_since(r.at).as_secs().div_ceil(3600))
        .collect();
    assert_eq!(ages, [1, 1]);
    // Kept again, a record has the same age.
    let again = saved(&w);
    assert_eq!(again, learnt);
    w.now += MAX_RECORD_AGE;
    assert_eq!(saved(&w), []);
}

/// Otherwise the file would be written again and again while nothing happens.
#[test]
fn what_is_kept_is_the_same_while_nothing_is_learnt() {
    let mut w = World::ready(2, Setup::default());
    w.content(CONTENT, Content::Counts);
    let user = w.open(CONTENT, &vec![7; 3_000_000], true);
    w.run_until(|w| w.user(user).closed);
    let measure = w.core.control(w.now, &mut w.boxed.stack, Request::Measure);
    assert_eq!(measure, Answer::Done);
    w.run_for(Duration::from_secs(5));
    let first = w.core.saved_state(w.now, &w.boxed.stack);
    // Links too fast for trains to measure have no rate to keep.
    assert_eq!((first.records.len(), first.measurements.len()), (2, 1));
    for _ in 0..1_000 {
        w.now += Duration::from_micros(30_000_123);
        // The system clock is read a little later than the instant that it is paired with.
        let late = Duration::from_nanos(w.now.as_nanos() % 2_000_000);
        let since = Duration::from_millis(w.unix_ms()) + late;
        w.core.set_wall_clock(w.now, since);
        assert_eq!(w.core.saved_state(w.now, &w.boxed.stack), first);
    }
}

/// The clock was wrong then, or is now, so the age is unknown.
#[test]
fn what_is_from_the_future_is_left_out() {
    let minute = 60_000;
    for (ahead, known) in [(minute, true), (60 * minute, false)] {
        let mut learnt = learnt();
        for record in &mut learnt {
            record.unix_ms = world::EPOCH.as_millis() as u64 + ahead;
        }
        let mut w = World::new(2, Setup::default());
        load(&mut w, &learnt);
        assert_eq!(remembered(&w).len(), if known { 2 } else { 0 });
        let mut soon = measurement(Some("wan0"), (Some(20e6), None));
        soon.unix_ms = world::EPOCH.as_millis() as u64 + ahead;
        let (measured, _) = measured(&[soon]);
        assert_eq!(measured.bandwidth().is_some(), known);
    }
}

#[test]
fn what_no_path_can_be_like_is_left_out() {
    let learnt = learnt();
    let good = &learnt[0].record;
    let bad = [
        PathRecord {
            srtt: Duration::MAX,
            ..*good
        },
        PathRecord {
            srtt: Duration::ZERO,
            ..*good
        },
        PathRecord {
            base_rtt: Duration::from_secs(61),
            ..*good
        },
        PathRecord {
            delivery_rate: u64::MAX,
            ..*good
        },
        PathRecord {
            bytes_sent: u64::MAX,
            ..*good
        },
        PathRecord {
            bytes_lost: good.bytes_sent + 1,
            ..*good
        },
    ];
    for record in bad {
        let mut w = World::new(2, Setup::default());
        load(
            &mut w,
            &[SavedRecord {
                record,
                ..learnt[0].clone()
            }],
        );
        assert_eq!(remembered(&w), [], "{record:?}");
    }
}

/// Returns a measurement from an hour before the start of the clock: of a link to a server, or its egress metrics.
fn measurement(link: Option<&str>, quality: (Option<f64>, Option<f64>)) -> SavedMeasurement {
    let at = world::EPOCH - Duration::from_secs(3600);
    SavedMeasurement {
        server: (SERVER, 1080).into(),
        link: link.map(str::to_owned),
        unix_ms: at.as_millis() as u64,
        quality: Quality {
            bandwidth: quality.0,
            delay_ms: quality.1,
        },
    }
}

/// Loads `measurements` into a box; returns its measurements of the server, and those that it would keep.
fn measured(measurements: &[SavedMeasurement]) -> (Measured, Vec<SavedMeasurement>) {
    let mut w = World::new(2, Setup::default());
    w.now = Instant::ZERO + MAX_RECORD_AGE;
    w.core.set_wall_clock(w.now, world::EPOCH);
    let saved = SavedState {
        measurements: measurements.to_vec(),
        ..SavedState::default()
    };
    for path in w.paths.clone() {
        w.core.set_link_up(w.now, path, true, &mut w.boxed.stack);
    }
    w.core.restore_state(w.now, &mut w.boxed.stack, &saved);
    let mut servers = w.core.status(w.now, &w.boxed.stack).servers;
    let again = w.core.saved_state(w.now, &w.boxed.stack).measurements;
    (servers.remove(0).measured, again)
}

#[test]
fn measurements_are_known_by_server_and_link() {
    let egress = measurement(None, (Some(50e6), Some(30.0)));
    let second = measurement(Some("wan1"), (Some(20e6), None));
    let both = [second.clone(), egress.clone()];
    let (known, again) = measured(&both);
    assert_eq!(known.paths[0].bandwidth, None);
    assert_eq!(known.paths[1].bandwidth, Some(20e6));
    assert_eq!(known.egress, egress.quality);
    assert_eq!(again, both, "with the age it had");
}

#[test]
fn measurements_that_mean_nothing_are_left_out() {
    let good = measurement(Some("wan0"), (Some(20e6), None));
    let rate = |rate| measurement(Some("wan0"), (Some(rate), None));
    let day = 86_400_000;
    for bad in [
        rate(f64::NAN),
        rate(f64::INFINITY),
        rate(-1.0),
        measurement(None, (None, Some(60_001.0))),
        measurement(Some("gone"), (Some(20e6), None)),
        SavedMeasurement {
            server: "203.0.113.77:1080".parse().unwrap(),
            ..good.clone()
        },
        SavedMeasurement {
            unix_ms: good.unix_ms - day,
            ..good.clone()
        },
    ] {
        let (known, again) = measured(std::slice::from_ref(&bad));
        assert_eq!(known.bandwidth(), None, "{bad:?}");
        assert_eq!(known.egress, Quality::default(), "{bad:?}");
        assert_eq!(again, []);
    }
    let many = vec![good.clone(); 100_000];
    assert_eq!(measured(&many).1, [good]);
}

/// Before any choice, the first server of the file does not count as the one in use.
#[test]
fn the_best_is_chosen_after_a_restart_however_little_better_it_is() {
    let setup = Setup {
        first_server: Some("203.0.113.9"),
        ..Setup::default()
    };
    let mut w = World::new(2, setup);
    w.now = Instant::ZERO + MAX_RECORD_AGE;
    w.core.set_wall_clock(w.now, world::EPOCH);
    (0..2).for_each(|link| w.set_link(link, true));
    let known = |address: &str, rate| SavedMeasurement {
        server: address.parse().unwrap(),
        ..measurement(Some("wan0"), (Some(rate), None))
    };
    let saved = SavedState {
        measurements: vec![
            known("203.0.113.9:1080", 20e6),
            known("203.0.113.7:1080", 22e6),
        ],
        ..SavedState::default()
    };
    w.core.restore_state(w.now, &mut w.boxed.stack, &saved);
    let chosen = |w: &mut World| {
        w.set_link(0, true);
        let servers = w.core.status(w.now, &w.boxed.stack).servers;
        servers.iter().position(|s| s.by_bandwidth)
    };
    assert_eq!(chosen(&mut w), Some(1));
    // From now on, only a gain replaces the server in use.
    let closer = [known("203.0.113.9:1080", 24e6)];
    let saved = SavedState {
        measurements: closer.to_vec(),
        ..SavedState::default()
    };
    w.core.restore_state(w.now, &mut w.boxed.stack, &saved);
    assert_eq!(chosen(&mut w), Some(1));
}
