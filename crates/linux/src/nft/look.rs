//! Questions of a check to nftables, and the rules that a check needs itself.

use std::fmt::Write as _;

use super::{List, remove_tables, run_nft, run_script};
use crate::net::{Identity, Result};

/// The tables of instances begin so.
const PREFIX: &str = "braid_";
/// Rules of each kind that box and server need, for a table that is never made.
const NEEDED: &str = "table inet braid_check_dry {
    chain prerouting { type filter hook prerouting priority mangle; policy accept;
        meta l4proto tcp ct state new fib daddr type unicast \\
            tproxy ip to 127.0.0.1:1 meta mark set 1 accept
    }
    chain raw { type filter hook prerouting priority raw; policy accept;
        ip daddr 192.0.2.1 tcp dport 1 notrack ip daddr set 192.0.2.2
    }
    chain postrouting { type nat hook postrouting priority srcnat; policy accept;
        oifname \"lo\" iifname \"lo\" masquerade
    }
}
";

/// Has the kernel look at rules such as box and server need, without putting any in force.
///
/// # Errors
/// Where `nft` is missing (`NotFound`), is not permitted, or refuses.
pub fn try_rules() -> Result<()> {
    run_nft(&["-c", "-f", "-"], NEEDED).map(drop)
}

/// Runs `nft` to see that it is there.
///
/// # Errors
/// Where it is missing (`NotFound`) or does not run.
pub fn find() -> Result<()> {
    run_nft(&["--version"], "").map(drop)
}

/// The tables of all instances of this network namespace, by name, as text.
///
/// # Errors
/// Where `nft` is missing, is not permitted, or refuses.
pub fn instances() -> Result<Vec<(String, String)>> {
    let list = run_nft(&["list", "tables", "inet"], "")?;
    let names = list
        .lines()
        .filter_map(|line| line.strip_prefix("table inet "));
    let ours = names.filter(|name| name.starts_with(PREFIX));
    let table = |name: &str| {
        // One that went meanwhile is none.
        let rules = run_nft(&["list", "table", "inet", name], "").unwrap_or_default();
        (name.to_owned(), rules)
    };
    Ok(ours.map(table).collect())
}

/// Keeps packets to these TCP ports from this host's own sockets, until [`super::remove`].
///
/// # Errors
/// Where `nft` is missing or refuses.
pub fn keep_from_sockets(identity: &Identity, ports: &[u16]) -> Result<()> {
    let table = identity.nft_table();
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
