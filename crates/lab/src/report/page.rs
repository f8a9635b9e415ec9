//! The report as one page of HTML that needs nothing else, and as Markdown.

use std::fmt::Write;

use super::store::Stored;
use crate::experiments::{Outcome, Table};
use crate::plot::escape;

const STYLE: &str = "\
body{font:15px/1.5 'DejaVu Sans',Verdana,sans-serif;color:#222;max-width:60rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2.5rem;border-top:1px solid #ccc;padding-top:1rem}\
table{border-collapse:collapse;margin:.7rem 0;font-size:.86rem}caption{text-align:left;padding:.2rem 0;color:#555}\
th,td{border-bottom:1px solid #ddd;padding:.25rem .7rem;text-align:left;vertical-align:top}th{border-bottom:2px solid #999}\
td.n{text-align:right;font-variant-numeric:tabular-nums}\
.yes{color:#00664a;font-weight:bold}.no{color:#b03a00;font-weight:bold}\
figure{margin:1rem 0}svg{max-width:100%;height:auto}dt{font-weight:bold}dd{margin:0 0 .4rem 1.2rem}";

/// What a claim or an experiment is called that does or does not hold.
fn word(holds: bool) -> &'static str {
    if holds { "holds" } else { "does not hold" }
}

fn summary(stored: &[Stored]) -> Vec<[String; 5]> {
    let row = |s: &Stored| {
        let Outcome {
            id,
            title,
            arm,
            verdicts,
            ..
        } = &s.outcome;
        let holding = verdicts.iter().filter(|v| v.holds).count();
        let claims = format!("{holding} of {} claims", verdicts.len());
        [
            id.clone(),
            title.clone(),
            arm.clone(),
            word(s.outcome.holds()).to_owned(),
            claims,
        ]
    };
    stored.iter().map(row).collect()
}

fn parameters(outcome: &Outcome) -> String {
    let mut all = vec![format!("arm {}", outcome.arm)];
    all.push(format!("{} runs of each cell", outcome.runs));
    all.push(format!("seed {}", outcome.seed));
    all.extend(
        outcome
            .parameters
            .iter()
            .map(|(name, value)| format!("{name}: {value}")),
    );
    all.join("; ")
}

/// The page: every figure is part of it.
pub fn html(stored: &[Stored]) -> String {
    let mut out = String::from(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <title>Report of the lab</title>\n<style>",
    );
    // Writing to a string does not fail.
    let _ = writeln!(
        out,
        "{STYLE}</style>\n</head>\n<body>\n<h1>Report of the lab</h1>\n<table>"
    );
    out.push_str(
        "<tr><th>id</th><th>what is compared</th><th>arm</th><th>result</th><th></th></tr>\n",
    );
    for [id, title, arm, result, claims] in summary(stored) {
        let _ = writeln!(
            out,
            "<tr><td><a href=\"#{0}-{2}\">{0}</a></td><td>{1}</td><td>{2}</td>{3}<td>{claims}</td></tr>",
            escape(&id),
            escape(&title),
            escape(&arm),
            verdict_cell(result == word(true))
        );
    }
    out.push_str("</table>\n");
    for one in stored {
        html_section(&mut out, one);
    }
    out.push_str("</body>\n</html>\n");
    out
}

fn verdict_cell(holds: bool) -> String {
    let class = if holds { "yes" } else { "no" };
    format!("<td class=\"{class}\">{}</td>", word(holds))
}

fn html_section(out: &mut String, stored: &Stored) {
    let o = &stored.outcome;
    let _ = writeln!(
        out,
        "<h2 id=\"{0}-{1}\">{0} ({1}): {2}</h2>\n<dl>",
        escape(&o.id),
        escape(&o.arm),
        escape(&o.title)
    );
    let parameters = parameters(o);
    for (name, text) in [
        ("Source", &o.source),
        ("Set-up", &o.setup),
        ("Reported", &o.reported),
        ("Must hold", &o.must_hold),
        ("Run with", &parameters),
    ] {
        let _ = writeln!(out, "<dt>{name}</dt><dd>{}</dd>", escape(text));
    }
    out.push_str(
        "</dl>\n<table>\n<tr><th>claim</th><th>reported</th><th>measured</th><th></th></tr>\n",
    );
    for v in &o.verdicts {
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td>{}</tr>",
            escape(&v.expected()),
            escape(&v.reported),
            escape(&v.measured()),
            verdict_cell(v.holds)
        );
    }
    out.push_str("</table>\n");
    for svg in &stored.svgs {
        let _ = writeln!(out, "<figure>{svg}</figure>");
    }
    for table in &o.tables {
        html_table(out, table);
    }
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
        for cell in row {
            let number = cell.starts_with(|c: char| c.is_ascii_digit() || c == '-');
            let class = if number { " class=\"n\"" } else { "" };
            let _ = write!(out, "<td{class}>{}</td>", escape(cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table>\n");
}

/// The same as Markdown, with links to the figures beside it.
pub fn markdown(stored: &[Stored]) -> String {
    let mut out = String::from("# Report of the lab\n\n");
    let head = ["id", "what is compared", "arm", "result", ""].map(str::to_owned);
    let rows: Vec<Vec<String>> = summary(stored).iter().map(|row| row.to_vec()).collect();
    markdown_table(&mut out, &head, &rows);
    for Stored { outcome: o, .. } in stored {
        let _ = writeln!(out, "\n## {} ({}): {}\n", o.id, o.arm, o.title);
        for (name, text) in [
            ("Source", o.source.as_str()),
            ("Set-up", &o.setup),
            ("Reported", &o.reported),
            ("Must hold", &o.must_hold),
            ("Run with", &parameters(o)),
        ] {
            let _ = writeln!(out, "- **{name}**: {text}");
        }
        out.push('\n');
        let head = ["claim", "reported", "measured", ""].map(str::to_owned);
        let verdicts = o
            .verdicts
            .iter()
            .map(|v| vec![v.expected(), v.reported.clone(), v.measured(), v.word()]);
        markdown_table(&mut out, &head, &verdicts.collect::<Vec<_>>());
        for name in &o.figures {
            let _ = writeln!(out, "\n![{name}]({}/{}/{name}.svg)", o.id, o.arm);
        }
        for table in &o.tables {
            let _ = writeln!(out, "\n{}\n", table.title);
            markdown_table(&mut out, &table.columns, &table.rows);
        }
    }
    out
}

fn markdown_table(out: &mut String, head: &[String], rows: &[Vec<String>]) {
    let line = |cells: &[String]| {
        let cells: Vec<_> = cells
            .iter()
            .map(|c| c.replace('|', "\\|").replace('\n', " "))
            .collect();
        format!("| {} |\n", cells.join(" | "))
    };
    out.push_str(&line(head));
    out.push_str(&line(&vec!["---".to_owned(); head.len()]));
    for row in rows {
        out.push_str(&line(row));
    }
}
