//! `shunt top`: what goes on, as it goes on. A frame is made of two readings of the maps; on a
//! terminal keys choose what is drawn, without one frames are printed.

mod draw;
mod frame;
mod grid;
mod reading;
mod state;
mod terminal;

use std::{path::PathBuf, process::ExitCode, thread, time::Duration};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use ratatui::{buffer::Buffer, layout::Rect};

use self::{
    frame::{Frame, Tone},
    reading::Reading,
    state::{State, Tab},
};
use super::{BpffsArg, describe, output, stats};

pub(super) const EXAMPLES: &str = "Examples:
  shunt top
  shunt top --interval 5 --sort outbps --filter shop/
  shunt top --once --tab maps
  shunt top --batch 3 --service shop/web:http

Keys: q ends; s sorts by the next column, r the other way round; / asks for a filter, esc takes it back;
enter shows the backends of the service under the cursor, v all services; d shows what was refused, m how
full the maps are; p pauses. Rates are per second, BPS bytes. Socket LB translates connections when they are
opened; their packets are not seen, so that only CPS and OPENED tell of them.";

/// `shunt top`
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Time between frames in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = stats::interval)]
    pub interval: f64,
    /// Print one frame as text and end.
    #[arg(long, conflicts_with = "batch")]
    pub once: bool,
    /// Print so many frames as text and end; needs no terminal.
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u32).range(1..))]
    pub batch: Option<u32>,
    /// What to look at first.
    #[arg(long, default_value = "services")]
    pub tab: FirstTab,
    /// Look at the backends of this service port first.
    #[arg(long, value_name = "NAMESPACE/NAME[:PORT]", conflicts_with = "tab")]
    pub service: Option<String>,
    /// Only rows with this text.
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// Sort by this column.
    #[arg(long, value_name = "COLUMN")]
    pub sort: Option<String>,
    /// The other way round.
    #[arg(long)]
    pub reverse: bool,
    /// Where the maps are.
    #[command(flatten)]
    pub bpffs: BpffsArg,
}

/// What there is to look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum FirstTab {
    /// Rates of every service.
    #[default]
    Services,
    /// What was refused.
    Drops,
    /// How full the maps are.
    Maps,
}

/// Shows frames until somebody has seen enough.
pub fn run(args: &TopArgs) -> Result<ExitCode> {
    let state = first_state(args)?;
    let source = Source::new(args);
    match args.batch.or_else(|| args.once.then_some(1)) {
        Some(frames) => print(source, state, frames),
        None => terminal::run(source, state),
    }
}

fn first_state(args: &TopArgs) -> Result<State> {
    let tab = match (&args.service, args.tab) {
        (Some(service), _) => Tab::Backends(service.clone()),
        (None, FirstTab::Services) => Tab::Services,
        (None, FirstTab::Drops) => Tab::Drops,
        (None, FirstTab::Maps) => Tab::Maps,
    };
    let names = Frame::names(&tab);
    let position = |name: &String| match names.iter().position(|column| column.eq_ignore_ascii_case(name)) {
        Some(position) => Ok(position),
        None => bail!("there is no column {name} here; there are {}", names.join(", ").to_lowercase()),
    };
    let sort = args.sort.as_ref().map(position).transpose()?;
    let filter = args.filter.clone().unwrap_or_default();
    Ok(State { tab, sort, filter, reverse: args.reverse, ..State::default() })
}

/// Makes frames.
struct Source {
    bpffs: PathBuf,
    interval: Duration,
    last: Option<Reading>,
    frame: Frame,
}

impl Source {
    fn new(args: &TopArgs) -> Self {
        let interval = Duration::from_secs_f64(args.interval);
        Self { bpffs: args.bpffs.bpffs.clone(), interval, last: None, frame: Frame::default() }
    }

    /// The next frame. Where the maps cannot be read, for they may just be replaced, the last one
    /// stays and says so.
    fn next(&mut self) -> &Frame {
        match Reading::take(&self.bpffs) {
            Ok(now) => {
                self.frame = Frame::of(&now, self.last.as_ref().unwrap_or(&now));
                self.last = Some(now);
            }
            Err(error) => {
                self.frame.summary = format!("cannot read the maps, trying again: {}", describe(&error));
                self.frame.tone = Tone::Alarm;
            }
        }
        self.frame.title = format!("every {} s", self.interval.as_secs_f64());
        &self.frame
    }
}

/// Columns of a frame that no terminal limits.
const WIDTH: u16 = 200;

fn print(mut source: Source, mut state: State, frames: u32) -> Result<ExitCode> {
    // What cannot be read at all is an error here; nobody waits for it to come back.
    source.last = Some(Reading::take(&source.bpffs)?);
    for number in 0..frames {
        thread::sleep(source.interval);
        let frame = source.next();
        let rows = u16::try_from(frame.grid(&state.tab).rows.len()).unwrap_or(u16::MAX - draw::FRAME_LINES);
        let mut buffer = Buffer::empty(Rect::new(0, 0, WIDTH, rows.saturating_add(draw::FRAME_LINES)));
        let area = buffer.area;
        state.selected = usize::MAX;
        draw::draw(frame, &mut state, area, &mut buffer);
        let gap = if number + 1 < frames { "\n" } else { "" };
        output::print(&format!("{}{gap}", draw::text(&buffer)))?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests;
