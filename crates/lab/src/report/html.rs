//! The report as a single page of HTML, made from a Markdown page with every table and figure.

use pulldown_cmark::{
    CowStr, Event, Options, Parser, Tag, TagEnd, TextMergeStream, html::push_html,
};

use super::markdown::page;
use super::store::Stored;
use crate::plot::escape;

const STYLE: &str = "\
body{font:15px/1.5 'DejaVu Sans',Verdana,sans-serif;color:#222;max-width:60rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2.5rem;border-top:1px solid #ccc;padding-top:1rem}\
table{border-collapse:collapse;margin:.7rem 0;font-size:.86rem}\
th,td{border-bottom:1px solid #ddd;padding:.25rem .7rem;text-align:left;vertical-align:top}th{border-bottom:2px solid #999}\
td .n{display:block;text-align:right;font-variant-numeric:tabular-nums}\
td .yes{color:#00664a;font-weight:bold}td .no{color:#b03a00;font-weight:bold}td .some{color:#8a6000;font-weight:bold}svg{max-width:100%;height:auto}";

/// Returns the page as one self-contained file: it embeds every figure and loads nothing.
pub fn html(stored: &[Stored]) -> String {
    // Images without names stand for the figures. The page has every figure, in the order of the results.
    let page = page(stored, true, |_, _| "![]()".to_owned());
    let mut svgs = stored.iter().flat_map(|one| &one.svgs);
    let options = Options::ENABLE_TABLES | Options::ENABLE_HEADING_ATTRIBUTES;
    let events = Parser::new_ext(&page, options).map(|event| match event {
        Event::Start(Tag::Image { .. }) => Event::Html(svgs.next().map_or("", |svg| svg).into()),
        Event::End(TagEnd::Image) => Event::Html("".into()),
        // Results contain no HTML, so an angle bracket in their texts is only a character.
        Event::Html(text) | Event::InlineHtml(text) => Event::Text(text),
        event => event,
    });
    let mut body = String::new();
    push_html(&mut body, TextMergeStream::new(events).map(with_class));
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <title>Report of the lab</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )
}

/// Puts a text into a class of the style sheet. The style of a cell in a table depends on it: a verdict gets a
/// color, and a number is aligned to the right.
fn with_class(event: Event<'_>) -> Event<'_> {
    let Event::Text(text) = &event else {
        return event;
    };
    let class = if text.contains("does not hold") || text.starts_with("no: ") {
        "no"
    } else if **text == *"holds" || text.starts_with("holds (") {
        "yes"
    } else if text.contains("holds ") || text.contains("claims hold") || text.starts_with("tie: ") {
        "some"
    } else if text.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
        // A measured value begins with a digit, or with a minus sign.
        "n"
    } else {
        return event;
    };
    let text = escape(text);
    Event::Html(CowStr::from(format!(
        "<span class=\"{class}\">{text}</span>"
    )))
}
