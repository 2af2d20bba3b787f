//! What the agent has written of devices.

use proxy_common::{
    Ip4,
    maps::devices::{Device, SNAT_ADDRESSES},
};

use super::{DEVICES, Tables, flows::copy_words, read_row, room};
use crate::global::{global_by_family, global_functions};

/// A device but for its addresses: the fields of [`Device`] that have the same names.
#[repr(C)]
pub struct DeviceFacts {
    pub flags: u32,
    pub mac: [u8; 6],
    pub vlan: u16,
    pub parent: u32,
}

/// A copy of what is known of a device. It is good until the next is copied.
#[inline(always)]
pub fn device(ifindex: u32) -> Option<&'static DeviceFacts> {
    if shunt_copy_device(ifindex) == UNKNOWN { None } else { facts().map(|copy| &*copy) }
}

/// A copy of the addresses that connections which leave by a device are given, and how many they are; nothing if there is
/// no such device. It is good until the next is copied.
#[inline(always)]
pub fn snat_addresses<A: Tables>(ifindex: u32) -> Option<(&'static [A; SNAT_ADDRESSES], u32)> {
    let count = copy_addresses::<A>(ifindex);
    if count == UNKNOWN { None } else { Some((room::snat_addresses()?, count)) }
}

/// There is no such device.
const UNKNOWN: u32 = u32::MAX;

global_functions! {
    fn shunt_copy_device(ifindex: u32) = copy_facts;
}

global_by_family! {
    fn copy_addresses(ifindex: u32) = copy_in_room as shunt_copy_snat4, shunt_copy_snat6;
}

/// They have no family, and lie in the room of IPv4.
#[inline(always)]
fn facts() -> Option<&'static mut DeviceFacts> {
    room::facts::<Ip4>()
}

#[inline(always)]
fn copy_facts(ifindex: u32) -> u32 {
    let Some(copy) = facts() else { return UNKNOWN };
    // SAFETY: fields of a row, which stays in the map's memory until the program ends; any bytes are a Device.
    let read = |row: *const Device| unsafe {
        copy.flags = (&raw const (*row).flags).read_volatile();
        copy.mac = (&raw const (*row).mac).read_volatile();
        copy.vlan = (&raw const (*row).vlan).read_volatile();
        copy.parent = (&raw const (*row).parent).read_volatile();
        0
    };
    read_row(|| DEVICES.get_ptr(&ifindex), read).unwrap_or(UNKNOWN)
}

#[inline(always)]
fn copy_in_room<A: Tables>(ifindex: u32) -> u32 {
    let Some(copy) = room::snat_addresses::<A>() else { return UNKNOWN };
    // SAFETY: as above. Addresses consist of such words, on both sides.
    let read = |row: *const Device| unsafe {
        copy_words::<u32, _>(row.byte_add(A::ADDRESSES).cast(), copy);
        u32::from(row.byte_add(A::COUNT).cast::<u16>().read_volatile())
    };
    read_row(|| DEVICES.get_ptr(&ifindex), read).unwrap_or(UNKNOWN)
}
