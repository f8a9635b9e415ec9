//! Text in figures: its width, computed without a font file, its line breaks, and its escapes.

/// Units of an em in [`WIDTHS`], as in the font file of DejaVu Sans.
const EM: f64 = 2048.0;
/// Advance widths of DejaVu Sans, the font that figures ask for, from the space to the tilde. Verdana,
/// the second choice, has nearly the same widths.
const WIDTHS: [u16; 95] = [
    651, 821, 942, 1716, 1303, 1946, 1597, 563, 799, 799, 1024, 1716, 651, 739, 651, 690, 1303,
    1303, 1303, 1303, 1303, 1303, 1303, 1303, 1303, 1303, 690, 690, 1716, 1716, 1716, 1087, 2048,
    1401, 1405, 1430, 1577, 1294, 1178, 1587, 1540, 604, 604, 1343, 1141, 1767, 1532, 1612, 1235,
    1612, 1423, 1300, 1251, 1499, 1401, 2025, 1403, 1251, 1403, 799, 690, 799, 1716, 1024, 1024,
    1255, 1300, 1126, 1300, 1260, 721, 1300, 1298, 569, 569, 1186, 569, 1995, 1298, 1253, 1300,
    1300, 842, 1067, 803, 1298, 1212, 1675, 1212, 1212, 1075, 1303, 690, 1303, 1716,
];

/// Returns the width of `text` at `size`, in points.
pub fn width(text: &str, size: f64) -> f64 {
    let units: u32 = text.chars().map(|c| u32::from(advance(c))).sum();
    f64::from(units) * size / EM
}

/// Returns the advance width of a character, in units of the em.
fn advance(c: char) -> u16 {
    match c {
        ' '..='~' => WIDTHS[c as usize - ' ' as usize],
        '\u{a0}' => WIDTHS[0],
        // DejaVu Sans draws these signs as wide as `+`.
        '×' | '±' | '−' | '≤' | '≥' => 1716,
        // Other letters count as wide as a digit: most are about that wide.
        _ => 1303,
    }
}

/// Breaks `text` at spaces into lines of at most `max_width`. A longer word stands alone on a line.
pub fn wrap(text: &str, size: f64, max_width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if width(&format!("{line} {word}"), size) <= max_width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Escapes `text` for a place between tags of XML or HTML, or within quotes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML 1.0, section 2.2, forbids most control characters; a space takes the place of all.
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
