//! What the keys do. A value that keys change and that drawing reads: no terminal here.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// What is looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Tab {
    /// Rates of every service.
    #[default]
    Services,
    /// Rates of the backends of one service.
    Backends(String),
    /// What was refused.
    Drops,
    /// How full the maps are.
    Maps,
}

/// What the user has chosen.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// What is looked at.
    pub tab: Tab,
    /// The column rows are sorted by; none for that of the tab.
    pub sort: Option<usize>,
    /// The other way round.
    pub reverse: bool,
    /// Only rows with this text.
    pub filter: String,
    /// The filter is being typed.
    pub typing: bool,
    /// Nothing moves.
    pub paused: bool,
    /// The row under the cursor.
    pub selected: usize,
    /// Rows on the screen, and columns, as they were last drawn.
    pub drawn: (usize, usize),
    /// The name of the selected row, as it was last drawn.
    pub name: Option<String>,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Draw anew.
    Draw,
    /// End.
    Quit,
}

impl State {
    /// Takes a key.
    pub(super) fn key(&mut self, key: KeyEvent) -> Action {
        if key.kind == KeyEventKind::Release {
            return Action::Draw;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Action::Quit;
        }
        if self.typing {
            self.type_filter(key.code);
            return Action::Draw;
        }
        match key.code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Char('s') => self.sort_by_next(),
            KeyCode::Char('r') => self.reverse = !self.reverse,
            KeyCode::Char('/') => (self.typing, self.filter) = (true, String::new()),
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('v') => self.show(Tab::Services),
            KeyCode::Char('d') => self.show(Tab::Drops),
            KeyCode::Char('m') => self.show(Tab::Maps),
            KeyCode::Enter => self.enter(),
            KeyCode::Esc | KeyCode::Backspace => self.back(),
            KeyCode::Down | KeyCode::Char('j') => self.go(1),
            KeyCode::Up | KeyCode::Char('k') => self.go(-1),
            KeyCode::PageDown => self.go(10),
            KeyCode::PageUp => self.go(-10),
            KeyCode::Home => self.selected = 0,
            KeyCode::End => self.selected = self.drawn.0.saturating_sub(1),
            _ => (),
        }
        Action::Draw
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => (self.typing, self.filter) = (false, String::new()),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => (),
        }
        self.selected = 0;
    }

    /// The columns in turn, and then that of the tab again.
    fn sort_by_next(&mut self) {
        let next = self.sort.map_or(0, |column| column + 1);
        self.sort = Some(next).filter(|column| *column < self.drawn.1);
    }

    /// Looks at something else.
    pub(super) fn show(&mut self, tab: Tab) {
        (self.tab, self.sort, self.reverse, self.selected) = (tab, None, false, 0);
        self.filter.clear();
    }

    fn enter(&mut self) {
        if let (Tab::Services, Some(name)) = (&self.tab, self.name.take()) {
            self.show(Tab::Backends(name));
        }
    }

    fn back(&mut self) {
        if !self.filter.is_empty() {
            self.filter.clear();
        } else if self.tab != Tab::Services {
            self.show(Tab::Services);
        }
    }

    fn go(&mut self, rows: isize) {
        self.selected = self.selected.saturating_add_signed(rows).min(self.drawn.0.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(state: &mut State, keys: &str) -> Action {
        keys.chars().fold(Action::Draw, |_, key| {
            let code = match key {
                '⏎' => KeyCode::Enter,
                '⎋' => KeyCode::Esc,
                '↓' => KeyCode::Down,
                '↑' => KeyCode::Up,
                key => KeyCode::Char(key),
            };
            state.key(KeyEvent::new(code, KeyModifiers::NONE))
        })
    }

    fn state() -> State {
        State { drawn: (3, 2), name: Some("demo/web:http".into()), ..State::default() }
    }

    #[test]
    fn q_and_control_c_end_it() {
        assert_eq!(press(&mut state(), "x"), Action::Draw);
        assert_eq!(press(&mut state(), "q"), Action::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(state().key(interrupt), Action::Quit);
        let mut typing = state();
        assert_eq!(press(&mut typing, "/q"), Action::Draw);
        assert_eq!(typing.key(interrupt), Action::Quit);
    }

    #[test]
    fn enter_leads_to_the_backends_and_escape_back() {
        let mut state = state();
        press(&mut state, "⏎");
        assert_eq!(state.tab, Tab::Backends("demo/web:http".into()));
        press(&mut state, "⏎⎋");
        assert_eq!(state.tab, Tab::Services);
        press(&mut state, "d⏎");
        assert_eq!(state.tab, Tab::Drops);
        press(&mut state, "m");
        assert_eq!(state.tab, Tab::Maps);
    }

    #[test]
    fn columns_are_sorted_by_in_turn() {
        let mut state = state();
        let sorted: Vec<_> = (0..4)
            .map(|_| {
                press(&mut state, "s");
                state.sort
            })
            .collect();
        assert_eq!(sorted, [Some(0), Some(1), None, Some(0)]);
        press(&mut state, "r");
        assert!(state.reverse);
    }

    #[test]
    fn a_filter_is_typed_and_taken_back() {
        let mut state = state();
        press(&mut state, "/weq");
        assert_eq!((state.filter.as_str(), state.typing), ("weq", true));
        press(&mut state, "⏎");
        assert!(!state.typing);
        press(&mut state, "⎋");
        assert!(state.filter.is_empty());
    }

    #[test]
    fn the_cursor_stays_on_the_rows() {
        let mut state = state();
        press(&mut state, "↓↓↓↓");
        assert_eq!(state.selected, 2);
        press(&mut state, "↑↑↑↑");
        assert_eq!(state.selected, 0);
    }
}
