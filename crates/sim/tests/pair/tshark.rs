//! Captures as Wireshark reads them. The tests need the command `tshark` and are ignored by default;
//! `make test` runs them if it is installed.

use core::time::Duration;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use braid_sim::Transfer;
use braid_sim::transfer::{Direction, REQUEST, TransferConfig};

use crate::support::path;

const SIZE: u64 = 400_000;

/// The severity of an error in expert information.
const ERROR: u32 = 0x0080_0000;
/// Values of the field `subtype` (RFC 8684 section 8.2).
const MP_CAPABLE: &str = "0";
const MP_JOIN: &str = "1";
const DSS: &str = "2";

/// Returns `tshark`'s view of the packets of `file`: a row for each, a column for each of `fields`.
fn tshark<const N: usize>(file: &Path, fields: [&str; N]) -> Vec<[String; N]> {
    let mut command = Command::new("tshark");
    command.arg("-n").arg("-r").arg(file).args(["-T", "fields"]);
    for preference in ["tcp.check_checksum:true", "ip.check_checksum:true"] {
        command.args(["-o", preference]);
    }
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output();
    let output = output.expect("the command 'tshark' is missing (make install-deps)");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tshark: {errors}");
    let rows = String::from_utf8(output.stdout).unwrap();
    rows.lines()
        .map(|row| {
            let columns: Vec<_> = row.split('\t').map(str::to_owned).collect();
            columns.try_into().expect("a column for each field")
        })
        .collect()
}

/// Runs a transfer over two lossy paths and captures it at the client.
fn captured(name: &str, direction: Direction) -> PathBuf {
    captured_and_logged(name, direction).0
}

/// Runs and captures the transfer, and logs it.
fn captured_and_logged(name: &str, direction: Direction) -> (PathBuf, PathBuf) {
    let paths = [path(5, 20, 0.01), path(5, 50, 0.01)];
    let config = TransferConfig::new(&paths, SIZE, direction);
    let mut transfer = Transfer::build(1, &config);
    let file =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
    let out = Box::new(File::create(&file).unwrap());
    let capture = transfer.capture(transfer.client, out);
    let lines = file.with_extension("jsonl");
    let log = transfer.log(Box::new(File::create(&lines).unwrap()));
    transfer.open(&config).unwrap();
    assert!(transfer.run(Duration::from_secs(60)), "{transfer:?}");
    capture.finish().unwrap();
    log.finish().unwrap();
    (file, lines)
}

#[test]
#[ignore = "tshark"]
fn tshark_finds_nothing_wrong() {
    for direction in [Direction::Down, Direction::Up] {
        let file = captured("well-formed.pcapng", direction);
        let rows = tshark(
            &file,
            [
                "frame.number",
                "_ws.malformed",
                "_ws.expert.severity",
                "_ws.expert.message",
                "ip.checksum.status",
                "tcp.checksum.status",
                "mptcp.connection.echoed_key_mismatch",
                "mptcp.dss.infinite_mapping",
            ],
        );
        // The capture has at least the data packets, with segments of 1,460 bytes or less.
        let segments = SIZE.div_ceil(1_460);
        assert!(rows.len() as u64 > segments, "{} packets", rows.len());
        for [
            number,
            malformed,
            severities,
            messages,
            ip,
            tcp,
            key,
            infinite,
        ] in &rows
        {
            let place = format!("packet {number} of {}: {messages}", file.display());
            assert_eq!((malformed.as_str(), infinite.as_str()), ("", ""), "{place}");
            assert_eq!(key, "", "{place}");
            let severities = severities.split(',').filter(|s| !s.is_empty());
            let worst = severities.map(|s| s.parse::<u32>().unwrap()).max();
            assert!(worst < Some(ERROR), "{place}");
            assert_eq!((ip.as_str(), tcp.as_str()), ("1", "1"), "{place}");
        }
    }
}

#[test]
#[ignore = "tshark"]
fn tshark_joins_the_subflows() {
    let rows = tshark(
        &captured("subflows.pcapng", Direction::Down),
        [
            "tcp.stream",
            "frame.interface_name",
            "tcp.flags.syn",
            "tcp.flags.ack",
            "tcp.options.mptcp.subtype",
            "mptcp.stream",
            "mptcp.master",
        ],
    );
    let mut seen = BTreeSet::new();
    for (n, row) in rows.iter().enumerate() {
        let [stream, interface, syn, ack, subtype, connection, master] =
            row.each_ref().map(String::as_str);
        seen.insert((stream, interface));
        match (stream, syn, ack) {
            ("0", "1", _) => assert_eq!(subtype, MP_CAPABLE, "packet {n}: {row:?}"),
            ("1", "1", _) => assert_eq!(subtype, MP_JOIN, "packet {n}: {row:?}"),
            _ => {}
        }
        // The connection of the first SYN is unknown before it is answered.
        if (syn, ack) != ("1", "0") {
            assert_eq!(connection, "0", "packet {n}: {row:?}");
            assert_eq!(master == "1", stream == "0", "packet {n}: {row:?}");
        }
    }
    let expected = [("0", "client.0"), ("1", "client.1")];
    assert_eq!(seen, BTreeSet::from(expected));
}

