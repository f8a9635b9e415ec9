//! Checks of `server.toml` against this machine's network.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use braid_proxy::config::{Finding, ServerConfig, TunnelPools, weigh};

use super::boxes::{OF_TUN, overlaps};
use super::machine::Machine;

/// State of a listening socket in `/proc/net/tcp`: `TCP_LISTEN` (linux/net/tcp_states.h), in hexadecimal.
const TCP_LISTEN_STATE: &str = "0A";

/// The subject and the remedy of findings on a range of `tunnel_pool`.
const OF_POOL: (&str, &str) = (
    "tunnel_pool",
    "give tunnel_pool a range that no other network has, such as \"10.99.0.0/16\" or \"fd99:99:99::/64\"",
);

/// Returns all findings.
pub(super) fn findings(config: &ServerConfig, machine: &Machine) -> Vec<Finding> {
    let mut found = addresses(config, machine);
    let pools = config.tunnel.iter().flat_map(TunnelPools::ranges);
    let ranges = config.tun.ranges().into_iter().map(|range| (OF_TUN, range));
    for (about, range) in ranges.chain(pools.map(|pool| (OF_POOL, pool))) {
        // Packets for the addresses of the range go to a device of the server. If boxes connect over an interface whose
        // network is in the range, this includes the server's answers. The text continues "the range overlaps
        // NETWORK of INTERFACE, ".
        let harm_if_needed = |name: &str| {
            let mut carriers = config
                .listen
                .iter()
                .filter_map(|a| machine.interface_with(*a));
            carriers
                .any(|i| i.name == name)
                .then_some("where boxes connect: the server's answers do not reach them")
        };
        let tun = (config.tun.name.as_str(), range);
        found.extend(overlaps(about, tun, machine, harm_if_needed));
    }
    found.extend(listeners(config, &kernel_listeners()));
    found
}

fn addresses(config: &ServerConfig, machine: &Machine) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut broken = 0;
    for addr in &config.listen {
        if machine.interface_with(*addr).is_some() {
            continue;
        }
        let own = machine.own_addresses();
        let message = format!(
            "no interface of this machine has this address, so no box can connect to it for now ({})",
            match own.is_empty() {
                true => "the machine has no address".to_owned(),
                false => format!("addresses of the machine: {own}"),
            }
        );
        let remedy = "write an address that `ip address` shows; if the provider translates a public address, \
                      write the private one";
        let at = ("listen", format!("listen {addr}"));
        // A warning suffices as long as boxes can use another address. An interface may also get the address while
        // the server runs, so the start is not refused even if no address is left.
        found.push(Finding::warning(at, message, remedy).healing());
        broken += 1;
    }
    weigh(
        config.listen.len(),
        broken,
        &mut found,
        "no usable address is left, so no box can connect",
    );
    found
}

/// Finds programs that listen at the server's endpoints. While the server runs, its rules send all packets for
/// these endpoints to the server, so that no client reaches these programs. A running instance of the server is
/// not found, because its TCP runs in the process and has no kernel sockets at the endpoints.
fn listeners(config: &ServerConfig, kernel: &[SocketAddr]) -> Vec<Finding> {
    let is_taken = |endpoint: &SocketAddr| {
        kernel.iter().any(|other| {
            // A socket at :: usually accepts IPv4 connections too. A socket at an IPv4-mapped address
            // (::ffff:192.0.2.1) accepts them as well, but the comparison below misses it.
            let any_address = other.ip().is_unspecified()
                && (other.is_ipv6() || other.is_ipv4() == endpoint.is_ipv4());
            other.port() == endpoint.port() && (any_address || other.ip() == endpoint.ip())
        })
    };
    let found = config.endpoints().filter(is_taken).map(|endpoint| {
        let message = format!(
            "another program listens at {endpoint}: while the server runs, connections to this endpoint reach the \
             server instead of that program"
        );
        let port = endpoint.port();
        let remedy = format!("write another `port`, or stop that program (see: ss -ltnp 'sport = {port}')");
        // Only the other program suffers: the server works in any case, so its start is not refused.
        Finding::warning(("port", format!("listen {endpoint}")), message, remedy)
    });
    found.collect()
}

/// Returns the addresses at which sockets of this network namespace listen. If a file of the kernel cannot be
/// read, its sockets are missing and nothing is reported, because the server works in any case.
fn kernel_listeners() -> Vec<SocketAddr> {
    let mut found = Vec::new();
    for file in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        let text = fs::read_to_string(file).unwrap_or_default();
        found.extend(text.lines().skip(1).filter_map(listener));
    }
    found
}

/// Returns the local address of a line of `/proc/net/tcp` or `tcp6` if the socket listens.
fn listener(line: &str) -> Option<SocketAddr> {
    // The fields of a line: number, local address, remote address, state, and more (Linux, proc_net_tcp.rst).
    let mut fields = line.split_whitespace().skip(1);
    let local = fields.next()?;
    if fields.nth(1)? != TCP_LISTEN_STATE {
        return None;
    }
    let (address, port) = local.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    // The kernel prints words of four bytes in the machine's byte order.
    let words = address.as_bytes().chunks(8).map(|word| {
        let word = std::str::from_utf8(word).ok()?;
        Some(u32::from_str_radix(word, 16).ok()?.to_ne_bytes())
    });
    let bytes: Vec<u8> = words.collect::<Option<Vec<_>>>()?.concat();
    let ip = match bytes.len() {
        4 => IpAddr::from(Ipv4Addr::from(*bytes.first_chunk()?)),
        16 => IpAddr::from(Ipv6Addr::from(*bytes.first_chunk()?)),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_sockets_are_read() {
        let line =
            "   0: 0100007F:0438 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1";
        if cfg!(target_endian = "little") {
            assert_eq!(listener(line), Some("127.0.0.1:1080".parse().unwrap()));
            let v6 = line.replace("0100007F", "0000000000000000FFFF00000100007F");
            let expected = "[::ffff:127.0.0.1]:1080".parse().unwrap();
            assert_eq!(listener(&v6), Some(expected));
        }
        assert_eq!(listener(&line.replace(" 0A ", " 01 ")), None);
        assert_eq!(listener("sl  local_address"), None);
    }
}
