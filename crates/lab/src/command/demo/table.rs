//! The result of the demo, as text and as JSON.

use std::fmt;

use serde::Serialize;

use crate::cli::DemoArgs;

/// The way of a download: through which programs and links the file is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Via {
    /// Plain TCP over the first link.
    Link1,
    /// Plain TCP over the second link.
    Link2,
    /// The kernel's MPTCP over both links.
    Kernel,
    /// Braid over both links.
    Braid,
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Via::Link1 => "link1",
            Via::Link2 => "link2",
            Via::Kernel => "kernel",
            Via::Braid => "braid",
        })
    }
}

/// One download.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The way of the download.
    pub via: Via,
    /// Time from curl's start to the last byte.
    pub seconds: f64,
    /// Rate of the payload, Mbit/s.
    pub mbit_s: f64,
    /// `mbit_s` divided by the sum of the rates over the two single links.
    pub share_of_sum: f64,
    /// True if the file arrived intact.
    pub sha256_ok: bool,
    /// Bytes that the links carried towards the user, IP headers and retransmissions included.
    pub bytes_by_link: Vec<u64>,
}

/// Sets `share_of_sum` of all rows. Needs the rows of both single links.
pub fn set_shares(rows: &mut [Row]) {
    let alone = |row: &&Row| matches!(row.via, Via::Link1 | Via::Link2);
    let sum: f64 = rows.iter().filter(alone).map(|row| row.mbit_s).sum();
    for row in rows {
        row.share_of_sum = row.mbit_s / sum;
    }
}

/// The rows as a table.
pub struct Table<'a> {
    /// The rows.
    pub rows: &'a [Row],
    /// The arguments of the demo.
    pub args: &'a DemoArgs,
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DemoArgs { size, congestion } = self.args;
        writeln!(
            f,
            "{size} MB from nginx by curl; link1 20 Mbit/s, 30 ms; link2 10 Mbit/s, 70 ms;"
        )?;
        writeln!(f, "congestion control {congestion} everywhere\n")?;
        writeln!(
            f,
            "{:<8}{:>9}{:>9}{:>11}{:>11}{:>11}   sha256",
            "via", "seconds", "Mbit/s", "% of sum", "link1 MB", "link2 MB"
        )?;
        for row in self.rows {
            write!(
                f,
                "{:<8}{:>9.2}{:>9.2}{:>11.1}",
                row.via,
                row.seconds,
                row.mbit_s,
                row.share_of_sum * 100.0
            )?;
            for bytes in &row.bytes_by_link {
                write!(f, "{:>11.2}", *bytes as f64 / 1e6)?;
            }
            writeln!(f, "   {}", if row.sha256_ok { "ok" } else { "WRONG" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(via: Via, mbit_s: f64) -> Row {
        let bytes_by_link = vec![1, 2];
        Row {
            via,
            seconds: 1.0,
            mbit_s,
            share_of_sum: 0.0,
            sha256_ok: true,
            bytes_by_link,
        }
    }

    #[test]
    fn shares_are_of_the_single_links_together() {
        let mut rows = [
            row(Via::Link1, 20.0),
            row(Via::Link2, 10.0),
            row(Via::Kernel, 27.0),
            row(Via::Braid, 30.0),
        ];
        set_shares(&mut rows);
        let shares: Vec<_> = rows
            .iter()
            .map(|row| (row.share_of_sum * 100.0).round())
            .collect();
        assert_eq!(shares, [67.0, 33.0, 90.0, 100.0]);
    }

    #[test]
    fn json_has_the_promised_fields() {
        let json = serde_json::to_value(row(Via::Kernel, 2.0)).expect("plain values");
        let fields: Vec<_> = json
            .as_object()
            .expect("an object")
            .keys()
            .cloned()
            .collect();
        let mut promised = [
            "via",
            "seconds",
            "mbit_s",
            "share_of_sum",
            "sha256_ok",
            "bytes_by_link",
        ];
        promised.sort_unstable();
        assert_eq!(fields, promised);
        assert_eq!(json["via"], "kernel");
    }
}
