//! Histories of changes, failures and restarts, whatever they are.

use proptest::prelude::*;

use super::*;

/// A step of a random history.
#[derive(Clone, Debug)]
enum Step {
    Update {
        service: usize,
        address: u8,
        v4: Option<Vec<u8>>,
        v6: Option<Vec<u8>>,
        lingering: Vec<u8>,
        hash: bool,
    },
    Remove(usize),
    Apply,
    Restart,
    Fail {
        family: Option<Family>,
        fault: Fault,
    },
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn step() -> impl Strategy<Value = Step> {
    let numbers = || prop::option::of(prop::collection::btree_set(1u8..9, 0..5).prop_map(Vec::from_iter));
    let family = prop_oneof![Just(None), Just(Some(V4)), Just(Some(V6))];
    prop_oneof![
        6 => (0usize..4, 1u8..6, numbers(), numbers(), prop::collection::vec(1u8..9, 0..3), any::<bool>()).prop_map(
            |(service, address, v4, v6, lingering, hash)| Step::Update { service, address, v4, v6, lingering, hash }),
        2 => (0usize..4).prop_map(Step::Remove),
        4 => Just(Step::Apply),
        1 => Just(Step::Restart),
        3 => (family, 0u32..6, 0usize..4).prop_map(
            |(family, after, rows)| Step::Fail { family, fault: Fault { after, rows } }),
    ]
}

/// Rows that no history needs more of.
const ENOUGH: u32 = 48;

/// A history and the plans it leads to. Services compete for a few addresses; the last to
/// ask for one has it, and the others go without any.
struct History {
    maps: MemoryMaps,
    reconciler: Reconciler,
    plans: BTreeMap<usize, Vec<PortPlan>>,
}

impl History {
    fn run(steps: &[Step]) -> Self {
        Self::run_in(ENOUGH, steps)
    }

    /// In maps with room for so many rows each.
    fn run_in(capacity: u32, steps: &[Step]) -> Self {
        let (maps, reconciler) = fresh(capacity);
        let mut history = Self { maps, reconciler, plans: BTreeMap::new() };
        steps.iter().for_each(|step| history.step(step));
        history
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Update { service, address, v4, v6, lingering: rest, hash } => {
                self.take_address_from_others(*service, *address);
                let made = [(V4, v4), (V6, v6)].map(|(family, numbers)| {
                    let plan = plan(NAMES[*service], family, *address, numbers.as_ref()?);
                    let plan = lingering(plan, rest);
                    Some(if *hash { hashed(plan) } else { plan })
                });
                let plans: Vec<_> = made.into_iter().flatten().collect();
                self.reconciler.update(name(NAMES[*service]), plans.clone());
                self.plans.insert(*service, plans);
            }
            Step::Remove(service) => {
                self.reconciler.remove(name(NAMES[*service]));
                self.plans.remove(service);
            }
            Step::Apply => drop(self.reconciler.apply(&mut self.maps)),
            Step::Restart => {
                self.reconciler = Reconciler::adopt(&mut self.maps).expect("readable maps");
                for (service, plans) in &self.plans {
                    self.reconciler.update(name(NAMES[*service]), plans.clone());
                }
                self.reconciler.prune();
            }
            Step::Fail { family: None, fault } => self.maps.faults.next.push(*fault),
            Step::Fail { family: Some(V4), fault } => self.maps.v4.faults.next.push(*fault),
            Step::Fail { family: Some(V6), fault } => self.maps.v6.faults.next.push(*fault),
        }
    }

    fn take_address_from_others(&mut self, service: usize, address: u8) {
        let addrs = [V4, V6].map(|family| plan("", family, address, &[]).frontends[0].addr);
        let has = |plans: &[PortPlan]| plans.iter().any(|plan| addrs.contains(&plan.frontends[0].addr));
        for (other, plans) in self.plans.iter_mut().filter(|(other, plans)| **other != service && has(plans))
        {
            plans.clear();
            self.reconciler.update(name(NAMES[*other]), Vec::new());
        }
    }

    fn settle(&mut self) {
        self.maps.faults.next.clear();
        self.maps.v4.faults.next.clear();
        self.maps.v6.faults.next.clear();
        self.reconciler.apply(&mut self.maps);
    }

