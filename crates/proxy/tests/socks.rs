//! SOCKS5 handshakes (RFC 1928, RFC 1929), with all messages together or one after another, in any fragmentation.

use braid_proxy::app::ConnectFailure;
use braid_proxy::socks::{
    ClientError, ClientHandshake, ClientStep, Destination, Reply, Request, RequestMetadata,
    ServerError, ServerHandshake, ServerStep, probe, request, sign_in,
};
use proptest::prelude::*;

/// Encodes all messages of a client without metadata.
fn flight(user: &[u8], password: &[u8], destination: &Destination) -> Vec<u8> {
    [sign_in(user, password), request(None, destination)].concat()
}

/// Returns the step for a request without metadata.
fn asks(destination: Destination) -> ServerStep {
    let metadata = None;
    ServerStep::Request(Request {
        destination,
        metadata,
    })
}

fn v4() -> Destination {
    Destination::Address("192.0.2.1:80".parse().unwrap())
}

/// Feeds `input` in pieces of the given sizes; returns the steps, and the bytes left over.
fn serve(input: &[u8], pieces: &[usize]) -> (Vec<ServerStep>, Vec<u8>) {
    let mut handshake = ServerHandshake::default();
    let mut steps = Vec::new();
    let mut rest: Vec<u8> = Vec::new();
    let mut sizes = pieces.iter().copied().chain(std::iter::repeat(usize::MAX));
    let mut input = input;
    while !input.is_empty() {
        let n = sizes.next().unwrap().clamp(1, input.len());
        rest.extend_from_slice(&input[..n]);
        input = &input[n..];
        loop {
            let (taken, step) = handshake.input(&rest);
            rest.drain(..taken);
            match step {
                ServerStep::More => break,
                ServerStep::Credentials { .. } => {
                    handshake.accepted();
                    steps.push(step);
                }
                step => steps.push(step),
            }
        }
    }
    (steps, rest)
}

#[test]
fn the_messages_have_the_form_of_the_rfcs() {
    let bytes = flight(b"ab", b"xyz", &v4());
    let expected = [
        &[5, 1, 2][..],
        &[1, 2, b'a', b'b', 3, b'x', b'y', b'z'],
        &[5, 1, 0, 1, 192, 0, 2, 1, 0, 80],
    ];
    assert_eq!(bytes, expected.concat());
}

#[test]
fn every_address_type_round_trips_and_early_data_is_left_alone() {
    for destination in [
        v4(),
        Destination::Address("[2001:db8::1]:443".parse().unwrap()),
        Destination::Name("example.net".into(), 8080),
    ] {
        let mut bytes = flight(b"u", b"p", &destination);
        bytes.extend_from_slice(b"GET / HTTP/1.1");
        let (steps, rest) = serve(&bytes, &[]);
        assert_eq!(
            steps,
            [
                ServerStep::Send([5, 2]),
                ServerStep::Credentials {
                    user: b"u".to_vec(),
                    password: b"p".to_vec()
                },
                asks(destination),
            ]
        );
        assert_eq!(rest, b"GET / HTTP/1.1");
    }
}

#[test]
fn metadata_precede_their_request() {
    let metadata = RequestMetadata {
        code: Some([7; 64]),
        hints: b"hints".to_vec(),
    };
    let bytes = request(Some(&metadata), &v4());
    let head = [&[0xb5, 0, 69][..], &[7; 64], b"hints", &[5, 1, 0, 1]].concat();
    assert_eq!(bytes[..head.len()], head);
    let all = [sign_in(b"u", b"p"), bytes.clone()].concat();
    let (steps, _) = serve(&all, &[]);
    let metadata = Some(metadata);
    let destination = v4();
    let asked = ServerStep::Request(Request {
        destination,
        metadata,
    });
    assert_eq!(steps[2..], [asked]);
    // Metadata that is too short or too long, or comes twice, is refused.
    let garbage = ServerStep::Failed(ServerError::Garbage);
    let twice = [&bytes[..head.len() - 4], &bytes[..]].concat();
    for bad in [&[0xb5, 0, 63][..], &[0xb5, 4, 65], &[0xb4, 0, 64], &twice] {
        let all = [&sign_in(b"u", b"p"), bad].concat();
        let (steps, _) = serve(&all, &[]);
        assert_eq!((steps.len(), steps.last()), (3, Some(&garbage)), "{bad:?}");
    }
}

