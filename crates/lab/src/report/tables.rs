//! The tables and texts of a report. The tables have no titles: headings and texts of the page introduce them.

use crate::backend::Backend;
use crate::experiments::{COMMIT, Judgement, Outcome, Table, Verdict};

use super::store::Stored;

/// Name under which the report lists claims that no paper makes: the claims of experiments beyond the papers, and
/// the claims of this lab on the experiments of papers.
const BEYOND: &str = "beyond the papers";

/// Groups the results by experiment. [`super::store::load`] sorts them, so results of an experiment are
/// next to each other.
pub(super) fn by_experiment(stored: &[Stored]) -> impl Iterator<Item = &[Stored]> {
    stored.chunk_by(|a, b| a.outcome.id == b.outcome.id)
}

/// A claim of an experiment over all backends that measured it.
struct Claim<'a> {
    id: &'a str,
    /// The paper that makes the claim, or [`BEYOND`].
    paper: &'a str,
    /// The verdict of each backend, with the backend's name.
    verdicts: Vec<(&'a str, &'a Verdict)>,
}

impl Claim<'_> {
    /// Returns the judgement over all backends.
    fn judgement(&self) -> Judgement {
        let each = self.verdicts.iter().map(|(_, verdict)| verdict.judgement());
        let (worst, best) = (each.clone().min(), each.max());
        match (worst, best) {
            (Some(Judgement::Holds), _) => Judgement::Holds,
            (_, Some(best)) => best.min(Judgement::HoldsWhere),
            _ => Judgement::Fails,
        }
    }

    /// Returns the verdict in words. Backends that agree need no names: one word stands for all.
    fn word(&self) -> String {
        let each = self.verdicts.iter();
        let mut words: Vec<(&str, String)> = each.map(|(name, v)| (*name, v.word())).collect();
        words.dedup_by(|(_, a), (_, b)| a == b);
        match &words[..] {
            [(_, word)] => word.clone(),
            _ => {
                let named = words.iter().map(|(name, word)| format!("{name} {word}"));
                named.collect::<Vec<_>>().join("; ")
            }
        }
    }

    /// Returns the reason why the claim does not hold everywhere; empty if it does, or if none is known.
    fn why(&self) -> &str {
        let mut reasons = self.verdicts.iter().map(|(_, verdict)| verdict.why());
        reasons.find(|why| !why.is_empty()).unwrap_or_default()
    }
}

/// Returns the claims of an experiment. Backends share a claim if text and bound are equal.
fn claims_of(results: &[Stored]) -> Vec<Claim<'_>> {
    let mut claims: Vec<Claim<'_>> = Vec::new();
    for Stored { outcome, .. } in results {
        for verdict in &outcome.verdicts {
            let one = (&*outcome.backend, verdict);
            let same =
                |claim: &&mut Claim<'_>| claim.verdicts[0].1.expected() == verdict.expected();
            if let Some(claim) = claims.iter_mut().find(same) {
                claim.verdicts.push(one);
                continue;
            }
            let is_papers = !verdict.reported.is_empty();
            claims.push(Claim {
                id: &outcome.id,
                paper: if is_papers {
                    publication(outcome)
                } else {
                    BEYOND
                },
                verdicts: vec![one],
            });
        }
    }
    claims
}

/// Returns the publication of an experiment's source. A source such as `FSA-MPTCP, figure 2(a)` has it in front of
/// the figure or table.
fn publication(outcome: &Outcome) -> &str {
    let source = &outcome.source;
    if source.starts_with("beyond") {
        return BEYOND;
    }
    source.split(',').next().unwrap_or(source)
}

