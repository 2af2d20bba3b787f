//! A program sends a datagram by a socket that is not connected.

use proxy_common::maps::events::Hook;

use super::{
    ALLOW,
    ask::ask,
    client::port,
    datagrams::{By, remember},
    place::{Call, Place},
};
use crate::maps;

#[inline(always)]
pub fn send<P: Place>(call: &Call<P>) -> i32 {
    let asked = match ask(call, Hook::SEND) {
        Ok(asked) => asked,
        Err(verdict) => return verdict,
    };
    let known = P::known_backend(call.ctx.sock_addr, asked.frontend.service);
    if let Some(known) = maps::backend::<P::Addr>(known) {
        call.replace(&known.addr, known.port);
        return ALLOW;
    }
    let choice = match asked.choose(|| port(call.ctx)) {
        Ok(choice) => choice,
        Err(verdict) => return verdict,
    };
    remember(call, By::Send, &asked, &choice);
    asked.note(&choice);
    call.replace(&choice.backend.addr, choice.backend.port);
    ALLOW
}