#[test]
fn a_probe_is_requested_instead_of_a_destination() {
    let metadata = RequestMetadata {
        code: Some([7; 64]),
        hints: b"train".to_vec(),
    };
    let bytes = probe(&metadata);
    assert_eq!(bytes, [&[0xb7, 0, 69][..], &[7; 64], b"train"].concat());
    let all = [sign_in(b"u", b"p"), bytes].concat();
    let (steps, _) = serve(&all, &[]);
    assert_eq!(steps[2..], [ServerStep::Probe(metadata)]);
    let garbage = ServerStep::Failed(ServerError::Garbage);
    for bad in [&[0xb7, 0, 63][..], &[0xb7, 4, 65], &[0xb2, 0, 64]] {
        let all = [&sign_in(b"u", b"p"), bad].concat();
        let (steps, _) = serve(&all, &[]);
        assert_eq!((steps.len(), steps.last()), (3, Some(&garbage)), "{bad:?}");
    }
}

#[test]
fn a_clients_mistakes_get_the_replies_of_the_rfc() {
    let auth: &[u8] = &[5, 1, 2, 1, 1, b'u', 1, b'p'];
    let cases: &[(&[u8], ServerError, &[u8])] = &[
        (b"GET / HTTP/1.1\r\n", ServerError::Garbage, &[]),
        (&[4, 1, 0, 80, 192, 0, 2, 1, 0], ServerError::Garbage, &[]),
        (&[5, 0], ServerError::Garbage, &[]),
        (&[5, 1, 0], ServerError::NoMethod, &[5, 0xff]),
        (&[5, 1, 2, 5], ServerError::Garbage, &[]),
        (&[5, 1, 2, 1, 0, 1, b'p'], ServerError::Garbage, &[]),
        (&[5, 1, 2, 1, 1, b'u', 0], ServerError::Garbage, &[]),
        (&[auth, &[4]].concat(), ServerError::Garbage, &[]),
        // The commands BIND and UDP ASSOCIATE.
        (
            &[auth, &[5, 2, 0, 1]].concat(),
            ServerError::Command,
            &[5, 7, 0, 1, 0, 0, 0, 0, 0, 0],
        ),
        (
            &[auth, &[5, 3, 0, 1]].concat(),
            ServerError::Command,
            &[5, 7, 0, 1, 0, 0, 0, 0, 0, 0],
        ),
        (
            &[auth, &[5, 1, 0, 2]].concat(),
            ServerError::AddressType,
            &[5, 8, 0, 1, 0, 0, 0, 0, 0, 0],
        ),
        (
            &[auth, &[5, 1, 0, 3, 0, 0, 80]].concat(),
            ServerError::Name,
            &[5, 1, 0, 1, 0, 0, 0, 0, 0, 0],
        ),
        (
            &[auth, &[5, 1, 0, 3, 2, b'a', 0, 0, 80]].concat(),
            ServerError::Name,
            &[5, 1, 0, 1, 0, 0, 0, 0, 0, 0],
        ),
    ];
    for (input, error, reply) in cases {
        let (steps, _) = serve(input, &[]);
        assert_eq!(steps.last(), Some(&ServerStep::Failed(*error)), "{input:?}");
        assert_eq!(error.reply(), *reply);
    }
}

#[test]
fn no_request_is_read_before_the_password_is_accepted() {
    let mut handshake = ServerHandshake::default();
    let bytes = flight(b"u", b"p", &v4());
    assert_eq!(handshake.input(&bytes), (3, ServerStep::Send([5, 2])));
    let (taken, step) = handshake.input(&bytes[3..]);
    assert!(matches!(step, ServerStep::Credentials { .. }));
    let rest = &bytes[3 + taken..];
    assert_eq!(handshake.input(rest), (0, ServerStep::More));
    handshake.accepted();
    assert_eq!(handshake.input(rest), (rest.len(), asks(v4())));
    handshake.accepted();
    assert!(matches!(handshake.input(b"\x05"), (1, ServerStep::More)));
}

