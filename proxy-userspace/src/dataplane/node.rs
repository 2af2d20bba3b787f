//! The rows of the node. They are few, so each time they are compared with what the
//! kernel holds instead of being remembered.

use std::collections::HashMap;

use proxy_common::maps::settings::{
    Settings,
    flags::{NONE_EXEMPT, SERVICE_CIDRS},
};

use super::{FamilyMaps, MapAddr, MapError, MapStore, encode};
use crate::plan::NodePlan;

/// Makes the maps hold exactly the node's rows; returns how many differed.
pub(super) fn write(maps: &mut impl MapStore, plan: &NodePlan) -> Result<usize, MapError> {
    let held = maps.settings()?;
    let settings = settings(plan, &held);
    let mut count = 0;
    if held != settings {
        maps.put_settings(&settings)?;
        count += 1;
    }
    Ok(count + write_family(maps.v4(), plan)? + write_family(maps.v6(), plan)?)
}

/// The planned settings, with what stays of those that are in force.
fn settings(plan: &NodePlan, held: &Settings) -> Settings {
    // Whether cgroups are exempt is said by whoever writes them.
    let flags = plan.settings.flags | held.flags & NONE_EXEMPT;
    // Connections go on to find what they have found by it.
    let secret = if held.secret == [0; 2] { plan.settings.secret } else { held.secret };
    let settings = Settings { flags, secret, ..plan.settings };
    if plan.service_cidrs.is_some() {
        return settings;
    }
    Settings {
        flags: flags | held.flags & SERVICE_CIDRS,
        service_range_v4: held.service_range_v4,
        service_range_bits_v4: held.service_range_bits_v4,
        service_range_v6: held.service_range_v6,
        service_range_bits_v6: held.service_range_bits_v6,
        ..settings
    }
}

fn write_family<A: MapAddr>(maps: &mut impl FamilyMaps<A>, plan: &NodePlan) -> Result<usize, MapError> {
    Ok(write_addresses(maps, plan)? + write_service_cidrs(maps, plan)?)
}

fn write_addresses<A: MapAddr>(maps: &mut impl FamilyMaps<A>, plan: &NodePlan) -> Result<usize, MapError> {
    let wanted: HashMap<A, u32> =
        plan.addresses.iter().filter_map(|(addr, flags)| Some((A::from_ip(*addr)?, *flags))).collect();
    let actual: HashMap<A, u32> = maps.node_addresses()?.into_iter().collect();
    let put: Vec<_> = wanted.iter().filter(|(addr, flags)| actual.get(addr) != Some(flags)).collect();
    let put: Vec<_> = put.into_iter().map(|(addr, flags)| (*addr, *flags)).collect();
    let gone: Vec<_> = actual.keys().filter(|addr| !wanted.contains_key(addr)).copied().collect();
    if !put.is_empty() {
        maps.put_node_addresses(&put)?;
    }
    if !gone.is_empty() {
        maps.delete_node_addresses(&gone)?;
    }
    Ok(put.len() + gone.len())
}

fn write_service_cidrs<A: MapAddr>(
    maps: &mut impl FamilyMaps<A>,
    plan: &NodePlan,
) -> Result<usize, MapError> {
    let Some(wanted) = &plan.service_cidrs else { return Ok(0) };
    let wanted: Vec<_> = wanted.iter().filter_map(encode::prefix::<A>).collect();
    let actual = maps.service_cidrs()?;
    let put: Vec<_> = wanted.iter().filter(|prefix| !actual.contains(prefix)).copied().collect();
    let gone: Vec<_> = actual.iter().filter(|prefix| !wanted.contains(prefix)).copied().collect();
    if !put.is_empty() {
        maps.put_service_cidrs(&put)?;
    }
    if !gone.is_empty() {
        maps.delete_service_cidrs(&gone)?;
    }
    Ok(put.len() + gone.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::MemoryMaps;

    fn plan(secret: [u64; 2], flags: u32) -> NodePlan {
        let settings = Settings { secret, flags, ..Settings::default() };
        NodePlan { settings, addresses: [].into(), service_cidrs: Some([].into()) }
    }

    /// An agent that starts again draws another one, and finds connections by the old one.
    #[test]
    fn a_node_keeps_its_secret() {
        let mut maps = MemoryMaps::new(16);
        assert_eq!(write(&mut maps, &plan([1, 2], 0)).expect("memory"), 1);
        assert_eq!(write(&mut maps, &plan([3, 4], 0)).expect("memory"), 0);
        assert_eq!(write(&mut maps, &plan([3, 4], NONE_EXEMPT)).expect("memory"), 1);
        assert_eq!(maps.settings().expect("memory").secret, [1, 2]);
    }
}
