//! A table that people can read.

/// One thing that was tried.
#[derive(Debug)]
pub struct Row {
    /// Whether it went as expected.
    pub holds: bool,
    /// Whether all that is missing is answers that did not come in time.
    pub late: bool,
    /// What it shows.
    pub shows: String,
    /// From where to where.
    pub tried: String,
    /// What should happen.
    pub expected: String,
    /// Who answered.
    pub answered: String,
}

/// The table with a header, one line per row.
pub fn render(rows: &[Row]) -> String {
    let head = ["", "what", "from → to", "expected", "answered"].map(str::to_owned);
    let body = rows.iter().map(|row| {
        let mark = if row.holds { "✓" } else { "✗" };
        [mark.into(), row.shows.clone(), row.tried.clone(), row.expected.clone(), row.answered.clone()]
    });
    let lines: Vec<[String; 5]> = [head].into_iter().chain(body).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..5).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}
