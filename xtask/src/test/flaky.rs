//! Tests that are known to fail now and then. The list excuses nobody for long: an entry is a debt
//! with a date, and whoever changes the code it names pays it.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use jiff::civil::Date;
use serde::Deserialize;
use toml::value::Datetime;

use super::change::Change;

/// Where the list is, in the tree.
pub(crate) const LIST: &str = "tests/flaky.toml";
/// How long an entry may stand.
const DAYS: i32 = 14;

/// The list.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Flaky {
    #[serde(default)]
    test: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// As the runner prints it.
    name: String,
    /// The day it failed for the first time.
    seen: Datetime,
    /// What it failed with, and what is thought of it.
    why: String,
    /// Files and folders that are to be changed only together with a mend of the test.
    code: Vec<String>,
}

impl Flaky {
    /// Reads it.
    pub(crate) fn read(root: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(root.join(LIST)).with_context(|| format!("cannot read {LIST}"))?;
        let list: Self = toml::from_str(&text).with_context(|| LIST.to_owned())?;
        for Entry { name, why, code, .. } in &list.test {
            anyhow::ensure!(!why.trim().is_empty() && !code.is_empty(), "{LIST}: {name} needs why and code");
            let gone = code.iter().find(|path| !root.join(path).exists());
            anyhow::ensure!(gone.is_none(), "{LIST}: {name}: there is no {}", gone.map_or("", |path| path));
        }
        Ok(list)
    }

    pub(crate) fn knows(&self, name: &str) -> bool {
        self.test.iter().any(|entry| entry.name == name)
    }

    /// What keeps a run from passing: an entry each.
    pub(crate) fn debts(&self, today: Date, change: &Change) -> anyhow::Result<Vec<String>> {
        let mut debts = Vec::new();
        for entry in &self.test {
            let age = age(&entry.seen, today).with_context(|| format!("{LIST}: {}", entry.name))?;
            if age > DAYS {
                debts.push(format!("{} has been in {LIST} for {age} days, {DAYS} at most", entry.name));
            }
            if let Some(path) = change.touches(&entry.code) {
                debts.push(format!("{} is in {LIST}, and this change touches {path}", entry.name));
            }
        }
        Ok(debts)
    }
}

/// In days.
fn age(seen: &Datetime, today: Date) -> anyhow::Result<i32> {
    let seen = seen.date.context("seen is no date")?;
    let seen = Date::new(seen.year.try_into()?, seen.month.try_into()?, seen.day.try_into()?)?;
    anyhow::ensure!(seen <= today, "seen on {seen}, which is still to come");
    Ok((today - seen).get_days())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Workspace;
    use jiff::civil::date;

    fn list(seen: &str) -> anyhow::Result<Flaky> {
        let text =
            format!("[[test]]\nname = 'node::a'\nseen = {seen}\nwhy = 'late'\ncode = ['proxy-ebpf/src']");
        Ok(toml::from_str(&text)?)
    }

    fn debts(seen: &str, changed: &[&str]) -> anyhow::Result<Vec<String>> {
        list(seen)?.debts(date(2026, 11, 23), &Change::of(changed))
    }

    #[test]
    fn an_entry_stands_for_two_weeks() {
        assert!(debts("2026-11-09", &[]).unwrap().is_empty());
        assert!(debts("2026-11-08", &[]).unwrap()[0].contains("15 days"));
        assert!(debts("2026-11-24", &[]).is_err(), "the future");
        assert!(list("'yesterday'").is_err());
    }

    #[test]
    fn who_changes_the_code_mends_the_test() {
        assert!(debts("2026-11-23", &["README.md"]).unwrap().is_empty());
        let debts = debts("2026-11-23", &["proxy-ebpf/src/main.rs"]).unwrap();
        assert!(debts[0].contains("proxy-ebpf/src"), "{debts:?}");
    }

    #[test]
    fn the_list_of_this_tree_can_be_read() {
        Flaky::read(&Workspace::find().unwrap().root).unwrap();
    }
}
