//! The report as one page of HTML that needs nothing else, and as Markdown.

use std::fmt::Write;

use super::store::Stored;
use crate::experiments::{Outcome, Table, Verdict};
use crate::plot::escape;

const STYLE: &str = "\
body{font:15px/1.5 'DejaVu Sans',Verdana,sans-serif;color:#222;max-width:60rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2.5rem;border-top:1px solid #ccc;padding-top:1rem}\
table{border-collapse:collapse;margin:.7rem 0;font-size:.86rem}caption{text-align:left;padding:.2rem 0;color:#555}\
th,td{border-bottom:1px solid #ddd;padding:.25rem .7rem;text-align:left;vertical-align:top}th{border-bottom:2px solid #999}\
td.n{text-align:right;font-variant-numeric:tabular-nums}\
.yes{color:#00664a;font-weight:bold}.no{color:#b03a00;font-weight:bold}\
figure{margin:1rem 0}svg{max-width:100%;height:auto}dt{font-weight:bold}dd{margin:0 0 .4rem 1.2rem}";

/// A part of the report.
enum Block<'a> {
    /// An experiment begins: its id and title.
    Section(&'a str, &'a str),
    /// Names and texts.
    Facts(Vec<(String, String)>),
    Table(Table),
    Figure {
        /// Where it is, from the directory of the results.
        file: String,
        name: &'a str,
        svg: &'a str,
    },
}

/// The report: the results of an experiment on all arms stand together.
fn blocks(stored: &[Stored]) -> Vec<Block<'_>> {
    let mut blocks = vec![Block::Table(summary(stored))];
    for arms in stored.chunk_by(|a, b| a.outcome.id == b.outcome.id) {
        let first = &arms[0].outcome;
        blocks.push(Block::Section(&first.id, &first.title));
        let texts = [
            ("Source", &first.source),
            ("Set-up", &first.setup),
            ("Reported", &first.reported),
            ("Must hold", &first.must_hold),
        ];
        let texts = texts.into_iter().filter(|(_, text)| !text.is_empty());
        let texts = texts.map(|(name, text)| (name.to_owned(), text.clone()));
        let run_with = arms.iter().map(|one| parameters(&one.outcome));
        blocks.push(Block::Facts(texts.chain(run_with).collect()));
        blocks.push(Block::Table(claims(arms)));
        for Stored { outcome, svgs } in arms {
            for (name, svg) in outcome.figures.iter().zip(svgs) {
                let file = format!("{}/{}/{name}.svg", outcome.id, outcome.arm);
                blocks.push(Block::Figure { file, name, svg });
            }
            blocks.extend(outcome.tables.iter().map(|table| {
                Block::Table(Table {
                    title: format!("{}: {}", outcome.arm, table.title),
                    ..table.clone()
                })
            }));
        }
    }
    blocks
}

