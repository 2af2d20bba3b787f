//! The answer for people.

use std::fmt::Write as _;

use super::answer::{Explanation, Step};

/// Backends in the short form; a service may have thousands.
const SHOWN: usize = 10;
/// Width of the first column.
const LABEL: usize = 12;

/// A paragraph with a label for each part; `wide` shows every candidate.
pub(super) fn render(answer: &Explanation, wide: bool) -> String {
    let mut text = Lines::default();
    let client = &answer.client;
    let device = client.device.as_ref().map(|device| format!(" by {device}")).unwrap_or_default();
    text.line(
        "connection",
        &format!("{} → {}/{}{device}", client.address, answer.destination, answer.protocol),
    );
    text.line("client", &format!("{}: {}", client.class, client.why));
    match &answer.frontend {
        Some(frontend) => {
            let kind = format!("{} of {}", frontend.kind, frontend.service);
            text.line("frontend", &format!("{kind}, {}:{}", frontend.address, frontend.port));
            text.line(
                "rule",
                &format!("for clients of class {}: {}", client.class, frontend.rule.join("; ")),
            );
            if let Some(admitted) = frontend.source_ranges_admit {
                text.line(
                    "ranges",
                    if admitted {
                        "the client is in the source ranges"
                    } else {
                        "the client is outside the source ranges"
                    },
                );
            }
            if frontend.affinity_seconds > 0 {
                text.line("affinity", &affinity(answer, frontend.affinity_seconds));
            }
        }
        None => {
            text.line("frontend", &format!("none: {}", answer.no_frontend.as_deref().unwrap_or_default()))
        }
    }
    if let Some(connection) = &answer.connection {
        let idle = connection.idle_seconds;
        text.line("existing", &format!("{}, last used {idle} s ago: it decides", connection.backend));
    }
    candidates(&mut text, answer, wide);
    for (place, step) in answer.steps.iter().enumerate() {
        text.line(if place == 0 { "steps" } else { "" }, &describe(step));
    }
    if let Some(source) = &answer.source {
        text.line("source", &format!("{}: {}", source.address, source.why));
    }
    let reason = answer.verdict.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    let outcome = answer.verdict.outcome.name();
    text.line("verdict", &format!("{outcome}{reason}: {}", answer.verdict.summary));
    text.0.trim_end().to_owned()
}

#[derive(Default)]
struct Lines(String);

impl Lines {
    fn line(&mut self, label: &str, text: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{label:<LABEL$}{text}");
    }
}

fn affinity(answer: &Explanation, seconds: u32) -> String {
    match &answer.affinity {
        Some(row) if row.counts => {
            let backend = row.backend.map(|backend| backend.to_string()).unwrap_or_default();
            format!("to {backend} for another {} s: it decides", row.left_seconds.unwrap_or_default())
        }
        Some(_) => format!("for {seconds} s; the client's last backend does not count any more"),
        None => format!("for {seconds} s; the client has none yet"),
    }
}

fn candidates(text: &mut Lines, answer: &Explanation, wide: bool) {
    let shown = if wide { answer.candidates.len() } else { SHOWN };
    if answer.frontend.is_some() && answer.candidates.is_empty() {
        text.line("candidates", "none");
    }
    // The chosen one is always seen.
    let (chosen, others): (Vec<_>, Vec<_>) = answer.candidates.iter().partition(|c| c.chosen);
    let mut seen: Vec<_> = chosen.into_iter().chain(others).take(shown).collect();
    seen.sort_by_key(|candidate| (candidate.address, candidate.backend_id));
    for (place, candidate) in seen.iter().enumerate() {
        let address = match candidate.address {
            Some(address) => address.to_string(),
            None => format!("?({})", candidate.backend_id),
        };
        let local = if candidate.local { " here" } else { "" };
        let chosen = if candidate.chosen { format!("  ← {}", how(answer)) } else { String::new() };
        let line = format!("{address:<24}{:>5.1} %{local}{chosen}", candidate.share * 100.0);
        text.line(if place == 0 { "candidates" } else { "" }, &line);
    }
    if answer.candidates.len() > shown {
        text.line("", &format!("… {} more", answer.candidates.len() - shown));
    }
}

/// What made it this one.
fn how(answer: &Explanation) -> &'static str {
    let frontend = answer.frontend.as_ref();
    match () {
        () if answer.connection.is_some() => "by the existing connection",
        () if answer.affinity.as_ref().is_some_and(|row| row.counts) => "by affinity",
        () if answer.candidates.len() == 1 => "the only one",
        () if frontend.is_some_and(|f| f.algorithm == "maglev") => "by the hash of client and port (Maglev)",
        () => "drawn this time; each connection draws anew",
    }
}

fn describe(step: &Step) -> String {
    let device = step.device.as_ref().map(|device| format!(" {device}")).unwrap_or_default();
    let packet = match step.packet {
        Some([from, to]) => format!(": {from} → {to}"),
        None => String::new(),
    };
    format!("{}{device}: {}{packet}", step.hook, step.does)
}
