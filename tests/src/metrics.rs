//! What a page of metrics in the text format lacks.

use crate::late;
use anyhow::{Error, anyhow};

/// The error for a page that does not have this line. A counter that is beyond the wanted value
/// never comes back to it; anything else may still come.
pub fn lacks(page: &str, line: &str) -> Error {
    match beyond(page, line) {
        Some(shown) => anyhow!("{line} was expected, and {shown} is beyond it"),
        None => late!("no {line} in {page}").into(),
    }
}

/// The counter that a line is about, if it has a greater value.
fn beyond<'a>(page: &'a str, line: &str) -> Option<&'a str> {
    let (series, wanted) = line.rsplit_once(' ')?;
    let wanted: f64 = wanted.parse().ok()?;
    let name = series.split('{').next()?;
    if !["_total", "_count"].iter().any(|end| name.ends_with(end)) {
        return None;
    }
    page.lines().find(|shown| {
        let (other, value) = shown.rsplit_once(' ').unwrap_or_default();
        other == series && value.parse().is_ok_and(|value: f64| value > wanted)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::late::is_late;

    #[test]
    fn a_counter_does_not_come_back() {
        let page = "# TYPE a counter\na_total{x=\"1\"} 2\nb{x=\"1\"} 2\n";
        assert!(!is_late(&lacks(page, "a_total{x=\"1\"} 1")));
        for line in ["a_total{x=\"1\"} 3", "a_total{x=\"2\"} 1", "b{x=\"1\"} 1", "b{x=\"2\","] {
            assert!(is_late(&lacks(page, line)), "{line}");
        }
    }
}
