//! Pages and charts of what was measured. They are made from the results alone, so they can be
//! made again at any time.

mod chart;
mod load;
mod summary;
mod traffic;

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

use super::{
    control,
    load::Load,
    traffic::{Cell, Traffic},
};

/// Says in every page where it is from.
const ORIGIN: &str = "<!-- Written by `cargo xtask bench report`. -->\n";

/// Writes the pages of the results in this folder beside them.
pub fn write(folder: &Path) -> Result<()> {
    let traffic = Traffic::read(&folder.join("traffic.json"))?;
    let changes = control::Results::read(&folder.join("control.json"))?;
    let changes = Some(changes).filter(|changes| !changes.rows.is_empty());
    if let Some(traffic) = &traffic {
        chart::draw(traffic, &folder.join("traffic.svg"))?;
        put(folder, "traffic.md", &traffic::page(traffic))?;
    }
    if let Some(changes) = &changes {
        let machine = traffic.as_ref().map(|traffic| traffic.machine.describe()).unwrap_or_default();
        put(folder, "control.md", &control::markdown(changes, &machine))?;
    }
    let load = Load::read(&folder.join("load.json"))?;
    let load = Some(load).filter(|load| !load.stretches.is_empty() || !load.floods.is_empty());
    if let Some(load) = &load {
        put(folder, "load.md", &load::page(load))?;
    }
    put(folder, "README.md", &summary::page(traffic.as_ref(), changes.is_some(), load.is_some()))
}

fn put(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    fs::write(&path, format!("{ORIGIN}{text}")).with_context(|| format!("write {}", path.display()))?;
    println!("{}", path.display());
    Ok(())
}

/// A row of a Markdown table.
fn row(cells: impl IntoIterator<Item = String>) -> String {
    format!("| {} |\n", cells.into_iter().collect::<Vec<_>>().join(" | "))
}

/// The head of a Markdown table.
fn head(cells: &[String]) -> String {
    row(cells.to_vec()) + &row(cells.iter().map(|_| "---".into()))
}

/// A number as people read it: 10,000.
fn grouped(number: u32) -> String {
    match (number / 1000, number % 1000) {
        (0, rest) => rest.to_string(),
        (thousands, rest) => format!("{},{rest:03}", grouped(thousands)),
    }
}

/// Whether the figures of a cell are worth showing.
fn is_measured(cell: &Cell) -> bool {
    cell.micros > 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([10, 1_000, 50_000, 1_234_567].map(grouped), ["10", "1,000", "50,000", "1,234,567"]);
    }
}