/// Returns the numbers of claims, of claims that hold, and of claims that hold in a part.
fn count(claims: &[&Claim<'_>]) -> [usize; 3] {
    let count = |wanted| {
        let of = claims.iter().filter(|claim| claim.judgement() == wanted);
        of.count()
    };
    [
        claims.len(),
        count(Judgement::Holds),
        count(Judgement::HoldsWhere),
    ]
}

/// Returns the opening of the page. For each paper it has the number of claims that hold. It names the other claims,
/// with the settings in which they hold and the reason if it is known.
pub(super) fn opening(stored: &[Stored]) -> String {
    let claims: Vec<Claim<'_>> = by_experiment(stored).flat_map(claims_of).collect();
    let mut papers: Vec<&str> = Vec::new();
    for claim in &claims {
        if !papers.contains(&claim.paper) {
            papers.push(claim.paper);
        }
    }
    // The lab's own claims come last; the sort is stable.
    papers.sort_by_key(|paper| *paper == BEYOND);
    let mut text = String::new();
    for paper in papers {
        let of_paper: Vec<&Claim<'_>> =
            claims.iter().filter(|claim| claim.paper == paper).collect();
        let [all, holding, partly] = count(&of_paper);
        let partly = match partly {
            0 => String::new(),
            partly => format!(", {partly} more in some of their settings"),
        };
        text += &format!("- **{paper}: {holding} of {all} claims hold{partly}**\n");
        for claim in of_paper {
            if claim.judgement() == Judgement::Holds {
                continue;
            }
            let (id, expected) = (claim.id, claim.verdicts[0].1.expected());
            let why = match claim.why() {
                "" => String::new(),
                why => format!(" ({why})"),
            };
            text += &format!("  - [{id}](#{id}), {expected}: {}{why}\n", claim.word());
        }
    }
    text
}

/// Returns the commits that the results were made from.
pub(super) fn commits(stored: &[Stored]) -> Vec<&str> {
    let parameters = stored.iter().flat_map(|one| &one.outcome.parameters);
    let commits = parameters.filter(|(name, _)| name == COMMIT);
    let mut commits: Vec<&str> = commits.map(|(_, commit)| &**commit).collect();
    commits.sort_unstable();
    commits.dedup();
    commits
}

/// Returns a table with a row for each experiment and a column for each backend that has results.
pub(super) fn summary(stored: &[Stored]) -> Table {
    let mut backends = Backend::ALL.map(Backend::name).to_vec();
    backends.retain(|backend| stored.iter().any(|one| one.outcome.backend == *backend));
    let row = |results: &[Stored]| {
        let first = &results[0].outcome;
        let mut row = vec![first.id.clone(), first.title.clone(), first.source.clone()];
        row.extend(backends.iter().map(|backend| {
            let on_backend = results.iter().find(|one| one.outcome.backend == *backend);
            on_backend.map(verdict_count).unwrap_or_default()
        }));
        row
    };
    Table::new(
        "",
        &[&["id", "what is compared", "source"], &backends[..]].concat(),
        by_experiment(stored).map(row).collect(),
    )
}

/// Returns the verdict on an experiment in a few words.
fn verdict_count(result: &Stored) -> String {
    let claims = claims_of(std::slice::from_ref(result));
    match count(&claims.iter().collect::<Vec<_>>()) {
        [all, holding, _] if holding == all => format!("holds ({all} of {all} claims)"),
        [all, holding, 0] => format!("{holding} of {all} claims hold"),
        [all, holding, partly] => format!("{holding} of {all} claims hold, {partly} in a part"),
    }
}

/// Returns a table with a row for each claim: its bound, the reported value, the measured values of every
/// backend, and the verdict.
pub(super) fn claims(results: &[Stored]) -> Table {
    let backends: Vec<&str> = results.iter().map(|one| &*one.outcome.backend).collect();
    let row = |claim: &Claim<'_>| {
        let verdict = claim.verdicts[0].1;
        let mut row = vec![verdict.expected(), verdict.reported.clone()];
        row.extend(backends.iter().map(|backend| {
            let mut measured = claim.verdicts.iter().filter(|(name, _)| name == backend);
            measured
                .next()
                .map(|(_, v)| v.measured())
                .unwrap_or_default()
        }));
        row.push(claim.word());
        row
    };
    let measured = backends.iter().map(|name| format!("measured ({name})"));
    let measured: Vec<String> = measured.collect();
    let mut columns = vec!["must hold", "reported"];
    columns.extend(measured.iter().map(String::as_str));
    columns.push("holds?");
    Table::new("", &columns, claims_of(results).iter().map(row).collect())
}

/// Returns tables of those claims of a result that have several parts: the worst value in each setting, by the swept
/// parameter. Claims with the same values of the parameter share a table. If not `complete`, a claim without a swept
/// parameter that holds in every setting is left out.
pub(super) fn sweeps(outcome: &Outcome, complete: bool) -> Vec<Table> {
    let mut tables: Vec<Table> = Vec::new();
    let is_shown =
        |v: &&Verdict| v.parts.len() > 1 && (complete || !v.swept.is_empty() || !v.holds());
    for verdict in outcome.verdicts.iter().filter(is_shown) {
        let mut at: Vec<String> = Vec::new();
        let mut rows: Vec<Vec<String>> = Vec::new();
        for part in &verdict.parts {
            if !at.contains(&part.at) {
                at.push(part.at.clone());
            }
            let worst = part.worst(verdict.bound).map(ToString::to_string);
            let word = match part.judgement(verdict.bound) {
                Judgement::Holds => "",
                Judgement::Tie => "tie: ",
                _ => "no: ",
            };
            let cell = format!("{word}{}", worst.unwrap_or_default());
            match rows.iter_mut().find(|row| row[1] == part.setting) {
                Some(row) => row.push(cell),
                None => rows.push(vec![verdict.expected(), part.setting.clone(), cell]),
            }
        }
        let heads = at.iter().map(|at| format!("{} {at}", verdict.swept));
        let heads: Vec<String> = heads.map(|head| head.trim().to_owned()).collect();
        let columns: Vec<&str> = ["claim", "with"]
            .into_iter()
            .chain(heads.iter().map(String::as_str))
            .collect();
        let title = "The worst value of each part";
        match tables.iter_mut().find(|table| table.columns == columns) {
            Some(table) => table.rows.extend(rows),
            None => tables.push(Table::new(title, &columns, rows)),
        }
    }
    tables
}

/// Returns the parameters of a result, without parameters that `previous` has with the same value.
pub(super) fn parameters(outcome: &Outcome, previous: Option<&Outcome>) -> String {
    let known = |parameter| previous.is_some_and(|one| one.parameters.contains(parameter));
    let new = outcome.parameters.iter().filter(|p| !known(*p));
    let each = new.map(|(name, value)| format!("{name}: {value}"));
    each.collect::<Vec<_>>().join("; ")
}
