//! What is proved by trying all inputs: 16-bit arithmetic, in which a solver is lost among carries, and bits of which there
//! are few. Each check says what it proves, and returns an input with which it does not hold.
//!
//! `exhaustive [NAME...]` runs the checks whose names contain one of these; all without. Status: 0 all proved, 1 something
//! is refuted, 3 no check has such a name.

mod checksum;
mod crc32c;

use std::process::ExitCode;
use std::time::Instant;

const NONE_CHOSEN: u8 = 3;

/// What is proved.
struct Check {
    name: &'static str,
    /// The property, and what is assumed.
    about: &'static str,
    /// An input with which it does not hold, if there is one.
    refute: fn() -> Option<String>,
}

fn main() -> ExitCode {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let is_chosen = |check: &&Check| names.is_empty() || names.iter().any(|name| check.name.contains(name));
    let (mut proved, mut refuted) = (0, 0);
    for check in checksum::CHECKS.iter().chain(crc32c::CHECKS).filter(is_chosen) {
        let begin = Instant::now();
        let refutation = (check.refute)();
        let verdict = if refutation.is_none() { "proved" } else { "REFUTED" };
        println!("{verdict:9} {:40} all inputs {:8.1} s", check.name, begin.elapsed().as_secs_f64());
        check.about.lines().for_each(|line| println!("          {}", line.trim()));
        match refutation {
            None => proved += 1,
            Some(input) => {
                refuted += 1;
                println!("          with {input}");
            }
        }
    }
    if proved + refuted == 0 {
        return ExitCode::from(NONE_CHOSEN);
    }
    println!("{proved} proved, {refuted} not");
    if refuted == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
