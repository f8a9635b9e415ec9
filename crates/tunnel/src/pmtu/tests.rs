use super::*;

/// The number of probes after which a search must have ended.
const MAX_SEARCH: usize = 200;

/// Runs a search over a path that takes `size` bytes. Returns the sizes tried.
fn search(mtu: &mut PathMtu, now: &mut Instant, size: usize) -> Vec<usize> {
    let mut rng = Rng::for_component(1, 1);
    let mut tried = Vec::new();
    while mtu.is_due(*now) {
        assert!(tried.len() < MAX_SEARCH, "{tried:?}");
        let Some((probed, data)) = mtu.take_probe(*now, Duration::from_millis(50), &mut rng) else {
            continue;
        };
        tried.push(probed);
        assert!(!mtu.on_response([0; 8]));
        if probed <= size {
            assert!(mtu.on_response(data));
        } else {
            *now = mtu.next_timeout().expect("the probe may get lost");
        }
    }
    tried
}

#[test]
fn the_mtu_of_the_link_is_tried_first() {
    let (mut mtu, mut now) = (PathMtu::new(1280, 1500), Instant::ZERO);
    assert_eq!(mtu.size(), 1280);
    assert_eq!(search(&mut mtu, &mut now, 9000), [1500]);
    assert_eq!((mtu.size(), now), (1500, Instant::ZERO));
}

#[test]
fn a_narrow_path_is_found_to_a_few_bytes() {
    for size in [1280, 1281, 1300, 1420, 1492, 1499] {
        let (mut mtu, mut now) = (PathMtu::new(1280, 1500), Instant::ZERO);
        let tried = search(&mut mtu, &mut now, size);
        assert!(mtu.size() <= size && size - mtu.size() < PRECISION);
        let of_1500 = tried.iter().filter(|probed| **probed == 1500).count();
        assert_eq!(of_1500, usize::from(MAX_PROBES));
        assert!(tried.len() <= 5 * usize::from(MAX_PROBES), "{tried:?}");
    }
}

#[test]
fn refused_sizes_are_tried_again_after_a_while() {
    let (mut mtu, mut now) = (PathMtu::new(1280, 1500), Instant::ZERO);
    search(&mut mtu, &mut now, 1400);
    mtu.raise(now);
    assert!(!mtu.is_due(now));
    now += RAISE_INTERVAL;
    mtu.raise(now);
    search(&mut mtu, &mut now, 1500);
    assert_eq!(mtu.size(), 1500);
    mtu.raise(now);
    assert!(!mtu.is_due(now));
}

#[test]
fn a_black_hole_starts_the_search_anew() {
    let (mut mtu, mut now) = (PathMtu::new(1280, 1500), Instant::ZERO);
    search(&mut mtu, &mut now, 1500);
    mtu.on_black_hole();
    assert_eq!(mtu.size(), 1280);
    search(&mut mtu, &mut now, 1400);
    assert!((1385..=1400).contains(&mtu.size()));
}

#[test]
fn a_link_below_the_floor_lowers_it() {
    let (mut mtu, mut now) = (PathMtu::new(1280, 1000), Instant::ZERO);
    assert_eq!((mtu.size(), mtu.floor()), (1000, 1000));
    assert!(search(&mut mtu, &mut now, 1500).is_empty());
    assert_eq!(PathMtu::new(1280, 0).size(), 576);
}
