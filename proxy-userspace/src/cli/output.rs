//! How results reach the operator.

use std::{
    io::{ErrorKind, Write},
    process::ExitCode,
};

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::Serialize;

/// How a list is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// The main columns.
    #[default]
    Table,
    /// Every column, nothing shortened.
    Wide,
    /// Everything, for programs.
    Json,
    /// The same as YAML.
    Yaml,
}

/// `value` as JSON.
pub fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string_pretty(value).context("cannot write JSON")
}

/// `value` as YAML.
pub fn yaml(value: &impl Serialize) -> Result<String> {
    let text = serde_norway::to_string(value).context("cannot write YAML")?;
    Ok(text.trim_end().to_owned())
}

/// Prints a result. A reader that has seen enough, such as `head`, is no error.
pub fn print(text: &str) -> Result<ExitCode> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Says something beside the result, where it does not mix with it.
pub fn note(text: &str) {
    eprintln!("note: {text}");
}

/// An error with its causes. Most of ours quote their cause already.
pub fn describe(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once() {
        let io = || std::io::Error::other("disk on fire");
        let quoted = anyhow::Error::new(io()).context("cannot read x: disk on fire").context("configuration");
        assert_eq!(describe(&quoted), "configuration: cannot read x: disk on fire");
        assert_eq!(
            describe(&anyhow::Error::new(io()).context("cannot read x")),
            "cannot read x: disk on fire"
        );
    }
}