fn columns(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn summary(stored: &[Stored]) -> Table {
    let row = |Stored { outcome, .. }: &Stored| {
        let holding = outcome.verdicts.iter().filter(|v| v.holds).count();
        let word = if outcome.holds() {
            "holds"
        } else {
            "does not hold"
        };
        vec![
            outcome.id.clone(),
            outcome.title.clone(),
            outcome.arm.clone(),
            word.to_owned(),
            format!("{holding} of {} claims", outcome.verdicts.len()),
        ]
    };
    Table {
        title: "All results".to_owned(),
        columns: columns(&["id", "what is compared", "arm", "holds?", ""]),
        rows: stored.iter().map(row).collect(),
    }
}

/// What was reported and measured of each claim, on every arm.
fn claims(arms: &[Stored]) -> Table {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let judged = |one: &Stored, expected: &str| -> Option<Verdict> {
        let mut verdicts = one.outcome.verdicts.iter();
        verdicts.find(|v| v.expected() == expected).cloned()
    };
    for verdict in arms.iter().flat_map(|one| &one.outcome.verdicts) {
        let expected = verdict.expected();
        if rows.iter().any(|row| row[0] == expected) {
            continue;
        }
        let of_arms: Vec<Option<Verdict>> = arms.iter().map(|a| judged(a, &expected)).collect();
        let mut row = vec![expected, verdict.reported.clone()];
        let measured = |v: &Option<Verdict>| v.as_ref().map(Verdict::measured);
        row.extend(of_arms.iter().map(|v| measured(v).unwrap_or_default()));
        let words = arms.iter().zip(&of_arms);
        let words = words.filter_map(|(one, v)| Some((&one.outcome.arm, v.as_ref()?.word())));
        let mut words: Vec<(&String, String)> = words.collect();
        words.dedup_by(|a, b| a.1 == b.1);
        row.push(match &words[..] {
            [(_, word)] => word.clone(),
            _ => {
                let each = words.iter().map(|(arm, word)| format!("{arm} {word}"));
                each.collect::<Vec<_>>().join("; ")
            }
        });
        rows.push(row);
    }
    let measured = arms
        .iter()
        .map(|one| format!("measured ({})", one.outcome.arm));
    let mut head = columns(&["must hold", "reported"]);
    head.extend(measured);
    head.push("holds?".to_owned());
    Table {
        title: "What must hold".to_owned(),
        columns: head,
        rows,
    }
}

fn parameters(outcome: &Outcome) -> (String, String) {
    let mut all = vec![
        format!("{} runs of each cell", outcome.runs),
        format!("seed {}", outcome.seed),
    ];
    let named = outcome.parameters.iter();
    all.extend(named.map(|(name, value)| format!("{name}: {value}")));
    (format!("Run with ({})", outcome.arm), all.join("; "))
}

/// The page: every figure is part of it.
pub fn html(stored: &[Stored]) -> String {
    let mut out = String::from(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <title>Report of the lab</title>\n<style>",
    );
    out += STYLE;
    out += "</style>\n</head>\n<body>\n<h1>Report of the lab</h1>\n";
    // Writing to a string does not fail.
    for block in blocks(stored) {
        match block {
            Block::Section(id, title) => {
                let (id, title) = (escape(id), escape(title));
                let _ = writeln!(out, "<h2 id=\"{id}\">{id}: {title}</h2>");
            }
            Block::Facts(facts) => {
                out += "<dl>\n";
                for (name, text) in facts {
                    let (name, text) = (escape(&name), escape(&text));
                    let _ = writeln!(out, "<dt>{name}</dt><dd>{text}</dd>");
                }
                out += "</dl>\n";
            }
            Block::Table(table) => html_table(&mut out, &table),
            Block::Figure { svg, .. } => {
                let _ = writeln!(out, "<figure>{svg}</figure>");
            }
        }
    }
    out += "</body>\n</html>\n";
    out
}

fn html_table(out: &mut String, table: &Table) {
    let _ = write!(
        out,
        "<table>\n<caption>{}</caption>\n<tr>",
        escape(&table.title)
    );
    for column in &table.columns {
        let _ = write!(out, "<th>{}</th>", escape(column));
    }
    out.push_str("</tr>\n");
    for row in &table.rows {
        out.push_str("<tr>");
        for (cell, column) in row.iter().zip(&table.columns) {
            let text = escape(cell);
            let (class, text) = match cell {
                _ if column == "id" => ("", format!("<a href=\"#{text}\">{text}</a>")),
                _ if column == "holds?" && cell.contains("does not hold") => {
                    (" class=\"no\"", text)
                }
                _ if column == "holds?" => (" class=\"yes\"", text),
                _ if cell.starts_with(|c: char| c.is_ascii_digit() || c == '-') => {
                    (" class=\"n\"", text)
                }
                _ => ("", text),
            };
            let _ = write!(out, "<td{class}>{text}</td>");
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table>\n");
}

/// The same as Markdown, with links to the figures beside it.
pub fn markdown(stored: &[Stored]) -> String {
    let mut out = String::from("# Report of the lab\n");
    for block in blocks(stored) {
        out.push('\n');
        match block {
            Block::Section(id, title) => {
                let _ = writeln!(out, "## {id}: {title}");
            }
            Block::Facts(facts) => {
                for (name, text) in facts {
                    let _ = writeln!(out, "- **{name}**: {text}");
                }
            }
            Block::Table(table) => markdown_table(&mut out, &table),
            Block::Figure { file, name, .. } => {
                let _ = writeln!(out, "![{name}]({file})");
            }
        }
    }
    out
}

fn markdown_table(out: &mut String, table: &Table) {
    let line = |cells: &[String]| {
        let cells: Vec<_> = cells
            .iter()
            .map(|c| c.replace('|', "\\|").replace('\n', " "))
            .collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let _ = writeln!(out, "{}\n", table.title);
    out.push_str(&line(&table.columns));
    out.push_str(&line(&vec!["---".to_owned(); table.columns.len()]));
    for row in &table.rows {
        out.push_str(&line(row));
    }
}
