//! The screen: a head, the rows of a tab, a foot. Drawn into a buffer, which a terminal or a file shows.

use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    style::{Modifier, Style},
    text::{Line, Span},
    widgets::{Cell, Paragraph, Row, StatefulWidget, Table, TableState, Widget},
};

use super::{
    super::list::column::Value,
    frame::{Frame, Tone},
    state::{State, Tab},
};

/// Lines that are not rows: two of the head, the names of the columns, the foot.
pub(super) const FRAME_LINES: u16 = 4;

const KEYS: &str =
    "q quit  s sort  r reverse  / filter  enter backends  v services  d drops  m maps  p pause";

/// Draws what `frame` holds as `state` wants it, and notes in `state` what was drawn.
pub(super) fn draw(frame: &Frame, state: &mut State, area: Rect, buffer: &mut Buffer) {
    let [title, summary, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(area);
    Paragraph::new(head(frame, state)).render(title, buffer);
    let style =
        if frame.tone == Tone::Alarm { Style::new().add_modifier(Modifier::BOLD) } else { Style::new() };
    Paragraph::new(Span::styled(frame.summary.as_str(), style)).render(summary, buffer);
    rows(frame, state, body, buffer);
    Paragraph::new(footer(state)).render(foot, buffer);
}

fn head(frame: &Frame, state: &State) -> Line<'static> {
    let tabs = [
        ("services", state.tab == Tab::Services),
        ("backends", matches!(state.tab, Tab::Backends(_))),
        ("drops", state.tab == Tab::Drops),
        ("maps", state.tab == Tab::Maps),
    ];
    let mut spans = vec![Span::raw(format!("shunt top  {}  ", frame.title))];
    for (name, is_shown) in tabs {
        let style = if is_shown { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        // Brackets, because a file has no colours.
        let text = if is_shown { format!("[{name}]") } else { format!(" {name} ") };
        spans.push(Span::styled(text, style));
    }
    if let Tab::Backends(service) = &state.tab {
        spans.push(Span::raw(format!("  of {service}")));
    }
    if state.paused {
        spans.push(Span::styled("  paused", Style::new().add_modifier(Modifier::BOLD)));
    }
    Line::from(spans)
}

fn footer(state: &State) -> String {
    match (&state.filter, state.typing) {
        (filter, true) => format!("/{filter}█"),
        (filter, false) if !filter.is_empty() => format!("only rows with {filter:?}; esc shows all   {KEYS}"),
        _ => KEYS.to_owned(),
    }
}

fn rows(frame: &Frame, state: &mut State, area: Rect, buffer: &mut Buffer) {
    let mut grid = frame.grid(&state.tab);
    if !state.filter.is_empty() {
        grid.filter(&state.filter);
    }
    let column = state.sort.unwrap_or_else(|| Frame::own_order(&state.tab));
    grid.sort(column, state.reverse);
    state.drawn = (grid.rows.len(), grid.header.len());
    state.selected = state.selected.min(grid.rows.len().saturating_sub(1));
    state.name = grid.rows.get(state.selected).and_then(|row| row.first()).map(ToString::to_string);
    let widths = (0..grid.header.len()).map(|index| {
        let cells =
            grid.rows.iter().filter_map(|row| row.get(index)).map(|value| value.to_string().chars().count());
        let widest = cells.chain([grid.header.get(index).map_or(0, |name| name.len() + 1)]).max();
        Constraint::Length(u16::try_from(widest.unwrap_or(0)).unwrap_or(u16::MAX))
    });
    let header = grid.header.iter().enumerate().map(|(index, name)| {
        let arrow = match (index == column, state.reverse) {
            (true, false) => "▾",
            (true, true) => "▴",
            _ => "",
        };
        Cell::from(format!("{name}{arrow}"))
    });
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let table = Table::new(grid.rows.iter().map(|row| Row::new(row.iter().map(cell))), widths)
        .header(Row::new(header).style(bold))
        .column_spacing(2)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut cursor = TableState::new().with_selected(Some(state.selected).filter(|_| !grid.rows.is_empty()));
    StatefulWidget::render(table, area, buffer, &mut cursor);
}

fn cell(value: &Value) -> Cell<'static> {
    Cell::from(value.to_string())
}

/// A buffer as text, without trailing blanks.
pub(super) fn text(buffer: &Buffer) -> String {
    let Rect { width, height, .. } = buffer.area;
    let line = |y: u16| {
        let cells: String =
            (0..width).filter_map(|x| buffer.cell((x, y))).map(|cell| cell.symbol()).collect();
        cells.trim_end().to_owned()
    };
    (0..height).map(line).collect::<Vec<_>>().join("\n")
}
