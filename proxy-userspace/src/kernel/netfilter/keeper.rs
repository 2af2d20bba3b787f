//! Keeps netfilter translating the connections that it has, whoever removes whatever rules.
//!
//! The kernel translates, and tracks connections at all, only while some rule needs it: with the
//! last such rule its hooks go (`nf_nat_unregister_fn` and `nf_ct_netns_put` of the kernel's
//! net/netfilter), and connections that are open stop being translated at that moment. On many a
//! node the rules of kube-proxy are the last ones. A table of our own, with a chain of type `nat`
//! and a rule that asks for the state of the connection and does nothing about it, needs both.

use std::io;

use netlink_packet_core::DefaultNla;
use netlink_packet_netfilter::{
    NetfilterProtoFamily,
    nftables::{
        ChainAttribute, ChainMessage, ExpressionAttribute, Expressions, Hook, HookNumber, InetHookNumber,
        ListAttribute, NfTablesMessage, RuleAttribute, RuleMessage, TableAttribute, TableMessage,
    },
};

use super::transaction::Transaction;
use crate::kernel::KernelError;

/// Name of the table, in the families `ip` and `ip6`.
pub const KEEPER: &str = "shunt";

const CHAIN: &str = "keep-translating";
/// `NF_IP_PRI_NAT_SRC`: where source translation stands.
const PRIORITY: u32 = 100;
/// Attributes and values of the expression `ct` (linux/netfilter/nf_tables.h): register 1 becomes
/// the state.
const CT_DREG: u16 = 1;
const CT_KEY: u16 = 2;
const REGISTER_1: u32 = 1;
const KEY_STATE: u32 = 0;

const FAMILIES: [NetfilterProtoFamily; 2] = [NetfilterProtoFamily::IPv4, NetfilterProtoFamily::IPv6];

/// From now on netfilter goes on translating what it translates.
///
/// # Errors
/// When the kernel has no nftables, or refuses.
pub fn keep_translating() -> Result<(), KernelError> {
    let mut change = Transaction::default();
    for family in FAMILIES {
        // Anew, so that there is one rule however often this is done.
        change.add(family, NfTablesMessage::NewTable(table()));
        change.delete(family, NfTablesMessage::DeleteTable(table()));
        change.add(family, NfTablesMessage::NewTable(table()));
        change.add(family, NfTablesMessage::NewChain(chain()));
        change.add(family, NfTablesMessage::NewRule(rule()));
    }
    change.commit().map_err(|source| KernelError::System {
        what: format!("add the nftables table {KEEPER}, which keeps open connections translated"),
        source,
    })
}

/// The end of [`keep_translating`]. True if it was in force.
///
/// # Errors
/// When the kernel refuses.
pub fn stop_translating() -> Result<bool, KernelError> {
    let mut found = false;
    for family in FAMILIES {
        let mut change = Transaction::default();
        change.delete(family, NfTablesMessage::DeleteTable(table()));
        match change.commit() {
            Ok(()) => found = true,
            Err(error) if is_absent(&error) => {}
            Err(source) => {
                let what = format!("remove the nftables table {KEEPER}");
                return Err(KernelError::System { what, source });
            }
        }
    }
    Ok(found)
}

/// There is no such table, or no nftables.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EOPNOTSUPP | libc::EPROTONOSUPPORT))
}

fn table() -> TableMessage {
    TableMessage { attributes: vec![TableAttribute::Name(KEEPER.into())] }
}

fn chain() -> ChainMessage {
    let hook = vec![Hook::Number(HookNumber::Inet(InetHookNumber::PostRouting)), Hook::Priority(PRIORITY)];
    ChainMessage {
        attributes: vec![
            ChainAttribute::Table(KEEPER.into()),
            ChainAttribute::Name(CHAIN.into()),
            ChainAttribute::Type("nat".into()),
            ChainAttribute::Hook(hook),
        ],
    }
}

fn rule() -> RuleMessage {
    let number = |kind, value: u32| DefaultNla::new(kind, value.to_be_bytes().to_vec());
    let state = Expressions::Other {
        expression_type: "ct".into(),
        attributes: vec![number(CT_DREG, REGISTER_1), number(CT_KEY, KEY_STATE)],
    };
    let expressions: Vec<ListAttribute<ExpressionAttribute>> = vec![state.into()];
    RuleMessage {
        attributes: vec![
            RuleAttribute::Table(KEEPER.into()),
            RuleAttribute::Chain(CHAIN.into()),
            RuleAttribute::Expressions(expressions),
        ],
    }
}
