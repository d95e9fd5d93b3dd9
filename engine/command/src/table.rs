//! Tables in the output of commands.

use std::fmt::{self, Display};

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};

/// A table without borders. Each column is as wide as its widest cell, whose width is that of the terminal's
/// characters.
pub(super) struct TextTable(Table);

impl TextTable {
    /// A table with these headings. Cells stand at the right of their column, those of the columns `left` at the left.
    pub(super) fn new<const N: usize>(headings: [&str; N], left: &[usize]) -> Self {
        Self::of(headings, left)
    }

    /// Likewise, with a number of columns that is not fixed.
    pub(super) fn of<'a>(headings: impl IntoIterator<Item = &'a str>, left: &[usize]) -> Self {
        let mut table = Table::new();
        table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(headings);
        for (at, column) in table.column_iter_mut().enumerate() {
            let alignment = if left.contains(&at) { CellAlignment::Left } else { CellAlignment::Right };
            column.set_padding((0, 2)).set_cell_alignment(alignment);
        }
        Self(table)
    }

    /// Adds a row. Cells that are missing at its end are empty.
    pub(super) fn row<const N: usize>(&mut self, cells: [&dyn Display; N]) {
        self.cells(cells.map(ToString::to_string));
    }

    /// Likewise, with a number of cells that is not fixed.
    pub(super) fn cells(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.add_row(cells);
    }
}

/// With a line feed after each line.
impl Display for TextTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.0.trim_fmt())
    }
}

/// A number with the noun that follows it: `1 block`, `2 blocks`.
pub(super) fn counted(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// A count with a decimal unit.
pub(super) struct DecimalCount(pub(super) f64);

impl Display for DecimalCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["", " k", " M", " G"];
        let (mut value, mut unit) = (self.0, 0);
        while value >= 999.5 && unit + 1 < units.len() {
            (value, unit) = (value / 1000.0, unit + 1);
        }
        let digits = if unit == 0 || value >= 99.95 { 0 } else { 1 };
        f.pad(&format!("{value:.digits$}{}", units[unit]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_units() {
        assert_eq!(
            [7.0, 999.4, 999.5, 99_940.0, 99_950.0, 2.5e6, 2.5e9, 5e12]
                .map(|count| DecimalCount(count).to_string()),
            ["7", "999", "1.0 k", "99.9 k", "100 k", "2.5 M", "2.5 G", "5000 G"]
        );
    }

    #[test]
    fn columns_line_up_under_long_and_wide_cells() {
        let mut table = TextTable::new(["table", "rows", "why"], &[0, 2]);
        table.row([&"電影", &12, &"small"]);
        table.row([&"a_longer_name", &3_000_000, &""]);
        table.row([&"refused"]);
        let expected = "table             rows  why\n\
                        電影                12  small\n\
                        a_longer_name  3000000\n\
                        refused\n";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn one_of_a_kind_is_singular() {
        assert_eq!(
            [counted(0, "block"), counted(1, "block"), counted(2, "block")].join(", "),
            "0 blocks, 1 block, 2 blocks"
        );
    }
}
