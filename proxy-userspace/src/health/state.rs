//! Whether changes reach the kernel in time, whether the agent itself goes on, and whether
//! the node is there to stay. Reads no clock: every question comes with its time.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::model::Family;

/// What the agent has told so far.
#[derive(Debug)]
pub struct State {
    patience: Duration,
    families: [Progress; 2],
    /// The agent's loop last came round.
    beat: Option<Instant>,
    eligible: bool,
    programs: Programs,
    /// Programs are missing since then.
    missing_since: Option<Instant>,
}

/// Whether the programs are where they have to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Programs {
    /// As far as is known.
    Attached,
    /// Some are not, which the agent goes on trying.
    Missing,
    /// Nor are the maps: another start makes them anew.
    Gone,
}

/// What keeps a node from serving, whatever the families do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The agent's loop has stopped coming round.
    Hangs,
    /// [`Programs::Missing`], for longer than it takes to see a device go.
    Missing,
    /// [`Programs::Gone`].
    Gone,
}

impl Trouble {
    /// What it is, and what to do.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Hangs => "the agent's main loop hangs",
            Self::Missing => "programs are not attached; the agent's log says which and why",
            Self::Gone => "somebody has removed the maps and programs; a restart makes them anew",
        }
    }
}

/// A device that is just going refuses programs, and the next look tells.
const MISSING: Duration = Duration::from_secs(5);

/// The agent's loop comes round every second, however little there is to do; yet a single
/// round may write every row there is, and that must not look like a hang.
const SHORTEST_HANG: Duration = Duration::from_secs(15);

/// How far one family is.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// The oldest change that is not written.
    waiting_since: Option<Instant>,
    /// Everything was written then.
    updated: Option<Timestamp>,
}

/// The state at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The moment.
    pub now: Timestamp,
    /// No family is late, the agent goes on, and the programs are attached.
    pub healthy: bool,
    /// The agent does what it can: another start would not help.
    pub alive: bool,
    /// What is wrong, where that is no family's fault.
    pub trouble: Option<Trouble>,
    /// The node is not about to go.
    pub eligible: bool,
    /// IPv4 and IPv6.
    pub families: [FamilyReport; 2],
}

/// One family at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilyReport {
    /// Its changes are written, or not late yet.
    pub healthy: bool,
    /// When everything was last written, if it ever was.
    pub updated: Option<Timestamp>,
}

impl State {
    /// Healthy, for nothing has happened yet. A change is late after `patience`.
    pub fn new(patience: Duration) -> Self {
        Self {
            patience,
            families: [Progress::default(); 2],
            beat: None,
            eligible: true,
            programs: Programs::Attached,
            missing_since: None,
        }
    }

    /// A change is late after `patience` from here on.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// A change waits, perhaps after others.
    pub fn queued(&mut self, family: Family, now: Instant) {
        self.families[family as usize].waiting_since.get_or_insert(now);
    }

    /// The agent's loop comes round. Before the first time it is not missed.
    pub fn beat(&mut self, now: Instant) {
        self.beat = Some(now);
    }

    /// Everything that waited is written.
    pub fn updated(&mut self, family: Family, now: Timestamp) {
        self.families[family as usize] = Progress { waiting_since: None, updated: Some(now) };
    }

    /// Notes whether the node may be sent new connections from outside. True if that is new.
    pub fn set_eligible(&mut self, eligible: bool) -> bool {
        std::mem::replace(&mut self.eligible, eligible) != eligible
    }

    /// Notes whether the programs are where they have to be.
    pub fn set_programs(&mut self, programs: Programs, now: Instant) {
        self.programs = programs;
        self.missing_since = (programs != Programs::Attached).then(|| self.missing_since.unwrap_or(now));
    }

    /// No family is late, the agent goes on, and the programs are attached.
    pub fn is_healthy(&self, now: Instant) -> bool {
        self.trouble(now).is_none() && self.all_in_time(now)
    }

    fn all_in_time(&self, now: Instant) -> bool {
        self.families.iter().all(|progress| self.in_time(progress, now))
    }

    fn trouble(&self, now: Instant) -> Option<Trouble> {
        let missing = self.missing_since.is_some_and(|since| now.saturating_duration_since(since) >= MISSING);
        match self.programs {
            _ if self.hangs(now) => Some(Trouble::Hangs),
            Programs::Gone => Some(Trouble::Gone),
            Programs::Missing if missing => Some(Trouble::Missing),
            Programs::Missing | Programs::Attached => None,
        }
    }

    fn hangs(&self, now: Instant) -> bool {
        let limit = self.patience.max(SHORTEST_HANG);
        self.beat.is_some_and(|beat| now.saturating_duration_since(beat) > limit)
    }