#[test]
#[ignore = "tshark"]
fn tshark_finds_the_token_of_a_join() {
    let rows = tshark(
        &captured("tokens.pcapng", Direction::Down),
        [
            "tcp.flags.syn",
            "tcp.flags.ack",
            "tcp.options.mptcp.subtype",
            "mptcp.expected_token",
            "tcp.options.mptcp.recvtok",
        ],
    );
    let of = |subtype: &str, ack: &str, column: usize| {
        let rows = rows.iter().filter(|row| row[..3] == ["1", ack, subtype]);
        let values: BTreeSet<_> = rows.map(|row| row[column].clone()).collect();
        assert_eq!(values.len(), 1, "{values:?}");
        values.into_iter().next().unwrap()
    };
    // Wireshark derives the token from the key in the server's SYN/ACK (RFC 8684 section 3.2).
    let token = of(MP_CAPABLE, "1", 3);
    assert_ne!(token, "");
    assert_eq!(of(MP_JOIN, "0", 4), token);
}

#[test]
#[ignore = "tshark"]
fn tshark_follows_the_data_sequence() {
    for (direction, sizes) in [
        (Direction::Down, [REQUEST, SIZE]),
        (Direction::Up, [SIZE, 0]),
    ] {
        let rows = tshark(
            &captured("sequence.pcapng", direction),
            [
                "ip.src",
                "tcp.len",
                "tcp.options.mptcp.subtype",
                "tcp.seq",
                "tcp.options.mptcp.subflowseqno",
                "mptcp.dss.dsn",
                "mptcp.ack",
            ],
        );
        let mut acked = [0; 2];
        let mut data = [BTreeSet::new(), BTreeSet::new()];
        for row in &rows {
            let number = |column: usize| row[column].parse::<u64>();
            let server = usize::from(row[0].starts_with("10.0.255."));
            acked[server] = number(6).unwrap_or(0).max(acked[server]);
            let (len, seq) = (number(1).unwrap(), number(3).unwrap());
            let dsn = match row[2].as_str() {
                _ if len == 0 => continue,
                // The first data, sent with the keys, begins both sequences (RFC 8684 section 3.1).
                MP_CAPABLE => seq,
                DSS => number(5).unwrap() + seq - number(4).unwrap(),
                _ => panic!("no mapping: {row:?}"),
            };
            data[server].insert((dsn, dsn + len));
        }
        for (end, ranges) in data.iter().enumerate() {
            let next = ranges.iter().fold(1, |next, (from, to)| {
                assert!(*from <= next, "nothing maps {next}..{from} of end {end}");
                next.max(*to)
            });
            assert_eq!(next, sizes[end] + 1);
            // The peer acknowledges all data and DATA_FIN, which takes a number.
            assert_eq!(acked[1 - end], next + 1);
        }
    }
}

/// A segment: subflow, nanoseconds at which the client sent or received it, offsets in the stream and in
/// the subflow, length.
type Seen = (u64, u64, u64, u64, u64);

#[test]
#[ignore = "tshark"]
fn tshark_sees_what_the_engine_logged() {
    for direction in [Direction::Down, Direction::Up] {
        let (capture, log) = captured_and_logged("agreement.pcapng", direction);
        let rows = tshark(
            &capture,
            [
                "ip.src",
                "tcp.stream",
                "frame.time_epoch",
                "tcp.len",
                "tcp.options.mptcp.subtype",
                "tcp.seq",
                "tcp.options.mptcp.subflowseqno",
                "mptcp.dss.dsn",
            ],
        );
        let mut seen = [BTreeSet::<Seen>::new(), BTreeSet::new()];
        for row in &rows {
            let number = |column: usize| row[column].parse::<u64>().unwrap();
            let (len, ssn) = (number(3), number(5));
            let dsn = match row[4].as_str() {
                _ if len == 0 => continue,
                MP_CAPABLE => ssn,
                _ => number(7) + ssn - number(6),
            };
            let (seconds, ns) = row[2].split_once('.').unwrap();
            let at = seconds.parse::<u64>().unwrap() * 1_000_000_000 + ns.parse::<u64>().unwrap();
            let server = usize::from(row[0].starts_with("10.0.255."));
            seen[server].insert((number(1), at, dsn - 1, ssn, len));
        }
        let log = std::fs::read_to_string(log).unwrap();
        let mut logged = [BTreeSet::<Seen>::new(), BTreeSet::new()];
        for line in log.lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            if line["type"] != "segment" {
                continue;
            }
            let server = line["host"] == "server";
            let when = if server { "arrived_ns" } else { "sent_ns" };
            // Segments lost on the way to the client are not in its capture.
            let Some(at) = line[when].as_u64() else {
                continue;
            };
            let number = |field: &str| line[field].as_u64().unwrap();
            let segment = (
                number("subflow"),
                at,
                number("dsn"),
                number("ssn"),
                number("len"),
            );
            logged[usize::from(server)].insert(segment);
        }
        assert!(logged[usize::from(direction == Direction::Down)].len() > 250);
        assert_eq!(seen, logged, "{direction:?}");
    }
}
