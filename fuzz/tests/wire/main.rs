//! Fuzz targets of `braid-wire`. Under `cargo test` each runs a short while on random input; how to
//! run them for long, and guided by coverage, is in docs/testing.md.

mod checks;

use bolero::{TypeGenerator, check};
use braid_wire::checksum::{self, Sum};
use braid_wire::{ip, tcp};

use checks::{check_icmp, check_mptcp, check_option_bytes, check_packet, check_segment};

/// Bytes as they come: what a coverage-guided engine wants.
#[test]
fn bytes() {
    check!().for_each(|input: &[u8]| {
        check_packet(input);
        check_mptcp(input);
        for flag in [false, true] {
            check_option_bytes(flag, input);
            check_icmp(flag, input);
        }
        let local = "127.0.0.1".parse().expect("an address");
        check_segment(local, local, input);
    });
}

/// An option list that random bytes seldom are: kinds that exist, with bodies of any length.
#[derive(Debug, Clone, TypeGenerator)]
struct RawOption {
    kind: u8,
    /// The excess of the length byte over the true length; mostly 0.
    lie: u8,
    first: u8,
    body: [u8; 28],
    len: u8,
}

impl RawOption {
    fn write(&self, list: &mut Vec<u8>) {
        const KINDS: [u8; 12] = [30, 30, 30, 30, 30, 8, 5, 4, 3, 2, 34, 1];
        // Lengths that MPTCP options, SACK and the others have.
        const LENGTHS: [u8; 16] = [2, 3, 4, 8, 10, 12, 16, 18, 20, 22, 24, 26, 28, 30, 14, 34];
        let kind = *KINDS.get(usize::from(self.kind % 16)).unwrap_or(&self.kind);
        if kind <= 1 {
            return list.push(kind);
        }
        let len = match self.len {
            small @ 0..200 => LENGTHS[usize::from(small % 16)],
            odd => odd % 35 + 2,
        };
        let said = if self.lie < 250 {
            len
        } else {
            self.lie.wrapping_add(len)
        };
        // A subtype that exists, with flags as they come.
        let first = self.first % 0x90;
        let body = [first].into_iter().chain(self.body.into_iter().cycle());
        list.extend([kind, said].into_iter().chain(body).take(usize::from(len)));
    }
}

/// A packet whose headers are right but for what its fields say.
#[derive(Debug, Clone, TypeGenerator)]
struct NearlyRight {
    src: [u8; 16],
    v6: bool,
    protocol: u8,
    header: [u8; 20],
    options: [RawOption; 3],
    payload: Vec<u8>,
    /// A byte overwritten at the end.
    damage: Option<(u16, u8)>,
    /// A header length put into a quoted packet before the checksum around it is made.
    quoted_ihl: Option<u8>,
    /// Bytes the quote is cut to.
    quoted_len: Option<u8>,
}

impl NearlyRight {
    fn segment(&self) -> Vec<u8> {
        let mut options = Vec::new();
        self.options
            .iter()
            .for_each(|option| option.write(&mut options));
        options.resize(
            options.len().next_multiple_of(4).min(tcp::MAX_OPTIONS_LEN),
            0,
        );
        let mut segment = self.header.to_vec();
        segment[12] = ((tcp::HEADER_LEN + options.len()) as u8 / 4) << 4;
        segment.extend(options);
        segment.extend(self.payload.iter().take(64));
        segment
    }

    /// An ICMP error, or another message, that quotes a packet of `inner`.
    fn icmp(&self, inner: Vec<u8>) -> Vec<u8> {
        let mut message = self.header[..8].to_vec();
        message[0] %= 12;
        message[1] %= 16;
        message[2..4].fill(0);
        let mut quoted = self.packet(ip::PROTO_TCP, &inner);
        if let Some(ihl) = self.quoted_ihl {
            quoted[0] = quoted[0] & 0xf0 | ihl & 0x0f;
        }
        quoted.truncate(self.quoted_len.map_or(usize::MAX, usize::from));
        message.extend(quoted);
        let sum = checksum::finish(checksum::sum(Sum::default(), &message));
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        message
    }

    fn packet(&self, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let [a, b, c, d, ..] = self.src;
        let addr = if self.v6 {
            self.src.into()
        } else {
            [a, b, c, d].into()
        };
        let repr = ip::Repr {
            src: addr,
            dst: addr,
            protocol,
            payload_len: payload.len(),
            hop_limit: 64,
            traffic_class: self.protocol,
        };
        let mut packet = vec![0; repr.header_len()];
        repr.emit(&mut packet);
        packet.extend(payload);
        packet
    }

    fn bytes(&self) -> Vec<u8> {
        let mut packet = match self.protocol % 8 {
            0 => self.packet(ip::PROTO_ICMP, &self.icmp(self.segment())),
            1 => self.packet(ip::PROTO_ICMPV6, &self.icmp(self.segment())),
            // A chain of extension headers, as likely as not without an end.
            2 => self.packet(
                [0, 43, 44, 60][usize::from(self.header[0] % 4)],
                &self.payload,
            ),
            _ => self.packet(ip::PROTO_TCP, &self.segment()),
        };
        if let Some((at, value)) = self.damage {
            let at = usize::from(at) % packet.len();
            packet[at] = value;
        }
        packet
    }
}

#[test]
fn nearly_right_packets() {
    check!()
        .with_type::<NearlyRight>()
        .for_each(|packet| check_packet(&packet.bytes()));
}

#[test]
fn mptcp_options() {
    check!().with_type::<RawOption>().for_each(|option| {
        let mut bytes = Vec::new();
        option.write(&mut bytes);
        check_mptcp(&bytes);
        check_option_bytes(true, &bytes);
    });
}
