use super::*;

/// Returns three paths with the ids 2, 0 and 1, of 20, 10 and 40 ms.
fn paths() -> [Option<PathView>; MAX_PATHS] {
    let path = |id, millis: i64| {
        Some(PathView {
            id: PathId(id),
            delay: Some(millis * 1_000),
            rate: 1_000_000,
            largest: 2_000,
        })
    };
    let mut paths = [None; MAX_PATHS];
    paths[..3].copy_from_slice(&[path(2, 20), path(0, 10), path(1, 40)]);
    paths
}

/// Returns what each of the three paths takes of a flow of this urgency, rate and bytes that wait.
fn decisions(mode: Mode, paths: &Paths, level: u8, rate: u64, waiting: usize) -> [Decision; 3] {
    let rules = Rules::new(250_000);
    let best = best(paths).unwrap();
    [0, 1, 2].map(|path| {
        let view = View {
            paths,
            best,
            path,
            sharers: 1,
            waiting,
            rate,
            urgency: Urgency::new(level).unwrap(),
        };
        rules.of(mode).decide(&view)
    })
}

type Paths = [Option<PathView>; MAX_PATHS];

const FIRST: Decision = Decision::Take { depth: 0 };
const LEAVE: Decision = Decision::Leave;

#[test]
fn aggregate_uses_a_slower_path_for_what_comes_later() {
    let (paths, mode) = (paths(), Mode::Aggregate);
    assert_eq!(decisions(mode, &paths, 3, 0, 10_000), [LEAVE, FIRST, LEAVE]);
    // In 10 ms, the faster path sends 10 kB of its own.
    let first_is_slower = Decision::Take { depth: 10_000 };
    assert_eq!(
        decisions(mode, &paths, 3, 0, 10_001),
        [first_is_slower, FIRST, LEAVE]
    );
    // In 30 ms the fastest one sends 30 kB, and in 20 ms the next one 20 kB.
    let last = Decision::Take { depth: 50_000 };
    assert_eq!(
        decisions(mode, &paths, 3, 0, 50_001),
        [first_is_slower, FIRST, last]
    );
}

#[test]
fn fastest_leaves_everything_to_the_path_with_the_smallest_delay() {
    let all = decisions(Mode::Fastest, &paths(), 3, 0, 1_000_000);
    assert_eq!(all, [LEAVE, FIRST, LEAVE]);
    let mut without = paths();
    without[1] = None;
    let all = decisions(Mode::Fastest, &without, 3, 0, 1_000_000);
    assert_eq!(all, [FIRST, LEAVE, LEAVE]);
}

#[test]
fn single_leaves_everything_to_the_path_with_the_lowest_id() {
    let mut paths = paths();
    let single = |paths: &Paths| decisions(Mode::Single, paths, 3, 0, 1_000_000);
    assert_eq!(single(&paths), [LEAVE, FIRST, LEAVE]);
    paths[1] = None;
    // The path with the id 1 is the slowest one.
    assert_eq!(single(&paths), [LEAVE, LEAVE, FIRST]);
    paths[2] = None;
    assert_eq!(single(&paths), [FIRST, LEAVE, LEAVE]);
}

#[test]
fn redundant_copies_urgent_flows_of_low_rate() {
    let mut paths = paths();
    let redundant =
        |paths: &Paths, level, rate| decisions(Mode::Redundant, paths, level, rate, 200);
    // Path 0 is the second one by delay.
    let copied = [LEAVE, Decision::Copy { other: 0 }, LEAVE];
    for level in 0..=2 {
        assert_eq!(redundant(&paths, level, 250_000), copied, "{level}");
    }
    let alone = [LEAVE, FIRST, LEAVE];
    assert_eq!(redundant(&paths, 3, 10_000), alone);
    assert_eq!(redundant(&paths, 1, 250_001), alone);
    // What is not copied goes as with `aggregate`.
    let large = decisions(Mode::Redundant, &paths, 1, 250_001, 10_001);
    assert_eq!(large, [Decision::Take { depth: 10_000 }, FIRST, LEAVE]);
    paths[0] = None;
    paths[2] = None;
    assert_eq!(redundant(&paths, 1, 10_000), alone);
}

#[test]
fn the_mode_in_effect_is_that_of_the_decision() {
    let rules = Rules::new(250_000);
    let call = Urgency::new(1).unwrap();
    let default = Urgency::default();
    for mode in Mode::ALL {
        let in_effect = |urgency, rate| rules.of(mode).mode(urgency, rate);
        assert_eq!(in_effect(call, 10_000), mode);
        let large = if mode == Mode::Redundant {
            Mode::Aggregate
        } else {
            mode
        };
        assert_eq!(in_effect(call, 250_001), large);
        assert_eq!(in_effect(default, 10_000), large);
    }
}

#[test]
fn packets_that_any_path_may_take_stay_on_the_single_path() {
    let rules = Rules::new(250_000);
    let mut paths = paths();
    paths[1] = None;
    let best = best(&paths).unwrap();
    let homes = Mode::ALL.map(|mode| rules.of(mode).home(&paths, best));
    // In the order of `Mode::ALL`, which ends with `Mode::Single`.
    assert_eq!(homes, [0, 0, 0, 2]);
}
