//! The terminal: draws frames, reads keys, and is left as it was found, whatever ends it.

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event},
};
use tokio::signal::unix::{SignalKind, signal};

use super::{
    Source, draw,
    frame::Frame,
    state::{Action, State},
};

/// Longest time without a look at signals.
const LOOK: Duration = Duration::from_millis(200);

/// Shows frames until a key or a signal ends it.
pub(super) fn run(mut source: Source, mut state: State) -> Result<ExitCode> {
    let runtime = super::super::runtime()?;
    let ended = Arc::new(AtomicBool::new(false));
    for kind in [SignalKind::terminate(), SignalKind::hangup(), SignalKind::interrupt()] {
        let _guard = runtime.enter();
        let (mut signal, ended) = (signal(kind).context("cannot listen for signals")?, ended.clone());
        runtime.spawn(async move {
            signal.recv().await;
            ended.store(true, Ordering::Relaxed);
        });
    }
    // It has a panic leave the terminal as it was, too.
    let mut terminal = ratatui::try_init().context("no terminal to draw on; --batch and --once need none")?;
    let shown = show(&mut terminal, &mut source, &mut state, &ended);
    ratatui::restore();
    shown.map(|()| ExitCode::SUCCESS)
}

fn show(
    terminal: &mut DefaultTerminal,
    source: &mut Source,
    state: &mut State,
    ended: &AtomicBool,
) -> Result<()> {
    let mut frame = source.next().clone();
    let mut due = Instant::now() + source.interval;
    while !ended.load(Ordering::Relaxed) {
        draw(terminal, &frame, state)?;
        if event::poll(LOOK.min(due.saturating_duration_since(Instant::now()))).context("no keys")?
            && let Event::Key(key) = event::read().context("no keys")?
            && state.key(key) == Action::Quit
        {
            return Ok(());
        }
        if Instant::now() >= due {
            due = Instant::now() + source.interval;
            if !state.paused {
                frame = source.next().clone();
            }
        }
    }
    Ok(())
}

fn draw(terminal: &mut DefaultTerminal, frame: &Frame, state: &mut State) -> Result<()> {
    let drawn = terminal.draw(|canvas| {
        let area = canvas.area();
        draw::draw(frame, state, area, canvas.buffer_mut());
    });
    drawn.map(drop).context("cannot draw")
}
