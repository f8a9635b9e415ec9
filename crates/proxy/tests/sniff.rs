//! Examination of first bytes, which are captured, generated, truncated at any offset, or random.

use braid_proxy::sniff::{Length, Sniffed, examine, response};
use proptest::prelude::*;

/// A ClientHello of OpenSSL 3.0 to `www.Example.org`, without the zeros of its padding at the end.
const HELLO: &str = "\
    1603010200010001fc0303152bcb3ec741d58e883e7be02ed241d4d87d8f4093fedaa3f92c265ad52a1c88207f\
    4de827ac74d4fb16ae90b7e6270c5a42fed5a535ed3504fd6c884492c6e7c90024130213031301c02cc030c02b\
    c02fcca9cca8c024c028c023c027009f009e006b006700ff0100018f00000014001200000f7777772e4578616d\
    706c652e6f7267000b000403000102000a00160014001d0017001e001900180100010101020103010400230000\
    0010000e000c02683208687474702f312e310016000000170000000d002a002804030503060308070808080908\
    0a080b080408050806040105010601030303010302040205020602002b00050403040303002d00020101003300\
    260024001d0020aa2daa75cfd68a65d94f203c361322382006c9156b35010cdea1421125bb9e08001500cc\
";
/// End offset of the name in [`HELLO`].
const NAME_END: usize = 142;

