//! Filters of a clsact qdisc, for kernels and operators without TCX.

use std::io;

use aya::programs::{
    ProgramError, SchedClassifier, TcAttachType,
    tc::{self, NlOptions, SchedClassifierLink, TcAttachOptions, TcHandle},
};
use netlink_packet_core::{NLM_F_ACK, NLM_F_ECHO, NLM_F_REQUEST, NetlinkPayload};
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::errno::Errno;
use rtnetlink::packet_route::{
    RouteNetlinkMessage,
    tc::{TcAttribute, TcFilterBpfOption, TcHandle as Place, TcMessage, TcOption},
};

use super::{AttachError, Direction, Target};
use crate::kernel::{netlink_socket::NetlinkSocket, pins::Pins};

/// Place of our filters, by which we find them again, without the number of the generation. Low priorities run
/// first.
const PRIORITY: u16 = 0x7368;
pub(super) const HANDLE: TcHandle = TcHandle::new(0, 1);

/// The qdisc, as the kernel calls it.
const KIND: &str = "clsact";

/// `ETH_P_ALL` of linux/if_ether.h, which filters are added for.
const ALL_PROTOCOLS: u16 = 3;

/// Place of a generation's filters: those of a later one run later.
pub(super) fn priority(pins: &Pins) -> u16 {
    let number = u16::try_from(pins.generation().number()).unwrap_or(u16::MAX);
    PRIORITY.saturating_add(number)
}

/// Attaches the program, or replaces the one of an earlier agent.
///
/// # Errors
/// When the kernel refuses, or the device has another qdisc in the place.
pub(super) fn attach(
    program: &mut SchedClassifier,
    priority: u16,
    target: &Target,
    direction: Direction,
) -> Result<(), AttachError> {
    match tc::qdisc_add_clsact(&target.name) {
        Ok(()) => {}
        Err(error) if is_errno(&error, Errno::EEXIST) => ensure_clsact(target)?,
        Err(error) => return Err(error.into()),
    }
    let old = SchedClassifierLink::attached(&target.name, direction.attach_type, priority, HANDLE, None)?;
    let id = match program.attach_to_link(old) {
        Ok(id) => id,
        Err(ProgramError::TcError(_)) => {
            let options = NlOptions { priority, handle: HANDLE, ..NlOptions::default() };
            program.attach_with_options(
                &target.name,
                direction.attach_type,
                TcAttachOptions::Netlink(options),
            )?
        }
        Err(error) => return Err(error.into()),
    };
    // Dropping the link would remove the filter, which is to outlive us.
    std::mem::forget(program.take_link(id)?);
    Ok(())
}

fn is_errno(error: &(dyn std::error::Error + 'static), errno: Errno) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return io.raw_os_error() == Some(errno as i32);
        }
        cause = error.source();
    }
    false
}

/// In the qdisc `ingress`, which has the same place, there is no egress: filters for it would see what enters.
fn ensure_clsact(target: &Target) -> Result<(), AttachError> {
    match qdisc(target)? {
        Some(kind) if kind != KIND => Err(format!(
            "the device has the qdisc {kind:?} where {KIND:?} has to be; replace it with {KIND:?}, which takes the \
             same filters"
        )
        .into()),
        _ => Ok(()),
    }
}

/// Whether the device has the filter of this priority.
///
/// # Errors
/// When the kernel does not tell.
pub(super) fn has_filter(priority: u16, target: &Target, direction: Direction) -> io::Result<bool> {
    let minor = match direction.attach_type {
        TcAttachType::Ingress => Place::MIN_INGRESS,
        _ => Place::MIN_EGRESS,
    };
    let mut filter = TcMessage::with_index(target.ifindex.cast_signed());
    filter.header.parent = Place { minor, ..Place::CLSACT };
    filter.header.handle = u32::from(HANDLE).into();
    filter.header.info = u32::from(priority) << 16 | u32::from(ALL_PROTOCOLS.to_be());
    let found = ask(0, RouteNetlinkMessage::GetTrafficFilter(filter))?;
    // The qdisc `ingress` shows its only filters for both directions.
    let program = TcOption::Bpf(TcFilterBpfOption::ProgName(direction.program(target.ethernet).to_owned()));
    let runs = |attribute| matches!(attribute, TcAttribute::Options(options) if options.contains(&program));
    Ok(found.is_some_and(|filter| filter.attributes.into_iter().any(runs)))
}

/// What kind of qdisc the device has where clsact belongs.
fn qdisc(target: &Target) -> io::Result<Option<String>> {
    let mut qdisc = TcMessage::with_index(target.ifindex.cast_signed());
    qdisc.header.parent = Place::CLSACT;
    let kind = |attribute| if let TcAttribute::Kind(kind) = attribute { Some(kind) } else { None };
    // Without the flag the answer goes to those alone who listen for changes.
    let found = ask(NLM_F_ECHO, RouteNetlinkMessage::GetQueueDiscipline(qdisc))?;
    Ok(found.and_then(|qdisc| qdisc.attributes.into_iter().find_map(kind)))
}

/// What the kernel has; nothing if there is none.
fn ask(flags: u16, question: RouteNetlinkMessage) -> io::Result<Option<TcMessage>> {
    let mut socket = NetlinkSocket::open(NETLINK_ROUTE)?;
    socket.send(NLM_F_REQUEST | NLM_F_ACK | flags, question.into())?;
    let mut found = None;
    loop {
        for payload in socket.receive()? {
            match payload {
                NetlinkPayload::InnerMessage(
                    RouteNetlinkMessage::NewTrafficFilter(message)
                    | RouteNetlinkMessage::NewQueueDiscipline(message),
                ) => found = Some(message),
                NetlinkPayload::Error(error) if error.code.is_none() => return Ok(found),
                NetlinkPayload::Error(error) => {
                    let error = error.to_io();
                    // No such filter or qdisc; or none to have a filter.
                    let none = [Errno::ENOENT, Errno::EINVAL].map(|errno| Some(errno as i32));
                    return if none.contains(&error.raw_os_error()) { Ok(None) } else { Err(error) };
                }
                _ => {}
            }
        }
    }
}
