//! `braid-lab` as a user runs it. None of these tests needs privileges.

use std::process::{Command, Output};

use serde_json::Value;
use tempfile::tempdir;

use crate::outcomes::assert_outcomes;

const PATHS: &str = "5mbit,40ms,0%;5mbit,100ms,2%";

fn lab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_braid-lab"))
        .args(arguments)
        .output()
        .expect("braid-lab starts")
}

/// Returns the JSON of a measurement over [`PATHS`].
fn measured(arguments: &[&str]) -> Vec<u8> {
    let output = lab(&[&["fct", "--json", "--paths", PATHS], arguments].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    output.stdout
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let run = |seed| measured(&["--size", "4k,64k", "--runs", "6", "--seed", seed]);
    let first = run("7");
    assert_eq!(first, run("7"));
    let mut other: Value = serde_json::from_slice(&run("8")).expect("JSON");
    let mut first: Value = serde_json::from_slice(&first).expect("JSON");
    for rows in [&mut first, &mut other] {
        for row in rows.as_array_mut().expect("an array") {
            row["seed"] = Value::Null;
        }
    }
    assert_ne!(first, other, "only the seed itself differs");
}

#[test]
fn json_has_the_promised_fields() {
    let json = measured(&["--size", "4k,1M", "--runs", "3"]);
    let rows: Value = serde_json::from_slice(&json).expect("JSON");
    let rows = rows.as_array().expect("an array");
    assert_eq!(rows.len(), 2);
    for (row, size) in rows.iter().zip(["4k", "1M"]) {
        let mut fields: Vec<&str> = row
            .as_object()
            .expect("an object")
            .keys()
            .map(|k| &**k)
            .collect();
        fields.sort_unstable();
        assert_eq!(
            fields,
            [
                "arm",
                "bytes_by_path",
                "cc",
                "completed",
                "copy_bytes_by_path",
                "copy_share_by_path",
                "direction",
                "fct_data_ms",
                "fct_ms",
                "flows",
                "join_syns",
                "paths",
                "retransmissions",
                "runs",
                "seed",
                "size",
                "strategy",
            ]
        );
        for times in ["fct_ms", "fct_data_ms"] {
            for figure in ["mean", "median", "p95", "p99", "sd", "ci95"] {
                assert!(row[times][figure].is_f64(), "{times} {figure}: {row}");
            }
        }
        for by_path in ["bytes_by_path", "copy_bytes_by_path", "copy_share_by_path"] {
            assert_eq!(row[by_path].as_array().map(Vec::len), Some(2), "{by_path}");
        }
        assert_eq!(
            [
                &row["size"],
                &row["paths"],
                &row["arm"],
                &row["strategy"],
                &row["cc"]
            ],
            [size, PATHS, "sim", "minrtt", "cubic"]
        );
        assert_eq!((&row["runs"], &row["completed"]), (&3.into(), &3.into()));
    }
}

#[test]
fn single_runs_are_listed_with_each_flow() {
    let arguments = ["--size", "4k", "--runs", "3", "--flows", "2", "--each"];
    let rows: Value = serde_json::from_slice(&measured(&arguments)).expect("JSON");
    let each = rows[0]["each"].as_array().expect("an array");
    assert_eq!(each.len(), 3);
    for run in each {
        let flows: Vec<f64> = serde_json::from_value(run["flows_ms"].clone()).expect("times");
        let mean = (flows[0] + flows[1]) / 2.0;
        let fct = run["fct_ms"].as_f64().expect("a time");
        assert!(flows[0] <= flows[1] && (fct - mean).abs() < 0.002, "{run}");
    }
    let output = lab(&[&["fct", "--paths", PATHS], &arguments[..]].concat());
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(
        text.contains(", 2 flows at once,") && text.contains("each flow"),
        "{text}"
    );
}

#[test]
fn a_table_has_a_line_for_each_case() {
    let output = lab(&["fct", "--paths", PATHS, "--size", "4k,64k", "--runs", "3"]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success());
    let lines: Vec<&str> = text.lines().filter(|l| l.starts_with("minrtt ")).collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[1].contains("64k") && lines[1].contains("±"), "{text}");
    assert!(lines.iter().all(|l| l.ends_with("3/3")), "{text}");
}

