//! Text in columns.

/// The alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Left, for words.
    Left,
    /// Right, for numbers.
    Right,
}

/// Rows below their heads, each column as wide as its widest cell.
#[derive(Debug)]
pub struct Columns {
    aligns: Vec<Align>,
    /// Cells of each row, with the lines below the row.
    rows: Vec<(Vec<String>, Vec<String>)>,
}

impl Columns {
    /// Returns an empty table with these heads.
    pub fn new(heads: &[(&str, Align)]) -> Columns {
        let names = heads.iter().map(|(name, _)| (*name).to_owned());
        Columns {
            aligns: heads.iter().map(|(_, align)| *align).collect(),
            rows: vec![(names.collect(), Vec::new())],
        }
    }

    /// Adds a row, and lines below it.
    pub fn row(&mut self, cells: impl Into<Vec<String>>, below: Vec<String>) {
        let cells = cells.into();
        debug_assert_eq!(cells.len(), self.aligns.len());
        self.rows.push((cells, below));
    }

    /// Removes the columns with these heads.
    pub fn hide(&mut self, heads: &[&str]) {
        let (names, _) = &self.rows[0];
        let kept: Vec<bool> = names.iter().map(|n| !heads.contains(&n.as_str())).collect();
        retain(&mut self.aligns, &kept);
        for (cells, _) in &mut self.rows {
            retain(cells, &kept);
        }
    }

    /// Returns the text, each line indented by two.
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

/// Keeps the values whose place in `kept` is true.
fn retain<T>(values: &mut Vec<T>, kept: &[bool]) {
    let mut kept = kept.iter();
    values.retain(|_| kept.next().is_none_or(|kept| *kept));
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
    fn columns_are_as_wide_as_they_must_be() {
        let mut columns = Columns::new(&[("name", Align::Left), ("n", Align::Right)]);
        columns.row(["a".to_owned(), "1".to_owned()], vec!["below".to_owned()]);
        columns.row(["longest".to_owned(), "12".to_owned()], Vec::new());
        let expected = "  name      n\n  a         1\n      below\n  longest  12\n";
        assert_eq!(columns.text(), expected);
    }
}
