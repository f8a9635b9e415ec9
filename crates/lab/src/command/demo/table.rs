//! The result of the demo, as text and as JSON.

use serde::Serialize;

use super::fixture::LINKS;
use crate::cli::DemoArgs;

/// One download.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The path and transport of the download: the name of the link that carries it as plain TCP, `kernel` for
    /// the kernel's Multipath TCP over both links, or `braid`.
    pub via: &'static str,
    /// Time from curl's start to the last byte.
    pub seconds: f64,
    /// Rate of the payload, Mbit/s.
    pub mbit_s: f64,
    /// `mbit_s` divided by the sum of `mbit_s` of the two single links.
    pub share_of_sum: f64,
    /// True if the file arrived intact.
    pub sha256_ok: bool,
    /// Bytes that the links carried towards the user, IP headers and retransmissions included.
    pub bytes_by_link: Vec<u64>,
}

/// Sets the share of each row: its rate divided by the sum of the rates of both single links. `rows` must contain
/// the rows of both single links.
pub fn set_shares(rows: &mut [Row]) {
    let single_links = rows.iter().filter(|row| LINKS.contains(&row.via));
    let sum: f64 = single_links.map(|row| row.mbit_s).sum();
    for row in rows {
        row.share_of_sum = row.mbit_s / sum;
    }
}

/// Returns the rows as a table.
pub fn text(rows: &[Row], args: &DemoArgs) -> String {
    let mut text = format!(
        "{} MB from nginx by curl; link1 20 Mbit/s, 30 ms; link2 10 Mbit/s, 70 ms;\n\
         congestion control {} everywhere\n\n\
         via       seconds   Mbit/s   % of sum   link1 MB   link2 MB   sha256\n",
        args.size, args.congestion
    );
    for row in rows {
        text += &format!(
            "{:<8}{:>9.2}{:>9.2}{:>11.1}",
            row.via,
            row.seconds,
            row.mbit_s,
            row.share_of_sum * 100.0
        );
        for bytes in &row.bytes_by_link {
            text += &format!("{:>11.2}", *bytes as f64 / 1e6);
        }
        let intact = if row.sha256_ok { "ok" } else { "WRONG" };
        text += &format!("   {intact}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(via: &'static str, mbit_s: f64) -> Row {
        Row {
            via,
            seconds: 1.0,
            mbit_s,
            share_of_sum: 0.0,
            sha256_ok: true,
            bytes_by_link: vec![1, 2],
        }
    }

    #[test]
    fn shares_are_of_the_single_links_together() {
        let rates = [
            ("link1", 20.0),
            ("link2", 10.0),
            ("kernel", 27.0),
            ("braid", 30.0),
        ];
        let mut rows = rates.map(|(via, mbit_s)| row(via, mbit_s));
        set_shares(&mut rows);
        // Of 20 + 10 Mbit/s: 20 / 30, 10 / 30, 27 / 30 and 30 / 30.
        let shares = rows.map(|row| (row.share_of_sum * 100.0).round());
        assert_eq!(shares, [67.0, 33.0, 90.0, 100.0]);
    }

    #[test]
    fn json_has_the_promised_fields() {
        let json = serde_json::to_value(row("kernel", 2.0)).expect("plain values");
        let fields = json.as_object().expect("an object").keys();
        assert_eq!(
            fields.collect::<Vec<_>>(),
            [
                "bytes_by_link",
                "mbit_s",
                "seconds",
                "sha256_ok",
                "share_of_sum",
                "via",
            ]
        );
        assert_eq!(json["via"], "kernel");
    }
}
