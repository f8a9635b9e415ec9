use super::scale::{Placed, labels};
use super::*;

fn figure((x, y): (Axis, Axis), body: Body) -> Figure {
    Figure {
        title: "Flow completion time of <a> first subflow on the better path".into(),
        note: "2 × 5 Mb/s without loss; bars are 95 % confidence intervals of the mean. ".repeat(2),
        x,
        y,
        body,
    }
}

/// Returns series with the points that `point` makes of the number of the series and each of `values`.
fn series(count: u32, values: &[f64], point: impl Fn(f64, f64) -> Point) -> Vec<Series> {
    let one = |n: u32| {
        let points = values.iter().map(|value| point(f64::from(n), *value));
        Series::line(format!("series {n}"), points)
    };
    (0..count).map(one).collect()
}

fn lines() -> Figure {
    let sizes = [12, 14, 16, 18, 20, 22].map(|n| f64::from(1 << n));
    let axes = (Axis::sizes("size (bytes)"), Axis::linear("time (ms)"));
    let point = |n, size| Point::with_error(size, (1.0 + n / 5.0) * (80.0 + size / 600.0), 40.0);
    figure(axes, Body::Plane(series(6, &sizes, point)))
}

fn bars() -> Figure {
    let groups = ["0 %", "1 %", "2 % with <a> longer name", "5 %"].map(str::to_owned);
    let point = |n, value| Point::with_error(0.0, value - n / 4.0, 0.4);
    let body = Body::Bars {
        groups: groups.to_vec(),
        series: series(4, &[4.0, 5.0, 6.0, 7.0], point),
    };
    figure((Axis::linear("loss"), Axis::linear("goodput (Mb/s)")), body)
}

fn dots() -> Figure {
    let (mut x, mut y) = (Axis::linear("time (s)"), Axis::linear("share"));
    (x.scale, y.format) = (Scale::Log, Format::Percent);
    let times: Vec<f64> = (1..3_000).map(f64::from).collect();
    let point = |n, time| Point::new(time, (time - time % 7.0) / 3_000.0 / (n + 1.0));
    let mut series = series(3, &times, point);
    series[0].mark = Mark::Dots;
    series[1].mark = Mark::Dots;
    figure((x, y), Body::Plane(series))
}

/// Checks the SVG of three figures. `BRAID_FIGURES=DIR cargo test --workspace --lib pictures` also writes them
/// into DIR, to look at.
#[test]
fn pictures_are_the_same_each_time_and_whole() {
    let directory = std::env::var_os("BRAID_FIGURES").map(std::path::PathBuf::from);
    for (name, figure) in [("lines", lines()), ("bars", bars()), ("dots", dots())] {
        let svg = figure.svg();
        assert_eq!(svg, figure.svg());
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"));
        assert!(!svg.contains("<a>"), "names are escaped");
        assert!(svg.len() < 300_000, "{name} has {} bytes", svg.len());
        if let Some(directory) = &directory {
            std::fs::write(directory.join(format!("{name}.svg")), &svg).unwrap();
        }
    }
}

#[test]
fn ticks_are_round_and_within_the_axis() {
    let (linear, sizes) = (Axis::linear(""), Axis::sizes(""));
    let mut log = Axis::linear("");
    log.scale = Scale::Log;
    let placed = |axis, range| {
        let ends = (0.0, 100.0);
        Placed { axis, range, ends }
    };
    let powers = [4096.0, 16384.0, 65536.0, 262144.0, 1048576.0];
    for (axis, range, count, expected) in [
        (
            &linear,
            (0.0, 10.0),
            5,
            &[0.0, 2.0, 4.0, 6.0, 8.0, 10.0][..],
        ),
        (&linear, (-1.0, 1.0), 4, &[-1.0, -0.5, 0.0, 0.5, 1.0]),
        (&log, (0.5, 30.0), 12, &[0.5, 1.0, 2.0, 5.0, 10.0, 20.0]),
        (&sizes, (4096.0, 1048576.0), 5, &powers),
    ] {
        assert_eq!(placed(axis, range).ticks(count), expected);
    }
    let one_value = Placed::new(&linear, [3.0].into_iter(), false, (0.0, 100.0));
    assert_eq!(one_value.ticks(3), [2.5, 3.0, 3.5]);
    // 10 is the geometric mean of 1 and 100.
    let middle = placed(&log, (1.0, 100.0)).at(10.0);
    assert!((middle - 50.0).abs() < 1e-9);
}

#[test]
fn ticks_are_written_with_as_many_decimals_as_they_need() {
    let sizes = [1.0, 65_536.0, 1_572_864.0, 4_294_967_296.0];
    for (ticks, format, expected) in [
        (
            &[0.0, 0.25, 0.5][..],
            Format::Number,
            &["0.00", "0.25", "0.50"][..],
        ),
        (&[-2.0, 0.0], Format::Number, &["\u{2212}2", "0"]),
        (
            &[9_999.0, 12_500.0],
            Format::Number,
            &["9999", "12\u{a0}500"],
        ),
        (&[1_234_567.5], Format::Number, &["1\u{a0}234\u{a0}567.5"]),
        (&[0.0, 0.005], Format::Percent, &["0.0 %", "0.5 %"]),
        (&sizes, Format::Bytes, &["1", "64k", "1.5M", "4G"]),
    ] {
        assert_eq!(labels(ticks, format), expected);
    }
}

/// Returns the points of all series, to be changed.
fn points(figure: &mut Figure) -> Vec<&mut Point> {
    let (Body::Plane(series) | Body::Bars { series, .. }) = &mut figure.body;
    series.iter_mut().flat_map(|one| &mut one.points).collect()
}

#[test]
fn an_axis_begins_at_zero_where_nothing_is_below() {
    let mut figure = bars();
    points(&mut figure)[0].range = Some((-5.0, 12.0));
    assert!(!figure.svg().contains('\u{2212}'));
    for point in points(&mut figure) {
        *point = Point::new(0.0, 0.0);
    }
    let svg = figure.svg();
    assert!(svg.contains(">1.0<") && !svg.contains('\u{2212}'), "{svg}");
}

#[test]
fn what_cannot_be_drawn_is_left_out() {
    let mut figure = lines();
    figure.y.scale = Scale::Log;
    points(&mut figure)[1].y = f64::NAN;
    points(&mut figure)[8].range = Some((-5.0, f64::INFINITY));
    let Body::Plane(series) = &mut figure.body else {
        unreachable!()
    };
    series[2].points.clear();
    let svg = figure.svg();
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    let (groups, series) = (Vec::new(), Vec::new());
    for body in [Body::Plane(Vec::new()), Body::Bars { groups, series }] {
        figure.body = body;
        figure.svg();
    }
}
