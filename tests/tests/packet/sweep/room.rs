//! Two who sweep at once on one CPU.

use std::iter;

use aya::{
    maps::{Map, MapData, MapInfo, PerCpuArray, PerCpuValues},
    programs::{
        links::{FdLink, PinnedLink},
        loaded_programs,
    },
    util::nr_cpus,
};
use proxy_common::{
    Ip4,
    flow::Connection,
    maps::{
        conntrack::{CtEntry, CtKey},
        sweep::SweptConnection,
    },
};
use proxy_userspace::dataplane::{FamilyMaps as _, MapStore as _, Reconciler, Swept, Timeouts};

use super::{clock, sweep};
use crate::{
    bench::{Bench, SERVICE_PORT, plans},
    frames::{Flow, SYN},
};

/// Of a room as the programs have it. Its first word says whether it is taken.
const SIZE: usize =
    size_of::<(u64, [CtEntry<Ip4>; 3], u64, [CtKey<Ip4>; 2], Connection<Ip4>, SweptConnection<Ip4>)>();
type Rooms = PerCpuArray<MapData, [u8; SIZE]>;

fn rooms(bench: &Bench) -> Rooms {
    let link = FdLink::from(PinnedLink::from_pin(bench.pins.link("sweep_v4")).expect("the iterator"));
    let id = link.info().expect("its program").program_id();
    let mut programs = loaded_programs().map(|program| program.expect("programs"));
    let program = programs.find(|program| program.id() == id).expect("the program");
    let maps = program.map_ids().expect("its maps").expect("the kernel tells them");
    let mut maps = maps.into_iter().map(|id| MapInfo::from_id(id).expect("a map"));
    let room = maps.find(|map| map.name_as_str() == Some("SWEEP_ROOM_V4")).expect("the rooms");
    let data = MapData::from_id(room.id()).expect("the rooms");
    Rooms::try_from(Map::from_map_data(data).expect("a map")).expect("of this size")
}

fn set_taken(rooms: &mut Rooms, taken: u8) {
    let mut room = [0; SIZE];
    room[0] = taken;
    let all = PerCpuValues::try_from(iter::repeat_n(room, nr_cpus().expect("CPUs")).collect::<Vec<_>>());
    rooms.set(0, all.expect("one for each CPU"), 0).expect("a write");
}

/// Who interrupts another waits for it, and gives up at last. No row is judged by what the other has put there.
#[test]
fn a_room_that_is_taken_is_left_alone() {
    let mut bench = Bench::new();
    let reconciler = Reconciler::adopt(&mut bench.maps).expect("readable maps");
    let plan = plans().into_iter().find(|plan| plan.pod.is_ipv4()).expect("a plan of IPv4");
    bench.enters(Flow::tcp((plan.pod, 1), (plan.cluster_ip, SERVICE_PORT)), SYN);
    let mut rooms = rooms(&bench);
    set_taken(&mut rooms, 1);
    let long_after = clock() + 200_000_000_000;
    let mut shown = 0;
    let failed = bench.maps.v4().sweep(long_after, Timeouts::default().into(), &mut |_| shown += 1);
    assert!(failed.is_err_and(|error| error.to_string().contains("temporarily unavailable")), "it is taken");
    assert_eq!(shown, 0);
    set_taken(&mut rooms, 0);
    assert_eq!(sweep(&mut bench, &reconciler, 0).0, Swept::default(), "nothing has gone");
    assert_eq!(sweep(&mut bench, &reconciler, 200).0, Swept { expired: 1, ..Swept::default() });
}
