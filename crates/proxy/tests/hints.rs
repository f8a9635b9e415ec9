//! Hints as text: valid and invalid ones.

use core::time::Duration;

use braid_engine::Urgency;
use braid_engine::strategy::FlowSize;
use braid_proxy::FlowHints;
use proptest::prelude::*;

/// Parses hints that are all valid.
fn right(text: &str) -> FlowHints {
    let (hints, mistakes) = FlowHints::from_text(text);
    assert_eq!(mistakes, [], "{text}");
    hints
}

#[test]
fn all_hints_are_read_in_any_order() {
    let expected = FlowHints {
        size: FlowSize::Declared(64_000),
        urgency: Urgency::new(1),
        deadline: Some(Duration::from_millis(250)),
        strategy: Some("redundant".to_owned()),
    };
    let text = "size=64kB,urgency=1,strategy=redundant,deadline=250ms";
    assert_eq!(right(text), expected);
    let text = "deadline=250ms,strategy=redundant,urgency=1,size=64000";
    assert_eq!(right(text), expected);
}

#[test]
fn each_hint_may_be_missing() {
    let none = FlowHints::default();
    assert_eq!(right(""), none);
    assert_eq!(right(",,"), none);
    let size = |bytes| FlowHints {
        size: FlowSize::Declared(bytes),
        ..none.clone()
    };
    assert_eq!(right("size=1"), size(1));
    assert_eq!(right("size=64KiB"), size(65_536));
    assert_eq!(right("size=9007199254740992"), size(1 << 53));
    assert_eq!(right("size=1,size=2"), size(2), "the later counts");
    let (hints, mistakes) = FlowHints::from_text("strategy=maps:plr=measured,single,size=7");
    assert_eq!(hints.strategy.as_deref(), Some("maps:plr=measured,single"));
    assert_eq!((hints.size, mistakes), (FlowSize::Declared(7), Vec::new()));
    let urgency = Urgency::new(7);
    let expected = FlowHints { urgency, ..none };
    assert_eq!(right("urgency=7"), expected);
}

#[test]
fn wrong_items_are_left_out_and_the_others_apply() {
    let wrong = [
        ("size=0", "`0` is out of range"),
        ("size=", "`` is no size"),
        ("size=-5", "`-5` is no size"),
        ("size=1e400", "is no size"),
        ("size=99999999999999999999", "is out of range"),
        ("size=64 apples", "is no size"),
        ("size=NaN", "is no size"),
        ("urgency=8", "`8` is no urgency"),
        ("urgency=-1", "`-1` is no urgency"),
        ("urgency=", "is no urgency"),
        ("urgency=high", "is no urgency"),
        ("deadline=0ms", "out of range"),
        ("deadline=-1s", "is no duration"),
        ("deadline=250", "is no duration"),
        ("deadline=400d", "out of range"),
        ("strategy=", "there is no strategy \"\""),
        ("strategy=fastest", "there is no strategy \"fastest\""),
        ("me", "`me` is no hint"),
        ("Size=5", "`Size=5` is no hint"),
        ("size", "`` is no size"),
        ("=", "`=` is no hint"),
        ("prio=1", "`prio=1` is no hint"),
        ("\u{fffd}\u{0}", "is no hint"),
    ];
    for (item, what) in wrong {
        let (hints, mistakes) = FlowHints::from_text(&format!("urgency=2,{item},size=7"));
        let expected = right("urgency=2,size=7");
        assert_eq!(hints, expected, "{item}");
        assert_eq!(mistakes.len(), 1, "{item}: {mistakes:?}");
        assert!(mistakes[0].what.contains(what), "{item}: {}", mistakes[0]);
        assert!(!mistakes[0].expected.is_empty());
    }
}

proptest! {
    #[test]
    fn any_text_is_read(text in "\\PC{0,255}") {
        FlowHints::from_text(&text);
    }

    #[test]
    fn hints_are_within_their_bounds(
        items in prop::collection::vec(
            "(size|urgency|deadline|strategy|[a-z]{0,5})=?[-+.0-9a-zA-Z:,]{0,12}",
            0..12,
        ),
    ) {
        let (hints, _) = FlowHints::from_text(&items.join(","));
        prop_assert!(hints.size.bytes() != Some(0));
        prop_assert!(hints.size.bytes().unwrap_or(1) <= 1 << 53);
        prop_assert!(!hints.deadline.is_some_and(|d| d.is_zero()));
        if let Some(name) = hints.strategy {
            prop_assert!(braid_strategy::by_name(&name).is_ok());
        }
    }
}
