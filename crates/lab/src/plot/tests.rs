use super::scale::{Placed, label};
use super::*;

fn lines() -> Figure {
    let line = |name: &str, factor: f64| Series {
        name: name.to_owned(),
        points: (12..=22)
            .step_by(2)
            .map(|n| {
                let x = f64::from(1 << n);
                Point::with_error(x, factor * (80.0 + x / 600.0), factor * 40.0)
            })
            .collect(),
        mark: Mark::Line,
    };
    Figure {
        title: "Flow completion time: first subflow on the 40 ms path against the 100 ms path"
            .into(),
        note: "minRTT, CUBIC, 2 × 5 Mb/s without loss, 30 runs a point; bars are 95 % confidence \
               intervals of the mean"
            .into(),
        x: Axis::sizes("size (bytes)"),
        y: Axis::linear("flow completion time (ms)"),
        body: Body::Plane(vec![
            line("first on 40 ms", 1.0),
            line("first on 100 ms", 1.2),
            line("redundant", 1.5),
            line("round-robin", 1.6),
            line("adaptive", 1.7),
            line("fsa", 1.75),
        ]),
    }
}

fn bars() -> Figure {
    let bar = |name: &str, factor: f64| Series {
        name: name.to_owned(),
        points: (0..4)
            .map(|n| Point::with_error(0.0, factor * (4.0 + f64::from(n)), 0.4))
            .collect(),
        mark: Mark::Dots,
    };
    Figure {
        title: "Mean goodput by loss rate".into(),
        note: String::new(),
        x: Axis::linear("loss of each path"),
        y: Axis::linear("goodput (Mb/s)"),
        body: Body::Bars {
            groups: ["0 %", "1 %", "2 % with <a> longer name", "5 %"]
                .map(str::to_owned)
                .to_vec(),
            series: vec![
                bar("po", 1.1),
                bar("standard", 1.0),
                bar("c", 0.9),
                bar("d", 0.8),
            ],
        },
    }
}

fn cdf() -> Figure {
    let samples = |f: f64| {
        (0..400)
            .map(|n| 50.0 + f * (f64::from(n) / 40.0).exp())
            .collect::<Vec<_>>()
    };
    Figure {
        title: "Distribution of the packet delay".into(),
        note: "400 packets".into(),
        x: Axis {
            scale: Scale::Log,
            ..Axis::linear("delay (ms)")
        },
        y: Axis {
            format: Format::Percent,
            ..Axis::linear("share of packets")
        },
        body: Body::Plane(vec![
            Series::cdf("maps", &samples(0.01)),
            Series::cdf("baseline", &samples(0.02)),
            Series::cdf("third", &samples(0.03)),
        ]),
    }
}

fn dots() -> Figure {
    let dots = |name: &str, shift: f64| Series {
        name: name.to_owned(),
        points: (0..3_000)
            .map(|n| {
                Point::new(
                    f64::from(n) / 100.0,
                    (f64::from(n) - shift * f64::from(n % 7)).max(0.0),
                )
            })
            .collect(),
        mark: Mark::Dots,
    };
    let mut series = vec![dots("path 1", 0.0), dots("path 2", 30.0)];
    series.push(Series {
        name: "acknowledged".into(),
        points: (0..3_000)
            .map(|n| Point::new(f64::from(n) / 100.0, f64::from(n) * 0.7))
            .collect(),
        mark: Mark::Line,
    });
    Figure {
        title: "Data sequence numbers against time".into(),
        note: String::new(),
        x: Axis::linear("time (s)"),
        y: Axis::linear("data sequence number (packets)"),
        body: Body::Plane(series),
    }
}

/// Checks the SVG of four figures. `BRAID_FIGURES=DIR cargo test --workspace --lib pictures` also writes them
/// into DIR, to look at.
#[test]
fn pictures_are_the_same_each_time_and_whole() {
    let directory = std::env::var_os("BRAID_FIGURES").map(std::path::PathBuf::from);
    for (name, figure) in [
        ("lines", lines()),
        ("bars", bars()),
        ("cdf", cdf()),
        ("dots", dots()),
    ] {
        let svg = figure.svg();
        assert_eq!(svg, figure.svg());
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"));
        assert!(!svg.contains("<a>"), "names are escaped");
        if let Some(directory) = &directory {
            std::fs::write(directory.join(format!("{name}.svg")), &svg).unwrap();
        }
    }
}

