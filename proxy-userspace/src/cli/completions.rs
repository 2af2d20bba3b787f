//! `shunt completions`: what a shell needs to complete our command lines.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};

use super::Cli;

pub(super) const EXAMPLES: &str = "Examples:
  shunt completions bash > /etc/bash_completion.d/shunt
  shunt completions zsh > \"${fpath[1]}/_shunt\"
  shunt completions fish > ~/.config/fish/completions/shunt.fish";

/// `shunt completions`
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell.
    pub shell: Shell,
}

/// Prints the script.
pub fn run(args: &CompletionsArgs) -> Result<ExitCode> {
    super::print(script(args.shell).trim_end())
}

fn script(shell: Shell) -> String {
    let mut text = Vec::new();
    generate(shell, &mut Cli::command(), "shunt", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_shell_knows_every_command() {
        for shell in Shell::value_variants() {
            let script = script(*shell);
            for command in Cli::command().get_subcommands() {
                assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
        }
    }
}
