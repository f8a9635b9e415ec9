//! Raw sockets for a check's packets over one link. Other programs' routes do not apply to packets sent by these
//! sockets. Incoming packets are read before any packet filter rule applies.

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};

use crate::sys;

/// Maximum length in bytes of a packet that is read: the kernel merges segments to at most 64 KiB (GRO).
const MAX_PACKET_LEN: usize = 1 << 16;
/// `IPPROTO_RAW` (linux/in.h): the sender supplies the IP header.
const IPPROTO_RAW: i32 = 255;

/// The sockets for one link and one peer behind it.
#[derive(Debug)]
pub(super) struct Raw {
    out: Socket,
    incoming: Socket,
    peer: IpAddr,
    buffer: Vec<u8>,
}

/// The result of a wait.
#[derive(Debug)]
pub(super) enum Received<'a> {
    /// A packet from the peer, or an ICMP message of any host.
    Packet(&'a [u8]),
    /// Nothing came in time.
    Nothing,
    /// The check has to end.
    Stop,
}

impl Raw {
    /// Opens sockets for packets to and from `peer` over the interface `name` with `index`. Sent packets get the
    /// mark `mark`. Of the peer's TCP segments, only those to `port` are received.
    ///
    /// # Errors
    /// Fails if the kernel refuses the sockets: they need CAP_NET_RAW.
    pub fn open((name, index): (&str, u32), mark: u32, peer: IpAddr, port: u16) -> io::Result<Raw> {
        let (domain, protocol) = match peer {
            IpAddr::V4(_) => (Domain::IPV4, libc::ETH_P_IP),
            IpAddr::V6(_) => (Domain::IPV6, libc::ETH_P_IPV6),
        };
        let out = Socket::new(domain, Type::RAW, Some(Protocol::from(IPPROTO_RAW)))?;
        out.set_mark(mark)?;
        out.bind_device(Some(name.as_bytes()))?;
        // The socket is opened without a protocol, so that it gets no packets before it is bound. With a
        // protocol, it would queue packets of other interfaces until it is bound.
        let incoming = Socket::new(Domain::PACKET, Type::DGRAM, None)?;
        let program = filter(peer, port);
        let step = |s: &libc::sock_filter| SockFilter::new(s.code, s.jt, s.jf, s.k);
        incoming.attach_filter(&program.iter().map(step).collect::<Vec<_>>())?;
        incoming.set_nonblocking(true)?;
        sys::bind_packet_socket(incoming.as_fd(), protocol, index)?;
        Ok(Raw {
            out,
            incoming,
            peer,
            buffer: vec![0; MAX_PACKET_LEN],
        })
    }

    /// Sends a packet, from its IP header on.
    ///
    /// # Errors
    /// Fails if the kernel refuses the packet, for example because it is larger than the MTU of the interface.
    pub fn send(&self, packet: &[u8]) -> io::Result<()> {
        let to = SocketAddr::new(self.peer, 0);
        self.out.send_to(packet, &to.into()).map(drop)
    }

