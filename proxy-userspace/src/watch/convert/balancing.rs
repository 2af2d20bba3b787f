//! Annotations of the load balancer. One that makes no sense counts for nothing; the object
//! is taken without it, for a wish about the way must not cost the connection.

use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{Ignored, Rejected, service::unknown};
use crate::model::{Algorithm, Balancing, Mode, WeightKey, Weights};

const MODE: &str = "shunt.dev/load-balancer-mode";
const ALGORITHM: &str = "shunt.dev/algorithm";
const WEIGHTS: &str = "shunt.dev/weights";

/// What a service wants.
pub(super) fn of_service(meta: &ObjectMeta, ignored: &mut Ignored) -> Balancing {
    let known = |name, text: &str, known| unknown(field(name), text, known);
    let mode = annotation(meta, MODE, ignored, |text| {
        Mode::from_name(text).ok_or_else(|| known(MODE, text, "snat, dsr and hybrid"))
    });
    let algorithm = annotation(meta, ALGORITHM, ignored, |text| {
        Algorithm::from_name(text).ok_or_else(|| known(ALGORITHM, text, "random and maglev"))
    });
    let weights = annotation(meta, WEIGHTS, ignored, weights).unwrap_or_default();
    Balancing { mode, algorithm, weights }
}

/// The weights of a slice.
pub(super) fn of_slice(meta: &ObjectMeta, ignored: &mut Ignored) -> Option<Weights> {
    annotation(meta, WEIGHTS, ignored, weights)
}

fn annotation<T>(
    meta: &ObjectMeta,
    name: &str,
    ignored: &mut Ignored,
    parse: impl Fn(&str) -> Result<T, Rejected>,
) -> Option<T> {
    let text = meta.annotations.as_ref()?.get(name)?;
    ignored.keep(parse(text.trim()))
}

fn field(annotation: &str) -> String {
    format!("metadata.annotations[{annotation}]")
}

/// `KEY=WEIGHT`, separated by commas.
fn weights(text: &str) -> Result<Weights, Rejected> {
    let mut list = Vec::<(WeightKey, u16)>::new();
    for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let not_a_weight = || Rejected::NotAWeight { field: field(WEIGHTS), entry: entry.to_owned() };
        let (key, weight) = weight(entry).ok_or_else(not_a_weight)?;
        list.push((key, weight));
    }
    list.sort_unstable();
    match list.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some([(key, _), _]) => Err(Rejected::Duplicate { field: field(WEIGHTS), value: key.to_string() }),
        _ => Ok(Weights::new(list)),
    }
}

fn weight(entry: &str) -> Option<(WeightKey, u16)> {
    let (key, weight) = entry.rsplit_once('=')?;
    let weight = weight.trim().parse().ok().filter(|weight| *weight <= Weights::MAX)?;
    let key = match key.trim().split_once(':') {
        Some((kind @ ("pod" | "node" | "zone"), name)) => {
            let name = name.trim();
            match kind {
                _ if name.is_empty() => return None,
                "pod" => WeightKey::Pod(name.into()),
                "node" => WeightKey::Node(name.into()),
                _ => WeightKey::Zone(name.into()),
            }
        }
        _ => WeightKey::Address(key.trim().parse::<IpAddr>().ok()?),
    };
    Some((key, weight))
}