    fn wanted(&self) -> Meaning {
        wanted(&self.plans.values().flatten().cloned().collect::<Vec<_>>())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Whatever happened before, failures and restarts included, the maps end up as a
    /// first start with the last plans would have them.
    #[test]
    fn incremental_equals_from_scratch(steps in prop::collection::vec(step(), 1..40)) {
        let mut history = History::run(&steps);
        history.settle();
        prop_assert_eq!(history.reconciler.pending_count(), 0);
        prop_assert_eq!(meaning(&history.maps), history.wanted());
        let rows = history.maps.rows_written();
        prop_assert_eq!(history.reconciler.full_sync(&mut history.maps).expect("memory").total(), 0);
        prop_assert_eq!(history.maps.rows_written(), rows);
    }

    /// However little room there is: what finds some is served as planned, and the rest waits for nothing else.
    #[test]
    fn who_finds_no_room_concerns_nobody_else(
        capacity in 2..ENOUGH,
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut history = History::run_in(capacity, &steps);
        history.settle();
        prop_assert_eq!(history.reconciler.pending_count(), 0);
        let refused: Vec<_> = history.reconciler.refused().map(|(service, _)| service.clone()).collect();
        history.plans.retain(|service, _| !refused.contains(&name(NAMES[*service])));
        // What a write that failed has left of a Service that then found no room is put right here.
        history.reconciler.full_sync(&mut history.maps).expect("memory");
        prop_assert_eq!(history.reconciler.full_sync(&mut history.maps).expect("memory").total(), 0);
        let actual = meaning(&history.maps);
        for (frontend, leads) in history.wanted() {
            prop_assert_eq!(actual.get(&frontend), Some(&leads), "{}, refused: {:?}", frontend, refused);
        }
    }

    /// At every instant each frontend leads to rows that exist, and to those of one plan,
    /// an old or a new one. Between two plans the source ranges of both are open.
    #[test]
    fn no_half_state_is_ever_visible(
        capacity in 2..ENOUGH,
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut history = History::run_in(capacity, &[]);
        let mut planned: Vec<Meaning> = vec![Meaning::new()];
        for step in &steps {
            history.step(step);
            planned.push(history.wanted());
            for (frontend, actual) in meaning(&history.maps) {
                let is = |plan: &Leads| {
                    let source_ranges = plan.source_ranges.clone();
                    let open = source_ranges.is_subset(&actual.source_ranges);
                    open && Leads { source_ranges, ..actual.clone() } == *plan
                };
                let known = planned.iter().any(|meaning| meaning.get(&frontend).is_some_and(is));
                prop_assert!(known, "{frontend} leads to {actual:?}, which was never planned");
            }
        }
    }

    /// What is served, and goes on to be wanted by whomever, is never absent, whatever fails.
    #[test]
    fn what_stays_wanted_is_never_absent(
        chunk in 1..4usize,
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut history = History::run(&[]);
        let mut served: Vec<String> = Vec::new();
        for step in &steps {
            history.step(step);
            history.reconciler.chunk = chunk;
            let (present, wanted) = (meaning(&history.maps), history.wanted());
            for frontend in served.iter().filter(|frontend| wanted.contains_key(*frontend)) {
                prop_assert!(present.contains_key(frontend), "{frontend} is gone, at {step:?}");
            }
            served = present.into_keys().collect();
            served.retain(|frontend| wanted.contains_key(frontend));
        }
    }

    /// A program that has read a frontend finds its backends, however long it takes.
    #[test]
    fn nothing_is_used_again_while_it_is_read(
        capacity in 2..ENOUGH,
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut history = History::run_in(capacity, &[]);
        history.maps.v4.readers = Some(Readers::default());
        history.maps.v6.readers = Some(Readers::default());
        steps.iter().for_each(|step| history.step(step));
        for readers in [history.maps.v4.readers, history.maps.v6.readers].into_iter().flatten() {
            prop_assert_eq!(readers.misled, [""; 0]);
        }
    }

    /// When everything goes, nothing is left behind.
    #[test]
    fn nothing_leaks(capacity in 2..ENOUGH, steps in prop::collection::vec(step(), 1..40)) {
        let mut history = History::run_in(capacity, &steps);
        for service in 0..NAMES.len() {
            history.step(&Step::Remove(service));
        }
        history.settle();
        prop_assert_eq!(leftovers(&history.maps), 0);
        prop_assert!(history.maps.services.is_empty() && history.maps.v4.frontends.is_empty());
        prop_assert_eq!(history.reconciler.v4.ranges.used(), 0);
        prop_assert_eq!(history.reconciler.v4.backends.len(), 0);
        prop_assert_eq!(history.reconciler.services.len(), 0);
    }
}