    /// Everything there is to tell.
    pub fn report(&self, now: Instant, wall: Timestamp) -> Report {
        let families = self.families.map(|progress| FamilyReport {
            healthy: self.in_time(&progress, now),
            updated: progress.updated,
        });
        let trouble = self.trouble(now);
        let alive = matches!(trouble, None | Some(Trouble::Missing)) && self.all_in_time(now);
        let healthy = self.is_healthy(now);
        Report { now: wall, healthy, alive, trouble, eligible: self.eligible, families }
    }

    fn in_time(&self, progress: &Progress, now: Instant) -> bool {
        progress.waiting_since.is_none_or(|since| now.saturating_duration_since(since) < self.patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Runs events such as `4q` (a change of IPv4 is queued) and `6u` (IPv6 is written), each
    /// after so many seconds, and asks for the health of both families.
    fn check(events: &[(u64, &str)], asked: u64, expected: [bool; 2]) {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut state = State::new(PATIENCE);
        for (seconds, event) in events {
            let family = if event.starts_with('4') { Family::V4 } else { Family::V6 };
            match event.ends_with('q') {
                true => state.queued(family, at(*seconds)),
                false => state.updated(family, Timestamp::UNIX_EPOCH),
            }
        }
        let report = state.report(at(asked), Timestamp::UNIX_EPOCH);
        assert_eq!(report.families.map(|family| family.healthy), expected, "{events:?} at {asked}");
        assert_eq!(report.healthy, expected == [true, true]);
        assert_eq!(report.healthy, state.is_healthy(at(asked)));
    }

    #[test]
    fn late_is_what_waits_longer_than_the_patience() {
        check(&[], 1_000, [true, true]);
        check(&[(0, "4q")], 59, [true, true]);
        check(&[(0, "4q")], 60, [false, true]);
        check(&[(0, "4q"), (50, "4q")], 60, [false, true]);
        check(&[(0, "4q"), (10, "4u"), (50, "4q")], 60, [true, true]);
        check(&[(0, "4q"), (0, "6q"), (1, "4u")], 60, [true, false]);
        check(&[(0, "6q"), (100, "6u")], 100, [true, true]);
    }

    #[test]
    fn a_loop_that_stops_is_noticed() {
        let start = Instant::now();
        let mut state = State::new(PATIENCE);
        assert!(state.is_healthy(start + Duration::from_secs(1_000)));
        state.beat(start);
        assert!(state.is_healthy(start + PATIENCE));
        let late = state.report(start + PATIENCE + Duration::from_secs(1), Timestamp::UNIX_EPOCH);
        assert!(
            late.trouble == Some(Trouble::Hangs)
                && !late.alive
                && !late.healthy
                && late.families.iter().all(|family| family.healthy)
        );
        state.beat(start + Duration::from_secs(100));
        assert!(state.is_healthy(start + Duration::from_secs(101)));
        let mut quick = State::new(Duration::from_secs(2));
        quick.beat(start);
        assert!(quick.is_healthy(start + SHORTEST_HANG));
        assert!(!quick.is_healthy(start + SHORTEST_HANG + Duration::from_secs(1)));
    }

    #[test]
    fn programs_that_are_missing_for_long_are_told() {
        let start = Instant::now();
        let mut state = State::new(PATIENCE);
        let look = |state: &State, seconds| {
            let report = state.report(start + Duration::from_secs(seconds), Timestamp::UNIX_EPOCH);
            assert_eq!(report.healthy, report.trouble.is_none());
            (report.healthy, report.alive)
        };
        state.set_programs(Programs::Missing, start);
        assert_eq!(look(&state, 4), (true, true));
        state.set_programs(Programs::Missing, start + Duration::from_secs(4));
        assert_eq!(look(&state, 5), (false, true));
        state.set_programs(Programs::Attached, start + Duration::from_secs(6));
        assert_eq!(look(&state, 100), (true, true));
        state.set_programs(Programs::Missing, start + Duration::from_secs(100));
        assert_eq!(look(&state, 104), (true, true));
        state.set_programs(Programs::Gone, start + Duration::from_secs(101));
        assert_eq!(look(&state, 101), (false, false));
    }

    #[test]
    fn a_change_of_eligibility_is_told_once() {
        let mut state = State::new(PATIENCE);
        let eligible = |state: &State| state.report(Instant::now(), Timestamp::UNIX_EPOCH).eligible;
        assert!(eligible(&state) && !state.set_eligible(true));
        assert!(state.set_eligible(false) && !state.set_eligible(false));
        assert!(!eligible(&state));
    }
}
