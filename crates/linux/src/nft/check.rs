//! The nftables requests and rules of `braid check`.

use std::fmt::Write as _;

use super::{List, remove_tables, run_nft, run_script};
use crate::net::{InstanceNames, Result};

/// Prefix of the names of all instances' tables.
const TABLE_PREFIX: &str = "braid_";
/// Rules for a dry run: one rule of each kind that box and server load. The kernel verifies the table but does
/// not create it, so names, ports and marks may have any value.
const DRY_RUN_RULES: &str = "table inet braid_check_dry {
    set flows { type ipv4_addr; size 16; flags dynamic; }
    chain prerouting { type filter hook prerouting priority mangle; policy accept;
        meta l4proto tcp socket transparent 1 meta mark set 1 ct mark set 1 accept
        meta l4proto tcp ct state new fib daddr type unicast \\
            tproxy ip to 127.0.0.1:1 meta mark set 1 accept
        ct direction reply meta mark set ct mark return
        meta l4proto != tcp goto tunnel
    }
    chain tunnel {
        meta mark != 0 return
        fib daddr type { local, broadcast, anycast, multicast, blackhole, prohibit } return
        meta nfproto ipv6 reject with icmpx no-route
    }
    chain forward { type filter hook forward priority mangle; policy accept;
        ct mark 1 meta l4proto tcp reject with tcp reset
        ct state new add @flows { ip saddr ct count over 1 } drop
    }
    chain output { type filter hook output priority raw; policy accept;
        ip saddr 192.0.2.1 udp sport 1 notrack
    }
    chain raw { type filter hook prerouting priority raw; policy accept;
        ip daddr 192.0.2.1 tcp dport 1 notrack ip daddr set 192.0.2.2
    }
    chain postrouting { type nat hook postrouting priority srcnat; policy accept;
        oifname \"lo\" iifname \"lo\" meta l4proto { tcp, udp } masquerade to :1-2
        oifname \"lo\" iifname \"lo\" masquerade
    }
}
";

/// Makes the kernel verify rules of the kinds that box and server load, without loading them.
///
/// # Errors
/// Fails if `nft` is missing (`NotFound`), if this process may not change rules, or if the kernel lacks a
/// feature that the rules use.
pub fn dry_run() -> Result<()> {
    run_nft(&["-c", "-f", "-"], DRY_RUN_RULES).map(drop)
}

/// Checks that the program `nft` exists and runs.
///
/// # Errors
/// Fails if it is missing (`NotFound`) or does not run.
pub fn check_installed() -> Result<()> {
    run_nft(&["--version"], "").map(drop)
}

/// Returns the name and the text of the table of each instance in this network namespace.
///
/// # Errors
/// Fails if `nft` is missing, or if this process may not list tables.
pub fn instances() -> Result<Vec<(String, String)>> {
    let list = run_nft(&["list", "tables", "inet"], "")?;
    let names = list
        .lines()
        .filter_map(|line| line.strip_prefix("table inet "));
    let own = names.filter(|name| name.starts_with(TABLE_PREFIX));
    let table = |name: &str| {
        // The instance may have removed its table since it was listed.
        let rules = run_nft(&["list", "table", "inet", name], "").unwrap_or_default();
        (name.to_owned(), rules)
    };
    Ok(own.map(table).collect())
}

/// Loads rules that keep packets to these TCP ports from this host's own sockets. The check handles them by a raw
/// socket, and without the rules the kernel would reset its connections. [`super::remove`] removes the rules.
///
/// # Errors
/// Fails if `nft` is missing or refuses the rules.
pub fn keep_from_sockets(instance_names: &InstanceNames, ports: &[u16]) -> Result<()> {
    let table = instance_names.nft_table();
    let mut script = format!("table inet {table} {{\n");
    // Writing to a string does not fail.
    let _ = writeln!(
        script,
        "chain input {{ type filter hook input priority filter; policy accept;\n\
         tcp dport {{ {} }} drop\n}}\n}}",
        List(ports)
    );
    remove_tables(&[("inet", &table)])?;
    run_script(&script)
}