#[test]
fn ticks_are_round_and_within_the_axis() {
    let axis = |scale, low, high| Placed::new(scale, (low, high), (0.0, 100.0));
    let number = Format::Number;
    assert_eq!(
        axis(Scale::Linear, 0.0, 10.0).ticks(5, number),
        [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    );
    assert_eq!(
        axis(Scale::Linear, -1.0, 1.0).ticks(4, number),
        [-1.0, -0.5, 0.0, 0.5, 1.0]
    );
    let decades = axis(Scale::Log, 0.5, 30.0).ticks(12, number);
    assert_eq!(decades, [0.5, 1.0, 2.0, 5.0, 10.0, 20.0]);
    let sizes = axis(Scale::Log, 4096.0, 1048576.0).ticks(5, Format::Bytes);
    assert_eq!(sizes, [4096.0, 16384.0, 65536.0, 262144.0, 1048576.0]);
    assert_eq!(
        axis(Scale::Linear, 3.0, 3.0).ticks(3, number),
        [2.5, 3.0, 3.5]
    );
    // 10 is the geometric mean of 1 and 100.
    let middle = axis(Scale::Log, 1.0, 100.0).at(10.0);
    assert!((middle - 50.0).abs() < 1e-9);
}

#[test]
fn ticks_are_written_with_as_many_decimals_as_they_need() {
    let of = |value, ticks: &[f64]| label(value, ticks, Format::Number);
    assert_eq!(of(0.5, &[0.0, 0.25, 0.5]), "0.50");
    assert_eq!(of(-2.0, &[-2.0, 0.0]), "\u{2212}2");
    assert_eq!(of(12_500.0, &[12_500.0]), "12\u{a0}500");
    assert_eq!(label(0.005, &[0.0, 0.005], Format::Percent), "0.5 %");
    let sizes = [1.0, 65_536.0, 1_572_864.0, 4_294_967_296.0];
    assert_eq!(
        sizes.map(|s| label(s, &sizes, Format::Bytes)),
        ["1", "64k", "1.5M", "4G"]
    );
}

#[test]
fn a_distribution_function_rises_from_0_to_1() {
    let cdf = Series::cdf("x", &[3.0, 1.0, f64::NAN, 2.0, 2.0]);
    let points: Vec<(f64, f64)> = cdf.points.iter().map(|p| (p.x, p.y)).collect();
    assert_eq!(
        points,
        [(1.0, 0.0), (1.0, 0.25), (2.0, 0.5), (2.0, 0.75), (3.0, 1.0)]
    );
}

#[test]
fn an_axis_begins_at_zero_where_nothing_is_below() {
    let mut figure = bars();
    let Body::Bars { series, .. } = &mut figure.body else {
        unreachable!()
    };
    series[0].points[0].range = Some((-5.0, 12.0));
    assert!(!figure.svg().contains('\u{2212}'));
    let Body::Bars { series, .. } = &mut figure.body else {
        unreachable!()
    };
    for point in series.iter_mut().flat_map(|s| &mut s.points) {
        *point = Point::new(0.0, 0.0);
    }
    let svg = figure.svg();
    assert!(svg.contains(">1.0<") && !svg.contains('\u{2212}'), "{svg}");
}

#[test]
fn what_cannot_be_drawn_is_left_out() {
    let mut figure = lines();
    figure.y.scale = Scale::Log;
    let Body::Plane(series) = &mut figure.body else {
        unreachable!()
    };
    series[0].points[1].y = f64::NAN;
    series[1].points[2].range = Some((-5.0, f64::INFINITY));
    series[2].points.clear();
    let svg = figure.svg();
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    figure.body = Body::Plane(Vec::new());
    figure.svg();
    figure.body = Body::Bars {
        groups: Vec::new(),
        series: Vec::new(),
    };
    figure.svg();
}
