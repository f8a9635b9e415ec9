//! An inner flow through the tunnel over two paths, beside the better path alone, by profile of the paths.

use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::json;

use super::entry;
use super::series::{bars, estimate, plus_minus};
use super::session::Session;
use crate::backend::{Backend, Error};
use crate::plot::Point;
use crate::stats;
use crate::tunnel::{Inner, Mode, Row, TunnelCase, TunnelRun};

/// The inner flows, with the names of their congestion controls.
const INNERS: [(&str, &str); 2] = [("BBR", "quic:bbr"), ("CUBIC", "quic:cubic")];
/// Size of the download, as in the measurements of mqvpn.
const SIZE: &str = "20M";
/// Queue of a path that states none, packets. The paths of all profiles state one.
const QUEUE: u32 = 500;
/// The profile whose packets are counted: BBR fills both of its links, which lose nothing.
const FULL_PROFILE: &str = "baseline";
/// A gain counts at most this much in the geometric mean with CUBIC. Over lossy paths CUBIC alone is so slow that
/// few profiles would decide the mean.
const MAX_COUNTED_GAIN: f64 = 2.0;

/// A profile of `tunnel.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Profile {
    name: String,
    paths: String,
    /// The goodput that the tunnel must reach with BBR, as a multiple of the best path alone.
    least_gain: Option<f64>,
}

/// The file of the profiles.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Profiles {
    profile: Vec<Profile>,
}

static PROFILES: LazyLock<Vec<Profile>> = LazyLock::new(|| {
    let file: Profiles =
        toml::from_str(include_str!("tunnel.toml")).expect("tunnel.toml is well-formed");
    file.profile
});

/// Returns the number of cases: each flow goes through the tunnel, and over each of two paths alone.
pub fn cases(_: Backend) -> usize {
    PROFILES.len() * INNERS.len() * 3
}

/// The runs of a profile with one inner flow.
struct Measured {
    profile: &'static Profile,
    alone: Vec<TunnelRun>,
    tunnel: Vec<TunnelRun>,
}

impl Measured {
    /// Returns the goodput through the tunnel as a multiple of the best path alone.
    fn gain(&self) -> f64 {
        mean(&self.tunnel, |run| run.goodput) / mean(&self.alone, |run| run.goodput)
    }

    /// Returns the number of IP packets for each inner byte through the tunnel, divided by the same number without a
    /// tunnel.
    fn datagrams(&self) -> f64 {
        let through = |runs: &[TunnelRun]| {
            let sum = |count: fn(&TunnelRun) -> u64| runs.iter().map(count).sum::<u64>() as f64;
            sum(|run| run.datagrams) / sum(|run| run.inner_bytes)
        };
        through(&self.tunnel) / through(&self.alone)
    }
}

fn mean(runs: &[TunnelRun], value: fn(&TunnelRun) -> f64) -> f64 {
    let values: Vec<f64> = runs.iter().map(value).collect();
    stats::mean(&values).unwrap_or(f64::NAN)
}

/// Measures and judges all profiles with both inner flows.
pub fn measure(session: &mut Session<'_>) -> Result<(), Error> {
    let mut by_inner = Vec::new();
    for (cc, inner) in INNERS {
        let of_profile = |profile| measure_profile(session, profile, (cc, inner));
        let measured: Vec<Measured> = PROFILES.iter().map(of_profile).collect::<Result<_, _>>()?;
        by_inner.push(measured);
    }
    let rows = INNERS.iter().zip(&by_inner);
    let rows = rows.flat_map(|((cc, _), all)| all.iter().map(|measured| row(cc, measured)));
    session.table(entry::table("tunnel", "goodput", rows.collect()));
    let groups: Vec<&str> = PROFILES
        .iter()
        .map(|profile| profile.name.as_str())
        .collect();
    let series = INNERS.iter().zip(&by_inner).map(|((cc, _), all)| {
        let point = |measured: &Measured| Point::new(0.0, measured.gain());
        (*cc, all.iter().map(point).collect())
    });
    let figure = bars(
        "Goodput through the tunnel over two paths",
        &format!("download of {SIZE} over QUIC, {} runs", session.runs()),
        "multiple of the better path alone",
        (&groups, series.collect()),
    );
    session.figure("gain", figure);
    let [bbr, cubic] = &by_inner[..] else {
        return Ok(());
    };
    judge(session, bbr, cubic);
    Ok(())
}

/// Measures a profile with an inner flow, and records the runs.
fn measure_profile(
    session: &mut Session<'_>,
    profile: &'static Profile,
    (cc, inner): (&str, &str),
) -> Result<Measured, Error> {
    let case = TunnelCase {
        paths: profile
            .paths
            .parse()
            .map_err(|e| Error::Usage(format!("{e}")))?,
        inner: inner.parse::<Inner>()?,
        size: SIZE.parse()?,
        queue: QUEUE,
        runs: session.runs(),
        seed: session.seed(),
    };
    let mut runs_in = |mode: Mode| {
        let runs = session.tunnel(&case, mode)?;
        if let Some(run) = runs.iter().position(|run| !run.completed) {
            let name = &profile.name;
            return Err(Error::Run(format!(
                "run {run} of {name} with {cc} in mode {} did not complete in time",
                mode.name()
            )));
        }
        let name = format!("{}-{cc}-{}", profile.name, mode.name());
        let goodput: Vec<f64> = runs.iter().map(|run| run.goodput).collect();
        let row = Row::new(&case, mode, &runs);
        session.record(name, json!({ "row": row, "goodput_mbit_s": goodput }));
        Ok(runs)
    };
    Ok(Measured {
        profile,
        alone: runs_in(Mode::Single)?,
        tunnel: runs_in(Mode::Aggregate)?,
    })
}

