//! Commands in the documents: whatever stands in a block of `sh` and calls `shunt` must be such
//! that the program takes it. The node tier runs those that only look.

use anyhow::{Result, ensure};
use clap::{Parser, error::ErrorKind};
use proxy_userspace::cli::Cli;
use tests::documents::all;

#[test]
fn the_program_takes_every_command() -> Result<()> {
    let (mut looked_at, mut wrong) = (0, Vec::new());
    for page in all()? {
        for (line, call) in page.calls()? {
            looked_at += 1;
            if let Err(error) = Cli::try_parse_from(&call)
                && ![ErrorKind::DisplayHelp, ErrorKind::DisplayVersion].contains(&error.kind())
            {
                wrong.push(format!("{}: {line}\n{error}", page.path.display()));
            }
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    ensure!(looked_at > 20, "only {looked_at} commands were found");
    Ok(())
}

/// Within a sentence a command may lack what it needs, but not have what it does not know.
#[test]
fn the_program_knows_every_command_in_a_sentence() -> Result<()> {
    const ENOUGH: [ErrorKind; 5] = [
        ErrorKind::DisplayHelp,
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
        ErrorKind::DisplayVersion,
        ErrorKind::MissingRequiredArgument,
        ErrorKind::MissingSubcommand,
    ];
    let mut wrong = Vec::new();
    for page in all()? {
        for span in page.spans.iter().filter(|span| span.starts_with("shunt ") && !span.contains(['|', '…']))
        {
            let words = shell_words::split(span)?;
            // FILE stands for a name, and need not be one that is taken.
            let value = |word: &String| word.rsplit('=').next().unwrap_or_default().to_owned();
            let is_name = |word: &str| word.len() > 1 && word.bytes().all(|b| b.is_ascii_uppercase());
            let stands_for = |word: &String| is_name(&value(word));
            let is_value = words.iter().any(stands_for);
            if let Err(error) = Cli::try_parse_from(&words)
                && !ENOUGH.contains(&error.kind())
                && !(is_value && error.kind() == ErrorKind::ValueValidation)
            {
                wrong.push(format!("{}: {span}\n{error}", page.path.display()));
            }
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}
