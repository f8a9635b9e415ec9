//! Text in columns.

/// The alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Left, for words.
    Left,
    /// Right, for numbers.
    Right,
}

/// A table of text with headings, each column as wide as its widest cell.
#[derive(Debug)]
pub struct Columns {
    aligns: Vec<Align>,
    /// The cells of each row, and the lines of text below the row. The first row holds the headings.
    rows: Vec<(Vec<String>, Vec<String>)>,
}

impl Columns {
    /// Returns an empty table with these headings.
    pub fn new(headings: &[(&str, Align)]) -> Columns {
        let names = headings.iter().map(|(name, _)| (*name).to_owned());
        Columns {
            aligns: headings.iter().map(|(_, align)| *align).collect(),
            rows: vec![(names.collect(), Vec::new())],
        }
    }

    /// Adds a row, and the lines of text `below` the row. These lines do not count for the widths of the
    /// columns.
    pub fn row(&mut self, cells: impl Into<Vec<String>>, below: Vec<String>) {
        let cells = cells.into();
        debug_assert_eq!(cells.len(), self.aligns.len());
        self.rows.push((cells, below));
    }

    /// Removes the columns with these headings.
    pub fn hide(&mut self, headings: &[&str]) {
        let (names, _) = &self.rows[0];
        let names = names.iter();
        let visible: Vec<bool> = names.map(|n| !headings.contains(&n.as_str())).collect();
        retain_visible(&mut self.aligns, &visible);
        for (cells, _) in &mut self.rows {
            retain_visible(cells, &visible);
        }
    }

    /// Returns the table as text. Columns have two spaces before them.
    pub fn text(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|(cells, _)| &cells[column]);
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.aligns.len()).map(width).collect();
        let mut text = String::new();
        for (cells, below) in &self.rows {
            let mut line = String::new();
            for ((cell, width), align) in cells.iter().zip(&widths).zip(&self.aligns) {
                line += &match align {
                    Align::Left => format!("  {cell:<width$}"),
                    Align::Right => format!("  {cell:>width$}"),
                };
            }
            text += line.trim_end();
            text.push('\n');
            for line in below {
                text += &format!("      {line}\n");
            }
        }
        text
    }
}

/// Keeps the values of the visible columns.
fn retain_visible<T>(values: &mut Vec<T>, visible: &[bool]) {
    let mut visible = visible.iter();
    values.retain(|_| visible.next().is_none_or(|visible| *visible));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_can_be_hidden() {
        let mut columns =
            Columns::new(&[("a", Align::Left), ("b", Align::Right), ("c", Align::Left)]);
        columns.row(["1", "2", "3"].map(str::to_owned), Vec::new());
        columns.hide(&["a", "c"]);
        assert_eq!(columns.text(), "  b\n  2\n");
    }

    #[test]
    fn a_column_is_as_wide_as_its_widest_cell() {
        let mut columns = Columns::new(&[("name", Align::Left), ("n", Align::Right)]);
        columns.row(["a".to_owned(), "1".to_owned()], vec!["below".to_owned()]);
        columns.row(["longest".to_owned(), "12".to_owned()], Vec::new());
        let expected = "  name      n\n  a         1\n      below\n  longest  12\n";
        assert_eq!(columns.text(), expected);
    }
}