/// The row of a call over a path alone, which no change of the tunnel changes: 200 bytes at 5 Mb/s and 20 ms.
#[test]
fn a_tunnel_without_a_tunnel_prints_this_row() {
    let arguments = "tunnel --json --inner voip --size 10k --mode single --runs 2 --seed 7 --backend sim --paths";
    let arguments: Vec<&str> = arguments.split(' ').chain([PATHS]).collect();
    let output = lab(&arguments);
    assert!(output.status.success(), "{output:?}");
    let printed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let expected = serde_json::json!([{
        "mode": "single", "inner": "voip", "paths": PATHS, "runs": 2, "seed": 7,
        "goodput_mbit_s": { "mean": 0.081, "sd": 0.0, "ci95": 0.0 },
        "delay_ms": { "p50": 20.32, "p99": 20.32 },
        "lost": 0, "reordered": 0, "bytes_by_path": [20_800, 0],
    }]);
    assert_eq!(printed, expected);
}

#[test]
fn a_tunnel_has_a_line_for_each_mode() {
    let output = lab(&["tunnel", "--paths", PATHS, "--size", "64k", "--runs", "2"]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{text}");
    for mode in ["aggregate", "fastest", "redundant", "single"] {
        let line = text.lines().find(|line| line.starts_with(mode));
        assert!(line.is_some_and(|line| line.contains('±')), "{text}");
    }
}

/// Wrong input is answered by one line with the value read and the values expected, and by exit code 2.
#[test]
fn bad_input_of_a_tunnel_is_answered_in_one_line() {
    for (option, value, expected) in [
        ("--paths", "5mbit,40ms", "rate,round-trip time,loss"),
        ("--paths", "5mbit,40ms,0%,jitter=5ms/swap", "no duration"),
        ("--inner", "quic:reno", "quic:bbr, quic:cubic"),
        ("--inner", "udp:5mbit:9000", "44 to 1500 bytes"),
        ("--size", "20MB", "`64k`"),
        (
            "--mode",
            "both",
            "aggregate, fastest, redundant, single, all",
        ),
        ("--runs", "0", "from 1 to 1000000"),
        ("--backend", "kernel", "sim"),
    ] {
        let mut arguments = vec!["tunnel", option, value];
        if option != "--paths" {
            arguments.extend(["--paths", PATHS]);
        }
        let output = lab(&arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{option} {value}: {stderr}");
        assert!(stderr.contains(expected), "{option} {value}: {stderr}");
        assert!(stderr.contains(value), "{option} {value}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{option} {value}: {stderr}");
        assert!(output.stdout.is_empty());
    }
}

/// Wrong input is answered by one line with the value read and the values expected, and by exit code 2.
#[test]
fn bad_input_is_answered_in_one_line() {
    let with = |option: &'static str, value: &'static str| {
        let mut arguments = vec!["fct", "--paths", PATHS, "--size", "4k", "--runs", "1"];
        match arguments.iter().position(|a| *a == option) {
            Some(at) => arguments[at + 1] = value,
            None => arguments.extend([option, value]),
        }
        arguments
    };
    for (option, value, expected) in [
        ("--paths", "5mbit,40ms", "rate,round-trip time,loss"),
        (
            "--paths",
            "5mbit,40ms;5mbit,40ms,0%",
            "rate,round-trip time,loss",
        ),
        ("--paths", "5mbit,40ms,101%;5mbit,40ms,0%", "a probability"),
        ("--paths", "0mbit,40ms,0%;5mbit,40ms,0%", "1 bit/s"),
        (
            "--paths",
            "trace:/no/where,40ms,0%;5mbit,40ms,0%",
            "No such file",
        ),
        ("--size", "64kB", "`64k`"),
        ("--size", "0", "from 1 to 4096M"),
        ("--strategy", "fastest", "minrtt"),
        ("--cc", "vegas", "cubic"),
        ("--backend", "paper", "sim"),
        ("--default-path", "2", "0 to 1, or mix"),
        ("--default-path", "first", "mix"),
        ("--flows", "33", "from 1 to 32"),
        ("--runs", "0", "from 1 to 1000000"),
        ("--runs", "many", "from 1 to 1000000"),
        ("--seed", "-1", "from 0 to 18446744073709551615"),
        ("--iw", "4", "3, 10"),
        ("--declare", "half", "size, none"),
        ("--direction", "across", "down, up"),
        ("--queue", "few", "from 0 to 1000000"),
    ] {
        let output = lab(&with(option, value));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{option} {value}: {stderr}");
        assert!(stderr.contains(expected), "{option} {value}: {stderr}");
        assert!(stderr.contains(value), "{option} {value}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{option} {value}: {stderr}");
        assert!(output.stdout.is_empty());
    }
}

/// The first run of each case is recorded, and the results do not change.
#[test]
fn runs_are_recorded() {
    let out = tempdir().expect("a directory");
    let out = out.path();
    let directory = out.to_str().expect("a path of characters");
    let cases = ["--size", "4k,64k", "--runs", "2"];
    let recorded = measured(&[&cases[..], &["--pcap", directory, "--log", directory]].concat());
    let files = std::fs::read_dir(out).expect("the directory");
    let mut files: Vec<_> = files
        .map(|file| file.expect("a file"))
        .map(|file| (file.file_name(), std::fs::read(file.path())))
        .collect();
    files.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(recorded, measured(&cases));
    let names: Vec<_> = files.iter().filter_map(|(name, _)| name.to_str()).collect();
    assert_eq!(
        names,
        [
            "minrtt-cubic-4k-client.pcapng",
            "minrtt-cubic-4k-server.pcapng",
            "minrtt-cubic-4k.jsonl",
            "minrtt-cubic-64k-client.pcapng",
            "minrtt-cubic-64k-server.pcapng",
            "minrtt-cubic-64k.jsonl",
        ]
    );
    for (name, bytes) in files {
        let bytes = bytes.expect("the file");
        // Each file is complete, and as large as the transfer requires.
        let least = if bytes[0] == b'{' { 2_000 } else { 4 << 10 };
        assert!(bytes.len() > least, "{name:?}: {} bytes", bytes.len());
        assert!(
            bytes.starts_with(b"\x0a\x0d\x0d\x0a") || bytes.ends_with(b"}\n"),
            "{name:?}"
        );
    }
}

#[test]
fn runs_that_cannot_be_recorded_are_refused() {
    let case = ["fct", "--paths", PATHS, "--size", "4k", "--runs", "1"];
    let refused = |arguments: &[&str], code, expected: &str| {
        let output = lab(&[&case[..], arguments].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(stderr.contains(expected), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(output.stdout.is_empty());
    };
    refused(
        &["--backend", "links", "--log", "/tmp"],
        2,
        "--backend sim, but the backend is links",
    );
    refused(
        &["--pcap", "/dev/null"],
        1,
        "cannot write /dev/null/minrtt-cubic-4k-client.pcapng",
    );
}

/// A path carries nothing: the flow does not arrive, which the output and the exit code show.
#[test]
fn a_flow_that_does_not_arrive_is_not_counted() {
    let paths = "5mbit,40ms,100%;5mbit,40ms,100%";
    let output = lab(&[
        "fct", "--json", "--paths", paths, "--size", "4k", "--runs", "2",
    ]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("2 of 2 runs did not complete"), "{stderr}");
    let rows: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(rows[0]["completed"], 0);
    assert_eq!(rows[0]["fct_ms"]["mean"], Value::Null);
}

#[test]
fn an_experiment_is_listed_run_and_reported() {
    let list = lab(&["list"]);
    assert!(String::from_utf8_lossy(&list.stdout).contains("fsa-2a  "));
    let list = lab(&["list", "--backend", "sim"]);
    let list = String::from_utf8_lossy(&list.stdout);
    assert!(list.contains("fsa-2a  ") && !list.contains("kernel "));
    let out = tempdir().expect("a directory");
    let out = out.path();
    let path = out.to_str().expect("a path of characters");
    let run = lab(&["run", "fsa-2a", "--runs", "2", "--out", path]);
    let report = lab(&["report", path]);
    let [markdown, beside] = ["docs/results.md", "docs/figures"].map(|name| out.join(name));
    let [at, svgs] = [&markdown, &beside].map(|path| path.to_str().expect("characters"));
    let elsewhere = lab(&["report", path, "--markdown", at, "--figures", svgs]);
    let pictures = std::fs::read_dir(&beside).map(Iterator::count);
    let markdown = std::fs::read_to_string(&markdown);
    let figures = lab(&["report", path, "--json"]);
    let page = std::fs::read_to_string(out.join("report.html"));
    let cases = std::fs::read_dir(out.join("fsa-2a/sim/cells")).map(Iterator::count);
    for output in [&run, &report, &elsewhere] {
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
    }
    assert!(String::from_utf8_lossy(&run.stdout).contains("holds"));
    assert!(page.expect("the page").contains("<svg"));
    let markdown = markdown.expect("the page elsewhere");
    let shown = "(figures/fsa-2a-sim-fct-cubic-iw10.svg)";
    assert!(markdown.contains(shown), "{markdown}");
    assert_eq!(pictures.expect("the figures"), 1);
    let figures: Value = serde_json::from_slice(&figures.stdout).expect("JSON");
    assert_eq!(figures["results"], 1);
    assert_eq!(figures["pages"].as_array().map(Vec::len), Some(2));
    // 6 sizes and 6 variants, with 2 congestion controls and 2 initial windows.
    assert_eq!(cases.expect("the cases"), 144);
}

/// One experiment of each kind: flows, captures, a session over time, a change of address, box and
/// server.
const SMOKE: [&str; 5] = ["fsa-2a", "fsa-6a", "po-6", "maps-5", "tm-3"];

/// The form for programs, with the same bytes for the same seed.
#[test]
fn outcomes_are_an_array_of_objects() {
    let out = tempdir().expect("a directory");
    let out = out.path();
    let path = out.to_str().expect("a path of characters");
    let run = |seed| {
        let rest = ["--runs", "2", "--seed", seed, "--out", path, "--json"];
        let output = lab(&[&["run"], &SMOKE[..], &rest].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        output.stdout
    };
    let pages = || {
        assert!(lab(&["report", path]).status.success());
        ["report.html", "report.md"].map(|page| std::fs::read(out.join(page)).expect("a page"))
    };
    let (first, page) = (run("3"), pages());
    assert_eq!((run("3"), pages()), (first.clone(), page));
    assert_outcomes(&first, &SMOKE, 3);
}

/// A missing program is an error of one line if its experiment is the only one, and skips it otherwise.
#[test]
fn an_experiment_says_what_it_lacks() {
    let out = tempdir().expect("a directory");
    let out = out.path();
    let run = |ids: &[&str]| {
        let mut lab = Command::new(env!("CARGO_BIN_EXE_braid-lab"));
        lab.env("PATH", out.join("none")).arg("run").args(ids);
        lab.args(["--runs", "2", "--json", "--out"]).arg(out);
        lab.output().expect("braid-lab starts")
    };
    let (alone, beside) = (run(&["po-8"]), run(&["po-8", "fsa-6a"]));
    let why = "the command `ffmpeg` is missing: install the package ffmpeg\n";
    assert_eq!(alone.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&alone.stderr),
        format!("braid-lab: {why}")
    );
    assert!(beside.status.success());
    assert_eq!(
        String::from_utf8_lossy(&beside.stderr),
        format!("braid-lab: po-8 is skipped: {why}")
    );
    let outcomes: Value = serde_json::from_slice(&beside.stdout).expect("JSON");
    assert_eq!(outcomes.as_array().map(Vec::len), Some(1));
    assert_eq!(outcomes[0]["id"], "fsa-6a");
}

/// The kernel's own sockets are not in the simulator.
#[test]
fn an_experiment_says_where_it_runs() {
    let output = lab(&[
        "run",
        "kernel",
        "--backend",
        "sim",
        "--out",
        "/dev/null/none",
    ]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert_eq!(
        stderr,
        "braid-lab: kernel does not run with --backend sim; expected links\n"
    );
}

/// A wrong directory is refused before anything is measured: a million runs would take too long to wait
/// for.
#[test]
fn results_without_a_place_are_refused_at_once() {
    let taken = tempdir().expect("a directory");
    let taken = taken.path();
    std::fs::create_dir_all(taken.join("fsa-2a/sim")).expect("a directory");
    let places = [
        ("/dev/null/results", "cannot create /dev/null/results"),
        (
            taken.to_str().expect("a path of characters"),
            "is no result of the lab",
        ),
    ];
    let outputs = places.map(|(place, expected)| {
        let output = lab(&["run", "fsa-2a", "--runs", "1000000", "--out", place]);
        (output, expected)
    });
    for (output, expected) in outputs {
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(expected), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

#[test]
fn a_swarm_closes_with_a_line_of_figures() {
    let output = lab(&["swarm", "--seeds", "20", "--first-seed", "7"]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}");
    assert!(stdout.starts_with("20 seeds, 0 violations: "), "{stdout}");
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    let one = lab(&["swarm", "--seeds", "1", "--first-seed", "7", "-v"]);
    let stdout = String::from_utf8_lossy(&one.stdout);
    assert!(
        stdout.starts_with("seed 7: HostScenario {")
            || stdout.starts_with("seed 7: GatewayScenario {"),
        "{stdout}"
    );
}

#[test]
fn an_unknown_experiment_is_answered_with_near_ones() {
    let output = lab(&["run", "fsa2a"]);
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        stderr,
        "braid-lab: there is no experiment `fsa2a`; did you mean fsa-2a or fsa-2b or fsa-6a?\n"
    );
    let output = lab(&["run", "all", "fsa-2x", "--out", "/dev/null/none"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.starts_with("braid-lab: there is no experiment `fsa-2x`"),
        "{stderr}"
    );
    let output = lab(&["report", "/nowhere"]);
    assert_eq!(output.status.code(), Some(2));
}

/// The old name is taken for one more version, with a line that names the new option and the same
/// results.
#[test]
fn the_old_name_of_the_backend_is_taken_with_a_warning() {
    let output = |arguments: &[&str]| {
        let output = lab(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{stderr}");
        (output.stdout, stderr)
    };
    let (listed, stderr) = output(&["list", "--backend", "sim"]);
    assert_eq!(stderr, "");
    for old in [&["list", "--arm", "sim"][..], &["list", "--arm=sim"]] {
        let (same, stderr) = output(old);
        assert_eq!(same, listed);
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(
            stderr.contains("--arm") && stderr.contains("--backend"),
            "{stderr}"
        );
    }
    for command in ["list", "run", "fct"] {
        let (help, _) = output(&[command, "--help"]);
        let help = String::from_utf8(help).expect("text");
        assert!(
            help.contains("--backend") && !help.contains("--arm"),
            "{help}"
        );
    }
}
