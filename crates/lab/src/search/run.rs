//! The runs of a draw: every strategy, and each path alone, with paired seeds.

use super::draw::Draw;
use crate::backend::{Backend, Error};
use crate::case::Case;
use crate::experiments::grid::judge::{Sample, copies_allowed};

/// The strategy that is judged.
pub const CANDIDATE: &str = "adaptive";
/// The strategy of a connection on a single path. With one path, strategies have nothing to choose.
const ALONE: &str = "minrtt";

/// A way to make the transfer of a draw: a strategy over all paths, or one path alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// A strategy by its name.
    Strategy(&'static str),
    /// The path of this number alone.
    Alone(usize),
}

impl Variant {
    /// The strategy that is judged.
    pub const CANDIDATE: Variant = Variant::Strategy(CANDIDATE);

    /// Returns all variants of `draw`. The candidate is the first.
    pub fn all(draw: &Draw) -> Vec<Variant> {
        let others = braid_strategy::names().filter(|name| *name != CANDIDATE);
        let strategies = [CANDIDATE].into_iter().chain(others);
        let alone = (0..draw.paths.len()).map(Variant::Alone);
        strategies.map(Variant::Strategy).chain(alone).collect()
    }

    /// Returns the name that reports show.
    pub fn name(self) -> String {
        match self {
            Variant::Strategy(name) => name.to_owned(),
            Variant::Alone(path) => format!("path {path} alone"),
        }
    }

    /// Returns the case of this variant of `draw`, with the runs of `seed`.
    pub fn case(self, draw: &Draw, seed: u64) -> Case {
        match self {
            Variant::Strategy(name) => draw.case(name, seed),
            Variant::Alone(path) => draw.with_paths(|n| n == path).case(ALONE, seed),
        }
    }
}

/// The results of one variant.
#[derive(Debug, Clone)]
pub struct Measured {
    /// The variant.
    pub variant: Variant,
    /// Its figures over the runs until the first failure.
    pub sample: Sample,
    /// The reason for which a run could not be made: the engine broke a rule.
    pub failure: Option<String>,
}

impl Measured {
    /// Returns whether every run was made and every flow arrived.
    pub fn is_complete(&self) -> bool {
        self.failure.is_none() && self.sample.missing == 0
    }

    /// Returns the bytes that were sent as copies, divided by the bytes of the flows.
    pub fn copies(&self, draw: &Draw) -> f64 {
        self.sample.copies(draw.bytes())
    }

    /// Returns whether more copies were sent than the candidate may send.
    pub fn exceeds_copies(&self, draw: &Draw) -> bool {
        self.copies(draw) > copies_allowed(draw.size, draw.is_lossy())
    }
}

/// Makes `runs` runs of each variant. Run `i` of all variants has the same seed.
///
/// # Errors
/// A session cannot be opened. A run that fails is part of the result.
pub fn measure(
    draw: &Draw,
    variants: &[Variant],
    seed: u64,
    runs: u64,
) -> Result<Vec<Measured>, Error> {
    // Strategies share a session. They have the same paths, and therefore the same records.
    let mut shared = None;
    let mut running = Vec::new();
    for variant in variants {
        let case = variant.case(draw, seed);
        let mut session = Some(Backend::Sim.open(&case)?);
        if let Variant::Strategy(_) = variant {
            shared = shared.or(session.take());
        }
        running.push((case, session, Vec::new(), None));
    }
    // All variants make a run before the next, because a session keeps the records of the latest runs only.
    for index in 0..runs {
        for (case, own, results, failure) in &mut running {
            let session = own.as_mut().or(shared.as_mut());
            let Some(session) = session.filter(|_| failure.is_none()) else {
                continue;
            };
            match session.run(case, index) {
                Ok(result) => results.push(result),
                Err(error) => *failure = Some(error.to_string()),
            }
        }
    }
    let all = variants.iter().zip(running);
    let measured = all.map(|(variant, (_, _, results, failure))| Measured {
        variant: *variant,
        sample: Sample::new(&results),
        failure,
    });
    Ok(measured.collect())
}