fn hello() -> Vec<u8> {
    let digits: Vec<char> = HELLO.chars().collect();
    let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// Creates a ClientHello with an extension of `before` bytes that precedes the name.
fn hello_to(name: &[u8], before: usize) -> Vec<u8> {
    let extension = |kind: u16, body: &[u8]| {
        let len = u16::try_from(body.len()).unwrap();
        [&kind.to_be_bytes(), &len.to_be_bytes(), body].concat()
    };
    let len = u16::try_from(name.len()).unwrap();
    let entry = [&[0], &len.to_be_bytes()[..], name].concat();
    let list = [&(len + 3).to_be_bytes(), &entry[..]].concat();
    let extensions = [extension(51, &vec![7; before]), extension(0, &list)].concat();
    let body = [
        &[3, 3][..],
        &[0x55; 32],
        &[0],
        &[0, 2, 0x13, 1],
        &[1, 0],
        &u16::try_from(extensions.len()).unwrap().to_be_bytes(),
        &extensions,
    ]
    .concat();
    let len = u32::try_from(body.len()).unwrap().to_be_bytes();
    let message = [&[1], &len[1..], &body].concat();
    let len = u16::try_from(message.len()).unwrap().to_be_bytes();
    [&[22, 3, 1], &len[..], &message].concat()
}

fn seen(host: Option<&str>, upload: Option<u64>) -> Sniffed {
    Sniffed {
        host: host.map(str::to_owned),
        upload,
    }
}

#[test]
fn the_name_of_a_client_hello_is_found_once_it_is_complete() {
    let hello = hello();
    for end in 0..=hello.len() {
        let host = (end >= NAME_END).then_some("www.example.org");
        assert_eq!(examine(&hello[..end]), seen(host, None), "{end} bytes");
    }
}

#[test]
fn a_name_may_follow_a_key_share_of_any_size() {
    for before in [0, 1_216, 4_000] {
        let hello = hello_to(b"example.org.", before);
        assert_eq!(examine(&hello), seen(Some("example.org"), None), "{before}");
    }
    for name in [&b""[..], b"192.0.2.1", b"a b", b"\xff\xfe", &[b'a'; 254]] {
        assert_eq!(examine(&hello_to(name, 0)), Sniffed::default(), "{name:?}");
    }
}

#[test]
fn a_client_hello_with_contradictory_lengths_has_no_name() {
    let good = hello_to(b"example.org", 4);
    // Content type, version, type of message, lengths of session ID, cipher suites, compression methods and both
    // extensions, type of name, length of the name.
    for at in [0, 1, 5, 43, 44, 48, 54, 62, 66, 67] {
        let mut bad = good.clone();
        bad[at] = 0xee;
        assert_eq!(examine(&bad), Sniffed::default(), "byte {at}");
    }
}

#[test]
fn host_and_length_of_a_request_are_seen() {
    let cases: [(&str, Option<&str>, Option<u64>); 12] = [
        (
            "GET / HTTP/1.1\r\nHost: Example.org\r\n\r\n",
            Some("example.org"),
            None,
        ),
        (
            "GET / HTTP/1.1\r\nHost: example.org:8080\r\n\r\n",
            Some("example.org"),
            None,
        ),
        ("GET / HTTP/1.0\r\n\r\n", None, None),
        ("GET / HTTP/1.1\r\nhost: 192.0.2.7\r\n\r\n", None, None),
        (
            "GET / HTTP/1.1\r\nHost: [2001:db8::1]:80\r\n\r\n",
            None,
            None,
        ),
        (
            "PUT /a HTTP/1.1\r\nhost: a.b\r\nCONTENT-length: 65536\r\n\r\nbytes\r\n",
            Some("a.b"),
            Some(65_536),
        ),
        (
            "POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
            None,
            Some(5),
        ),
        (
            "POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            None,
            None,
        ),
        ("POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\n", None, None),
        (
            "POST / HTTP/1.1\r\nContent-Length: 18446744073709551616\r\n\r\n",
            None,
            None,
        ),
        (
            "POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            None,
            None,
        ),
        ("SSH-2.0-OpenSSH_9.2\r\n", None, None),
    ];
    for (request, host, upload) in cases {
        assert_eq!(examine(request.as_bytes()), seen(host, upload), "{request}");
    }
}

#[test]
fn of_a_request_that_is_cut_the_whole_lines_are_seen() {
    let request =
        "PUT / HTTP/1.1\r\nHost: example.org\r\nContent-Length: 700\r\nCookie: a=b\r\n\r\n";
    let after = |line: &str| request.find(line).unwrap() + line.len() + 2;
    let (host_end, length_end) = (after("Host: example.org"), after("Content-Length: 700"));
    for end in 0..=request.len() {
        let host = (end >= host_end).then_some("example.org");
        let upload = (end >= length_end).then_some(700);
        assert_eq!(
            examine(&request.as_bytes()[..end]),
            seen(host, upload),
            "{end} bytes"
        );
    }
}

#[test]
fn the_length_of_a_response_includes_head_and_body() {
    let range = "HTTP/1.1 206 Part\r\nContent-Range: bytes";
    let cases: [(&[&str], Option<u64>); 17] = [
        (&["HTTP/1.1 200 OK\r\nContent-Length: 1000"], Some(1_000)),
        (&["HTTP/1.0 200 OK\r\ncontent-length:7"], Some(7)),
        (&[range, " 100-299/5000"], Some(200)),
        // The body has the length of the part, and not the length of the whole resource.
        (&[range, " 0-9/50\r\nContent-Length: 10"], Some(10)),
        (&["HTTP/1.1 304 Same\r\nContent-Length: 99"], Some(0)),
        (&["HTTP/1.1 204 None"], Some(0)),
        (
            &[
                "HTTP/1.1 103 Soon\r\n\r\n",
                "HTTP/1.1 200 OK\r\nContent-Length: 5",
            ],
            Some(5),
        ),
        (&["HTTP/1.1 101 Switch\r\nContent-Length: 5"], None),
        (&["HTTP/1.1 200 OK"], None),
        (
            &["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5"],
            None,
        ),
        (
            &["HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6"],
            None,
        ),
        (&["HTTP/1.1 200 OK\r\nContent-Length: -5"], None),
        (
            &["HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999"],
            None,
        ),
        (&[range, " 9-1/50"], None),
        (&[range, " */50"], None),
        (&["220 mail.example ESMTP"], None),
        (&["\u{16}\u{3}\u{3}"], None),
    ];
    for (head, body) in cases {
        let head = head.concat() + "\r\n\r\n";
        let length = body.map_or(Length::Unknown, |n| Length::Bytes(n + head.len() as u64));
        let all = head.clone() + "the body";
        assert_eq!(response(all.as_bytes()), length, "{head:?}");
        let cuts = 0..head.len() - 2;
        if body.is_some() {
            for cut in cuts {
                assert_eq!(
                    response(&head.as_bytes()[..cut]),
                    Length::Incomplete,
                    "{head:?}"
                );
            }
        }
    }
    let absurd = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", u64::MAX);
    assert_eq!(response(absurd.as_bytes()), Length::Bytes(u64::MAX));
}

proptest! {
    #[test]
    fn any_bytes_may_come(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        examine(&bytes);
    }

    #[test]
    fn a_hello_may_be_broken_and_cut_anywhere(
        at in prop::collection::vec((0..600usize, any::<u8>()), 0..8),
        end in 0..600usize,
    ) {
        let mut hello = hello_to(b"example.org", 200);
        for (at, byte) in at {
            if let Some(place) = hello.get_mut(at) {
                *place = byte;
            }
        }
        hello.truncate(end);
        if let Some(host) = examine(&hello).host {
            prop_assert!((1..=253).contains(&host.len()));
            prop_assert_eq!(host.to_ascii_lowercase(), host);
        }
    }

    #[test]
    fn a_request_may_hold_anything(
        head in "(GET|PUT|POST|X) [ -~]{0,20} HTTP/1.[019]\r\n",
        lines in prop::collection::vec("(Host|Content-Length|[!-~]{1,9}): ?[ -~]{0,30}\r?\n?", 0..80),
        end in 0..2_000usize,
    ) {
        let mut request = (head + &lines.concat()).into_bytes();
        request.truncate(end);
        examine(&request);
    }

    #[test]
    fn any_response_is_examined(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
        let _ = response(&bytes);
        let _ = response(&[b"HTTP/1.1 200 OK\r\n", &bytes[..]].concat());
    }
}
