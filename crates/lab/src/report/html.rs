//! The report as a single page of HTML.

use std::fmt::Write;

use super::overview::{by_source, failing};
use super::parts::{by_experiment, claims, command, parameters, reasons, summary};
use super::store::Stored;
use crate::experiments::Table;
use crate::plot::escape;

const STYLE: &str = "\
body{font:15px/1.5 'DejaVu Sans',Verdana,sans-serif;color:#222;max-width:60rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2.5rem;border-top:1px solid #ccc;padding-top:1rem}\
table{border-collapse:collapse;margin:.7rem 0;font-size:.86rem}caption{text-align:left;padding:.2rem 0;color:#555}\
th,td{border-bottom:1px solid #ddd;padding:.25rem .7rem;text-align:left;vertical-align:top}th{border-bottom:2px solid #999}\
td.n{text-align:right;font-variant-numeric:tabular-nums}\
.yes{color:#00664a;font-weight:bold}.no{color:#b03a00;font-weight:bold}\
figure{margin:1rem 0}svg{max-width:100%;height:auto}dt{font-weight:bold}dd{margin:0 0 .4rem 1.2rem}";

/// Returns the page as one self-contained file: it embeds every figure and loads nothing.
pub fn html(stored: &[Stored]) -> String {
    let mut out = String::from(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <title>Report of the lab</title>\n<style>",
    );
    out += STYLE;
    out += "</style>\n</head>\n<body>\n<h1>Report of the lab</h1>\n";
    table(&mut out, &by_source(stored));
    let failing = failing(stored);
    if !failing.rows.is_empty() {
        table(&mut out, &failing);
    }
    table(&mut out, &summary(stored));
    for backends in by_experiment(stored) {
        section(&mut out, backends);
    }
    out += "</body>\n</html>\n";
    out
}

/// Writes an experiment with its results on all backends. `backends` has at least one result.
fn section(out: &mut String, backends: &[Stored]) {
    let first = &backends[0].outcome;
    let (id, title) = (escape(&first.id), escape(&first.title));
    // Writing to a string does not fail.
    let _ = writeln!(out, "<h2 id=\"{id}\">{id}: {title}</h2>");
    let texts = [
        ("Source", &first.source),
        ("Set-up", &first.setup),
        ("Reported", &first.reported),
        ("Must hold", &first.must_hold),
    ];
    // A source beyond the papers reports nothing.
    let texts = texts.into_iter().filter(|(_, text)| !text.is_empty());
    let texts = texts.map(|(name, text)| (name.to_owned(), text.clone()));
    let run_with = backends.iter().map(|Stored { outcome, .. }| {
        let text = format!("{}; {}", command(outcome), parameters(outcome, None));
        (format!("Run with ({})", outcome.backend), text)
    });
    facts(out, texts.chain(run_with));
    table(out, &claims(backends));
    facts(out, reasons(backends).into_iter());
    for Stored { outcome, svgs } in backends {
        for svg in svgs {
            let _ = writeln!(out, "<figure>{svg}</figure>");
        }
        for one in &outcome.tables {
            let title = format!("{}: {}", outcome.backend, one.title);
            table(
                out,
                &Table {
                    title,
                    ..one.clone()
                },
            );
        }
    }
}

/// Writes pairs of name and text as a definition list.
fn facts(out: &mut String, facts: impl Iterator<Item = (String, String)>) {
    out.push_str("<dl>\n");
    for (name, text) in facts {
        let (name, text) = (escape(&name), escape(&text));
        let _ = writeln!(out, "<dt>{name}</dt><dd>{text}</dd>");
    }
    out.push_str("</dl>\n");
}

/// Writes a table. The text of a cell decides its class: a verdict gets a color, and a number is aligned
/// to the right.
fn table(out: &mut String, table: &Table) {
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
                _ if cell.contains("does not hold") || cell.ends_with("claims hold") => {
                    (" class=\"no\"", text)
                }
                _ if cell.starts_with("holds") => (" class=\"yes\"", text),
                // A measured value begins with a digit, or with a minus sign.
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
