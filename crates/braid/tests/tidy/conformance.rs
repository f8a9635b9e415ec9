//! `docs/conformance.md`: what the RFCs demand, where it is done and which test shows it.
//!
//! The demands stand in `docs/conformance.toml`. A comment line `// Conforms: 8684-3.2-1` (several
//! ids are parted by commas) cites them above the code that meets them, and above the test.

use std::collections::BTreeMap;
use std::fmt::Write;

const MARK: &str = "// Conforms: ";

/// A demand of an RFC.
#[derive(serde::Deserialize)]
struct Demand {
    /// RFC, section and number, as in `8684-3.2-1`.
    id: String,
    level: String,
    text: String,
    /// The reason why it is not met.
    not: Option<String>,
}

#[derive(serde::Deserialize)]
struct Demands {
    demand: Vec<Demand>,
}

/// Files, and tests with their files, that cite one id.
#[derive(Default)]
struct Cited {
    code: Vec<String>,
    tests: Vec<(String, String)>,
}

/// Returns the page for `demands` and the citations in `files`, or the mistakes in them.
pub fn page(demands: &str, files: &[(String, String)]) -> Result<String, Vec<String>> {
    let demands: Demands = toml::from_str(demands).map_err(|error| vec![error.to_string()])?;
    let mut cited: BTreeMap<&str, Cited> = BTreeMap::new();
    let mut wrong = Vec::new();
    for demand in &demands.demand {
        if cited.insert(&demand.id, Cited::default()).is_some() {
            wrong.push(format!("{}: stands there twice", demand.id));
        }
    }
    for (name, text) in files {
        let mut is_test = name.contains("/tests/") || name.ends_with("/tests.rs");
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            is_test |= line.trim() == "#[cfg(test)]";
            let Some(ids) = line.trim_start().strip_prefix(MARK) else {
                continue;
            };
            for id in ids.split(',').map(str::trim) {
                let Some(places) = cited.get_mut(id) else {
                    wrong.push(format!("{name}: cites {id}, which is not in the list"));
                    continue;
                };
                match (is_test, lines.clone().find_map(function)) {
                    (true, Some(test)) => places.tests.push((test.to_owned(), name.clone())),
                    (true, None) => wrong.push(format!("{name}: {id} is cited above no test")),
                    (false, _) if places.code.contains(name) => {}
                    (false, _) => places.code.push(name.clone()),
                }
            }
        }
    }
    for demand in &demands.demand {
        match (cited[&demand.id[..]].code.is_empty(), &demand.not) {
            (true, None) => wrong.push(format!("{}: neither cited nor excused", demand.id)),
            (false, Some(_)) => wrong.push(format!("{}: both cited and excused", demand.id)),
            _ => {}
        }
    }
    match wrong.is_empty() {
        true => Ok(write(&demands.demand, &cited)),
        false => Err(wrong),
    }
}

/// Returns the name of the function that begins in `line`.
fn function(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("fn ")?.split('(').next()
}

fn write(demands: &[Demand], cited: &BTreeMap<&str, Cited>) -> String {
    let count = |is: &dyn Fn(&Demand) -> bool| demands.iter().filter(|d| is(d)).count();
    let tested = count(&|d| d.not.is_none() && !cited[&d.id[..]].tests.is_empty());
    let untested = count(&|d| d.not.is_none() && cited[&d.id[..]].tests.is_empty());
    let mut page = format!(
        "# Conformance\n\nWritten by `make conformance` from [conformance.toml](conformance.toml) and the \
         citations in the sources. It has\n\
         each MUST and SHOULD of RFC 8684 that can arise here, and the main ones of the others. RECOMMENDED counts as SHOULD; the\n\
         level `-` is what an RFC lays down without one of its key words. Left out are demands on hosts that refuse checksums.\n\n\
         {} demands: {tested} met and tested, {untested} met without a \
         test that cites them, {} not met.\n\n| id | level | demand | code | test |\n\
         | --- | --- | --- | --- | --- |\n",
        demands.len(),
        demands.len() - tested - untested,
    );
    for demand in demands {
        let Cited { code, tests } = &cited[&demand.id[..]];
        let code: Vec<_> = code.iter().map(|file| link(short(file), file)).collect();
        let tests: Vec<_> = tests.iter().map(|(test, file)| link(test, file)).collect();
        let (code, tests) = match &demand.not {
            Some(reason) => (format!("no: {reason}"), String::new()),
            None if tests.is_empty() => (code.join(", "), "no test".to_owned()),
            None => (code.join(", "), tests.join(", ")),
        };
        let Demand {
            id, level, text, ..
        } = demand;
        writeln!(page, "| {id} | {level} | {text} | {code} | {tests} |").expect("a string");
    }
    page
}

fn short(file: &str) -> &str {
    file.strip_prefix("crates/").unwrap_or(file)
}

fn link(text: &str, file: &str) -> String {
    format!("[`{text}`](../{file})")
}

#[cfg(test)]
mod tests {
    use super::page;

    fn judged(demand: &str, text: &str) -> Result<String, Vec<String>> {
        let file = ("crates/x/src/a.rs".to_owned(), text.to_owned());
        let demand =
            format!("[[demand]]\nid = \"1-2-3\"\nlevel = \"MUST\"\ntext = \"t\"\n{demand}");
        page(&demand, &[file])
    }

    #[test]
    fn citations_and_demands_belong_together() {
        let code = "// Conforms: 1-2-3\nfn f() {}\n";
        assert!(judged("", code).unwrap().contains("a.rs) | no test |"));
        let test =
            format!("{code}#[cfg(test)]\nmod tests {{\n    // Conforms: 1-2-3\n    fn g() {{}}");
        assert!(judged("", &test).unwrap().contains("[`g`]"));
        assert!(judged("", "").is_err(), "neither code nor a reason");
        assert!(judged("not = \"n\"", "").unwrap().contains("no: n"));
        assert!(judged("not = \"n\"", code).is_err(), "code and a reason");
        assert!(judged("", &code.replace("-3", "-4")).is_err(), "no such id");
    }
}
