//! The format of datagrams and frames, byte by byte.

use braid_tunnel::frame::{Frame, Frames, Label, Report, Sample};
use braid_tunnel::{DatagramError, Header, MAX_FLOWS, Mode, PathId, PathState, SessionId, Urgency};

fn bytes(frame: &Frame) -> Vec<u8> {
    let mut out = Vec::new();
    frame.emit(&mut out);
    out
}

fn frames(bytes: &[u8]) -> Vec<Result<Frame<'_>, DatagramError>> {
    Frames::new(bytes).collect()
}

const LABEL: Label = Label {
    flow: 0x0102,
    urgency: None,
    mode: Mode::Aggregate,
    sequence: 0x030405,
    hides_losses: false,
    sole: false,
    again: false,
};

#[test]
fn the_header_is_thirteen_bytes() {
    let header = Header {
        phase: 2,
        session: SessionId([0xc7, 1, 2, 3, 4, 5, 6, 7]),
        path: PathId(9),
        number: 0x0a0b0c,
    };
    let bytes = [0x12, 0xc7, 1, 2, 3, 4, 5, 6, 7, 9, 0x0a, 0x0b, 0x0c];
    assert_eq!(header.emit(), bytes);
    assert_eq!(Header::parse(&bytes), Ok(header));
    assert_eq!(header.session.shard(), 7);
    assert_eq!(Header::parse(&bytes[..12]), Err(DatagramError::Malformed));
    for first in [0x02, 0x22, 0x16, 0x1a] {
        let mut other = bytes;
        other[0] = first;
        assert_eq!(Header::parse(&other), Err(DatagramError::Malformed));
    }
}

#[test]
fn frames_are_as_the_table_says() {
    let sole = Label {
        sole: true,
        ..LABEL
    };
    let hidden = Label {
        hides_losses: true,
        ..LABEL
    };
    let again = Label {
        again: true,
        ..LABEL
    };
    let cases: [(Frame, &[u8]); 11] = [
        (
            Frame::Packet(LABEL, b"ab"),
            &[1, 1, 2, 3, 4, 5, 0, 2, 97, 98],
        ),
        (Frame::Packet(sole, b""), &[0x41, 1, 2, 3, 4, 5, 0, 0]),
        (Frame::Packet(again, b"a"), &[0x81, 1, 2, 3, 4, 5, 0, 1, 97]),
        (Frame::Packet(hidden, b""), &[0x21, 1, 2, 3, 4, 5, 0, 0]),
        (Frame::Head(LABEL, b"ab"), &[2, 1, 2, 3, 4, 5, 97, 98]),
        (Frame::Tail(b"cd"), &[3, 0, 2, 99, 100]),
        (
            Frame::Latest {
                flow: 0x0102,
                sequence: 0x030405,
            },
            &[5, 1, 2, 3, 4, 5],
        ),
        (
            Frame::Rerequest {
                flow: 0x0102,
                sequence: 0x030405,
                count: 6,
            },
            &[6, 1, 2, 3, 4, 5, 6],
        ),
        (
            Frame::Challenge([1, 2, 3, 4, 5, 6, 7, 8]),
            &[7, 1, 2, 3, 4, 5, 6, 7, 8],
        ),
        (
            Frame::Response([1, 2, 3, 4, 5, 6, 7, 8]),
            &[8, 1, 2, 3, 4, 5, 6, 7, 8],
        ),
        (
            Frame::Use {
                path: PathId(1),
                state: PathState::Backup,
            },
            &[9, 1, 1],
        ),
    ];
    for (frame, expected) in cases {
        assert_eq!(bytes(&frame), expected);
        assert_eq!(frames(expected), [Ok(frame)]);
    }
}

/// The policy is in the highest six bits of the number of the flow.
#[test]
fn packets_state_urgency_and_mode() {
    for (level, mode, bits) in [
        (None, Mode::Aggregate, 0x00),
        (Some(0), Mode::Aggregate, 0x80),
        (None, Mode::Fastest, 0x04),
        (Some(1), Mode::Redundant, 0x98),
        (Some(3), Mode::Single, 0xbc),
        (Some(7), Mode::Single, 0xfc),
    ] {
        let label = Label {
            urgency: level.and_then(Urgency::new),
            mode,
            ..LABEL
        };
        let packet = [1, 1 | bits, 2, 3, 4, 5, 0, 1, 97];
        let head = [2, 1 | bits, 2, 3, 4, 5, 97];
        for (frame, expected) in [
            (Frame::Packet(label, b"a"), &packet[..]),
            (Frame::Head(label, b"a"), &head),
        ] {
            assert_eq!(bytes(&frame), expected);
            assert_eq!(frames(expected), [Ok(frame)]);
        }
    }
    // An urgency that is not known is none, whatever its bits are.
    let unknown = frames(&[1, 0x71, 2, 3, 4, 5, 0, 0]);
    assert_eq!(unknown, [Ok(Frame::Packet(LABEL, b""))]);
    let last = Label {
        flow: MAX_FLOWS - 1,
        ..LABEL
    };
    assert_eq!(bytes(&Frame::Head(last, b"")), [2, 3, 0xff, 3, 4, 5]);
}

#[test]
fn a_report_names_its_samples() {
    let sample = Sample {
        below: 0x1112,
        before: 0x131415,
    };
    let report = Report {
        path: PathId(1),
        highest: 0x020304,
        datagrams: 0x05060708,
        bytes: 0x090a0b0c,
        received_at: 0x0d0e0f10,
        delay: 0x212223,
        samples: [sample].into_iter().collect(),
    };
    let expected = [
        4, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 0x21, 0x22, 0x23, 1, 0x11, 0x12,
        0x13, 0x14, 0x15,
    ];
    assert_eq!(bytes(&Frame::Report(report.clone())), expected);
    assert_eq!(frames(&expected), [Ok(Frame::Report(report))]);
    let mut many = expected.to_vec();
    many[20] = 9;
    many.resize(100, 0);
    assert_eq!(frames(&many), [Err(DatagramError::BadFrame)]);
}

#[test]
fn padding_and_faults_end_a_datagram() {
    let two = [3, 0, 1, 97, 3, 0, 0, 0, 5];
    assert_eq!(frames(&two), [Ok(Frame::Tail(b"a")), Ok(Frame::Tail(b""))]);
    assert_eq!(frames(&[10, 3, 0, 0]), [Err(DatagramError::BadFrame)]);
    assert_eq!(frames(&[9, 1, 3]), [Err(DatagramError::BadFrame)]);
    // Flags are for packets.
    assert_eq!(frames(&[0x43, 0, 0]), [Err(DatagramError::BadFrame)]);
    assert_eq!(
        frames(&[1, 0, 0, 0, 0, 0, 0, 2, 1]),
        [Err(DatagramError::BadFrame)]
    );
    assert_eq!(frames(&[]), []);
}
