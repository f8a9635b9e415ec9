//! Names of strategies, and the settings after them.

use braid_strategy::{by_name, factory, names, split_list};

#[test]
fn strategies_have_the_name_in_the_list() {
    for name in names() {
        assert_eq!(by_name(name).unwrap().name(), name);
    }
}

#[test]
fn settings_follow_a_colon() {
    for name in [
        "maps:single",
        "maps:plr=measured",
        "maps:plr=model,single,eps=0.25,alpha=1,beta=0",
        "po:base=roundrobin",
        "po:base=linux",
    ] {
        let made = factory(name).map(|mut make| make().name());
        let bare = name.split(':').next().unwrap();
        assert_eq!(made.as_deref(), Ok(bare), "{name}");
    }
}

#[test]
fn errors_name_the_text_and_the_valid_values() {
    let known: Vec<_> = names().collect();
    let known = format!("one of {}", known.join(", "));
    let maps = "one of plr=model|measured, single, eps=NUMBER, alpha=NUMBER, beta=NUMBER, each at most once";
    let bases = "minrtt|roundrobin|redundant|blest|ecf|linux";
    for (name, problem, expected) in [
        ("fastest", r#"there is no strategy "fastest""#, &*known),
        ("", r#"there is no strategy """#, &known),
        (
            "minrtt:single",
            r#"unknown setting "single" in strategy "minrtt:single""#,
            "no settings here",
        ),
        (
            "maps:fast",
            r#"unknown setting "fast" in strategy "maps:fast""#,
            maps,
        ),
        ("maps:", r#"unknown setting "" in strategy "maps:""#, maps),
        (
            "maps:single,single",
            r#"unknown setting "single" in strategy "maps:single,single""#,
            maps,
        ),
        (
            "maps:single=yes",
            r#"single is "yes" in strategy "maps:single=yes""#,
            "no value",
        ),
        (
            "maps:eps=2",
            r#"eps is "2" in strategy "maps:eps=2""#,
            "a number from 0 to 1",
        ),
        (
            "maps:alpha=NaN",
            r#"alpha is "NaN" in strategy "maps:alpha=NaN""#,
            "a number from 0 to 1",
        ),
        (
            "maps:beta",
            r#"beta is no value in strategy "maps:beta""#,
            "a number from 0 to 1",
        ),
        (
            "maps:plr=guessed",
            r#"plr is "guessed" in strategy "maps:plr=guessed""#,
            "model|measured",
        ),
        (
            "po:base=po",
            r#"base is "po" in strategy "po:base=po""#,
            bases,
        ),
    ] {
        let error = by_name(name).unwrap_err();
        assert_eq!((&*error.problem, &*error.expected), (problem, expected));
    }
    let text = by_name("maps:eps=-1").unwrap_err().to_string();
    assert_eq!(
        text,
        r#"eps is "-1" in strategy "maps:eps=-1"; expected a number from 0 to 1"#
    );
}

#[test]
fn a_list_may_contain_names_with_settings() {
    for (list, names) in [
        ("minrtt,fsa", vec!["minrtt", "fsa"]),
        (
            "maps:eps=0.5,single,po:base=ecf,fsa",
            vec!["maps:eps=0.5,single", "po:base=ecf", "fsa"],
        ),
        ("minrtt,fastest", vec!["minrtt", "fastest"]),
        ("maps:single,fastest", vec!["maps:single,fastest"]),
    ] {
        assert_eq!(split_list(list), names);
    }
}