/// Returns the row of the table.
fn row(cc: &str, measured: &Measured) -> Vec<String> {
    let goodput = |runs: &[TunnelRun]| {
        let values: Vec<f64> = runs.iter().map(|run| run.goodput).collect();
        plus_minus(estimate(&values), 1)
    };
    vec![
        measured.profile.name.clone(),
        cc.to_owned(),
        goodput(&measured.alone),
        goodput(&measured.tunnel),
        format!("{:.2}", measured.gain()),
        format!("{:.3}", measured.datagrams()),
    ]
}

/// Judges the claims of the entry, in its order.
fn judge(session: &mut Session<'_>, bbr: &[Measured], cubic: &[Measured]) {
    let gains = |all: &[Measured]| -> Vec<(String, f64)> {
        let gain = |measured: &Measured| (measured.profile.name.clone(), measured.gain());
        all.iter().map(gain).collect()
    };
    let required = |least: f64| -> Vec<(String, f64)> {
        let requires = |measured: &&Measured| measured.profile.least_gain == Some(least);
        let of = bbr.iter().filter(requires);
        of.map(|measured| (measured.profile.name.clone(), measured.gain()))
            .collect()
    };
    let geometric_mean = |values: Vec<(String, f64)>| {
        let values: Vec<f64> = values.into_iter().map(|(_, value)| value).collect();
        vec![(
            String::new(),
            stats::geometric_mean(&values).unwrap_or(f64::NAN),
        )]
    };
    let capped = gains(cubic).into_iter();
    let capped = capped
        .map(|(name, gain)| (name, gain.min(MAX_COUNTED_GAIN)))
        .collect();
    // Packets are counted in one profile only. In others the tunnel sends packets again on purpose, or the flow is so
    // slow that the tunnel's reports count more than the flow's packets.
    let full = bbr
        .iter()
        .filter(|measured| measured.profile.name == FULL_PROFILE);
    let datagrams = full.map(|measured| (String::new(), measured.datagrams()));
    let values = [
        gains(bbr),
        gains(cubic),
        required(1.5),
        required(1.2),
        geometric_mean(gains(bbr)),
        geometric_mean(capped),
        datagrams.collect(),
    ];
    session.verdicts(entry::judge("tunnel", values));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::{Request, find};
    use crate::paths::Paths;

    #[test]
    fn there_are_16_profiles_of_two_paths() {
        let names: std::collections::BTreeSet<_> = PROFILES.iter().map(|p| &p.name).collect();
        assert_eq!((PROFILES.len(), names.len()), (16, 16));
        for profile in PROFILES.iter() {
            let paths: Paths = profile.paths.parse().unwrap();
            assert_eq!(paths.specs().len(), 2, "{}", profile.name);
        }
        let required = |gain| {
            PROFILES
                .iter()
                .filter(|p| p.least_gain == Some(gain))
                .count()
        };
        assert_eq!((required(1.5), required(1.2)), (4, 3));
    }

    /// Returns the runs of a profile whose tunnel has `gain` times the goodput, and 5 % more packets.
    fn measured(profile: &'static Profile, gain: f64) -> Measured {
        let run = |goodput, datagrams| TunnelRun {
            goodput,
            datagrams,
            inner_bytes: 1000,
            ..TunnelRun::default()
        };
        Measured {
            profile,
            alone: vec![run(9.0, 20), run(11.0, 20)],
            tunnel: vec![run(10.0 * gain, 21)],
        }
    }

    #[test]
    fn every_claim_is_judged_by_its_values() {
        let definition = find("tunnel").unwrap();
        let request = Request {
            backend: Backend::Sim,
            runs: 1,
            seed: 1,
            threads: 1,
            progress: &|| (),
        };
        let mut session = definition.session(request);
        // A gain of 1.45 misses the bound of 1.5. A gain of 3 in all profiles counts as 2.
        let bbr: Vec<Measured> = PROFILES.iter().map(|p| measured(p, 1.45)).collect();
        let cubic: Vec<Measured> = PROFILES.iter().map(|p| measured(p, 3.0)).collect();
        judge(&mut session, &bbr, &cubic);
        let outcome = session.finish().outcome;
        let holds: Vec<bool> = outcome.verdicts.iter().map(|v| v.holds()).collect();
        assert_eq!(holds, [true, true, false, true, true, true, true]);
        let mean = |n: usize| outcome.verdicts[n].parts[0].values[0].value.unwrap();
        assert!((mean(4) - 1.45).abs() < 1e-9 && (mean(5) - 2.0).abs() < 1e-9);
        assert!((mean(6) - 1.05).abs() < 1e-9);
    }
}
