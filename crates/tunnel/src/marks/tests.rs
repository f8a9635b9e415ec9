use super::*;
use std::collections::BTreeSet;

use braid_wire::Rng;

#[test]
fn the_least_number_is_found_as_a_set_finds_it() {
    let mut rng = Rng::for_component(1, 1);
    let (mut marks, mut set) = (Marks::default(), BTreeSet::new());
    let mut from = 1_000_000;
    for _ in 0..20_000 {
        let number = from + rng.below(SPAN as u64);
        if rng.chance(0.5) {
            marks.insert(number);
            set.insert(number);
        } else if let Some(first) = set.pop_first() {
            marks.remove(first);
            from = first + 1;
        } else {
            from += rng.below(300);
        }
        assert_eq!(marks.first(from), set.first().copied());
    }
}