    /// Waits for a packet until `until`.
    ///
    /// # Errors
    /// Fails if the socket cannot be read.
    pub fn receive(&mut self, until: Instant, stop: BorrowedFd<'_>) -> io::Result<Received<'_>> {
        loop {
            match (&self.incoming).read(&mut self.buffer) {
                Ok(length) => return Ok(Received::Packet(&self.buffer[..length])),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            let time_left = until.saturating_duration_since(Instant::now());
            if time_left == Duration::ZERO {
                return Ok(Received::Nothing);
            }
            let timeout = Timespec::try_from(time_left).map_err(io::Error::other)?;
            let mut waiting = [
                PollFd::from_borrowed_fd(self.incoming.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(stop, PollFlags::IN),
            ];
            match poll(&mut waiting, Some(&timeout)) {
                Ok(_) if !waiting[1].revents().is_empty() => return Ok(Received::Stop),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Builds a packet filter (BPF) that accepts TCP segments from `peer` to `port`, and all ICMP messages. Without
/// the filter, the other packets of a busy link would fill the socket's buffer.
fn filter(peer: IpAddr, port: u16) -> Vec<libc::sock_filter> {
    // Codes of the classic BPF (linux/bpf_common.h).
    const LOAD_WORD: u16 = 0x20;
    const LOAD_HALF: u16 = 0x28;
    const LOAD_BYTE: u16 = 0x30;
    const LOAD_HALF_INDEXED: u16 = 0x48;
    const LOAD_IP_HEADER_LEN: u16 = 0xb1;
    const IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let (icmp, tcp) = (1, 6);
    let load = |code, k| (code, k);
    // The 32-bit words of the peer's address, each with its offset in the packet. A segment is accepted only if
    // it has each of these words at its offset.
    let (protocol_at, words, port_at): (u32, Vec<(u32, u32)>, _) = match peer {
        IpAddr::V4(peer) => (9, vec![(12, peer.to_bits())], load(LOAD_HALF_INDEXED, 2)),
        IpAddr::V6(peer) => {
            let bits = peer.to_bits();
            let words = (0..4).map(|n| (8 + 4 * n, (bits >> (96 - 32 * n)) as u32));
            (6, words.collect(), load(LOAD_HALF, 42))
        }
    };
    let icmp = if peer.is_ipv4() { icmp } else { 58 };
    let step = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let mut steps = vec![step(LOAD_BYTE, protocol_at, 0, 0)];
    // Jumps are relative to the next step. Before the accepting step there are two steps for each word, two
    // steps for the port, and for IPv4 one step that loads the length of the header. The refusing step follows
    // the accepting step.
    let header_len_steps = u8::from(peer.is_ipv4());
    let steps_left = 2 * words.len() as u8 + 2 + header_len_steps;
    steps.push(step(IF_EQUAL, icmp, steps_left + 1, 0));
    steps.push(step(IF_EQUAL, tcp, 0, steps_left + 1));
    let mut to_refusal = steps_left + 1;
    for (at, word) in words {
        steps.push(step(LOAD_WORD, at, 0, 0));
        to_refusal -= 2;
        steps.push(step(IF_EQUAL, word, 0, to_refusal));
    }
    if header_len_steps == 1 {
        steps.push(step(LOAD_IP_HEADER_LEN, 0, 0, 0));
    }
    steps.push(step(port_at.0, port_at.1, 0, 0));
    steps.push(step(IF_EQUAL, port.into(), 0, 1));
    steps.push(step(RETURN, MAX_PACKET_LEN as u32, 0, 0));
    steps.push(step(RETURN, 0, 0, 0));
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter on a packet, as the kernel does, and returns whether it accepts the packet.
    fn accepts(program: &[libc::sock_filter], packet: &[u8]) -> bool {
        let (mut a, mut x, mut at) = (0_u32, 0_usize, 0);
        let half = |at: usize| u32::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
        loop {
            let step = program[at];
            let k = step.k as usize;
            at += 1;
            match step.code {
                0x20 => a = half(k) << 16 | half(k + 2),
                0x28 => a = half(k),
                0x30 => a = packet[k].into(),
                0x48 => a = half(x + k),
                0xb1 => x = 4 * usize::from(packet[k] & 0xf),
                0x15 if a == step.k => at += usize::from(step.jt),
                0x15 => at += usize::from(step.jf),
                0x06 => return step.k > 0,
                code => panic!("{code:#x}"),
            }
        }
    }

    fn packet(from: &str, protocol: u8, port: u16) -> Vec<u8> {
        let src: IpAddr = from.parse().unwrap();
        let dst = match src {
            IpAddr::V4(_) => "192.0.2.1".parse().unwrap(),
            IpAddr::V6(_) => "2001:db8::1".parse().unwrap(),
        };
        let header = braid_wire::ip::Repr {
            src,
            dst,
            protocol,
            payload_len: 20,
            hop_limit: 64,
            traffic_class: 0,
        };
        let mut packet = vec![0; header.header_len() + 20];
        header.emit(&mut packet);
        let at = header.header_len() + 2;
        packet[at..at + 2].copy_from_slice(&port.to_be_bytes());
        packet
    }

    #[test]
    fn the_filter_takes_what_the_peer_sends_to_the_port_and_icmp() {
        for (peer, other, icmp) in [
            ("198.51.100.7", "198.51.100.8", 1),
            ("2001:db8::7", "2001:db9::7", 58),
        ] {
            let program = filter(peer.parse().unwrap(), 40_000);
            assert!(accepts(&program, &packet(peer, 6, 40_000)), "{peer}");
            assert!(!accepts(&program, &packet(peer, 6, 40_001)), "{peer}");
            assert!(!accepts(&program, &packet(other, 6, 40_000)), "{peer}");
            assert!(!accepts(&program, &packet(peer, 17, 40_000)), "{peer}");
            assert!(accepts(&program, &packet(other, icmp, 1)), "{peer}");
        }
    }
}