fn answer(input: &[u8]) -> (usize, ClientStep) {
    ClientHandshake::default().input(input)
}

#[test]
fn the_client_reads_every_answer() {
    let good = [&[5, 2, 1, 0][..], &Reply::Succeeded.encode(), b"data"].concat();
    assert_eq!(answer(&good), (14, ClientStep::Connected));
    let v6 = [&[5, 2, 1, 0, 5, 0, 0, 4][..], &[0; 18], b"data"].concat();
    assert_eq!(answer(&v6), (26, ClientStep::Connected));
    let name = [
        &[5, 2, 1, 0, 5, 0, 0, 3, 2][..],
        &[b'a', b'b', 0, 80],
        b"data",
    ]
    .concat();
    assert_eq!(answer(&name), (13, ClientStep::Connected));
    assert_eq!(
        answer(&[5, 0xff]),
        (2, ClientStep::Failed(ClientError::MethodRefused))
    );
    assert_eq!(
        answer(&[5, 2, 1, 1]),
        (4, ClientStep::Failed(ClientError::AuthRefused))
    );
    assert_eq!(
        answer(b"HTTP/1.1 400"),
        (2, ClientStep::Failed(ClientError::Garbage))
    );
    assert_eq!(answer(&[5, 2, 1]), (3, ClientStep::More));
    for code in 1..=255 {
        let reply = Reply::from_code(code);
        let (_, step) = answer(&[&[5, 2, 1, 0][..], &reply.encode()].concat());
        assert_eq!(step, ClientStep::Failed(ClientError::Refused(reply)));
        assert_eq!(reply.code(), code);
    }
}

#[test]
fn failures_map_to_replies() {
    let table = [
        (ConnectFailure::Refused, 5),
        (ConnectFailure::HostUnreachable, 4),
        (ConnectFailure::NetworkUnreachable, 3),
        (ConnectFailure::FamilyUnreachable, 8),
        (ConnectFailure::TimedOut, 6),
        (ConnectFailure::NameNotResolved, 4),
        (ConnectFailure::NoResources, 1),
    ];
    for (failure, code) in table {
        assert_eq!(Reply::from(failure).code(), code);
    }
}

proptest! {
    #[test]
    fn fragmentation_changes_nothing(
        user in prop::collection::vec(any::<u8>(), 1..=255),
        password in prop::collection::vec(any::<u8>(), 1..=255),
        name in "[a-z0-9.-]{1,253}",
        port: u16,
        data in prop::collection::vec(any::<u8>(), 0..50),
        pieces in prop::collection::vec(1usize..40, 0..100),
    ) {
        let destination = Destination::Name(name, port);
        let mut bytes = flight(&user, &password, &destination);
        bytes.extend_from_slice(&data);
        let (steps, rest) = serve(&bytes, &pieces);
        prop_assert_eq!(
            steps,
            [
                ServerStep::Send([5, 2]),
                ServerStep::Credentials { user, password },
                asks(destination),
            ]
        );
        prop_assert_eq!(rest, data);
    }

    #[test]
    fn garbage_ends_or_waits_within_bounds(
        input in prop::collection::vec(any::<u8>(), 0..2000),
        pieces in prop::collection::vec(1usize..40, 0..100),
    ) {
        let (steps, rest) = serve(&input, &pieces);
        let over = matches!(steps.last(), Some(ServerStep::Failed(_) | ServerStep::Request(_)));
        // An incomplete handshake buffers at most one message.
        prop_assert!(over || rest.is_empty() && input.len() <= 257 + 513 + 262);
        let mut client = ClientHandshake::default();
        let (taken, step) = client.input(&input);
        prop_assert!(taken <= 4 + 262);
        prop_assert!(step != ClientStep::More || taken == input.len());
    }
}
