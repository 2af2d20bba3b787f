//! Rows of a tab: filtered, sorted, ready to be drawn. Knows neither terminals nor maps.

use super::super::list::column::{Column, Value};

/// A table of values.
#[derive(Clone, Debug, Default)]
pub(super) struct Grid {
    /// Names of the columns.
    pub header: Vec<&'static str>,
    /// A row has a value for each of them; the first is its name.
    pub rows: Vec<Vec<Value>>,
}

impl Grid {
    /// One row for each of `rows`.
    pub(super) fn of<V>(rows: &[V], columns: &[Column<V>]) -> Self {
        let values = |row: &V| columns.iter().map(|column| (column.value)(row)).collect();
        Self {
            header: columns.iter().map(|column| column.name).collect(),
            rows: rows.iter().map(values).collect(),
        }
    }

    /// Leaves the rows in which some cell contains `text`, whatever the case.
    pub(super) fn filter(&mut self, text: &str) {
        let text = text.to_lowercase();
        self.rows.retain(|row| row.iter().any(|value| value.to_string().to_lowercase().contains(&text)));
    }

    /// Sorts by a column: names from the first, numbers from the largest. What is equal keeps its order.
    pub(super) fn sort(&mut self, column: usize, reverse: bool) {
        let is_text = |value: &Value| matches!(value, Value::Text(_) | Value::Lines(_) | Value::Socket(_));
        let ascending = self.rows.iter().filter_map(|row| row.get(column)).any(is_text);
        self.rows.sort_by(|a, b| {
            let order = a.get(column).cmp(&b.get(column));
            if ascending == reverse { order.reverse() } else { order }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::list::column::Shown;

    const COLUMNS: &[Column<(&str, u64)>] = &[
        Column { name: "NAME", shown: Shown::Always, value: |row| row.0.into() },
        Column { name: "COUNT", shown: Shown::Always, value: |row| row.1.into() },
    ];

    fn names(grid: &Grid) -> Vec<String> {
        grid.rows.iter().map(|row| row[0].to_string()).collect()
    }

    #[test]
    fn names_ascend_and_numbers_descend() {
        let mut grid = Grid::of(&[("b", 9), ("a", 10), ("c", 100)], COLUMNS);
        grid.sort(0, false);
        assert_eq!(names(&grid), ["a", "b", "c"]);
        grid.sort(1, false);
        assert_eq!(names(&grid), ["c", "a", "b"]);
        grid.sort(1, true);
        assert_eq!(names(&grid), ["b", "a", "c"]);
        grid.filter("10");
        assert_eq!(names(&grid), ["a", "c"]);
    }
}
