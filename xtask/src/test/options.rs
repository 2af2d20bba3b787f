//! What the user asks for.

use clap::Args;

use super::tier::Tier;
use crate::load::Factor;

/// The arguments of `cargo xtask test`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Options {
    /// Tiers (model, packet, node, cluster, faults, conformance) and at most one filter: a part of
    /// the names of tests.
    words: Vec<String>,
    /// Also run the parts that otherwise run only when their code changes.
    #[arg(long)]
    pub(crate) long: bool,
    /// Run each test so many times, and tell how many times it passed.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeat: u32,
    /// Run on a machine so many times slower: a part of the CPUs' time, beside busy neighbours.
    #[arg(long, value_name = "3x")]
    pub(crate) load: Option<Factor>,
    /// Run in a random order, which this number begins.
    #[arg(long, value_name = "SEED")]
    pub(crate) shuffle: Option<u64>,
}

/// Tiers and a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) tiers: Vec<Tier>,
    pub(crate) filter: Option<String>,
}

impl Options {
    /// A filter alone is about test functions; cases are chosen by naming their tier too.
    pub(crate) fn choice(&self) -> anyhow::Result<Choice> {
        let tiers: Vec<Tier> = self.words.iter().filter_map(|word| Tier::by_name(word)).collect();
        let mut others = self.words.iter().filter(|word| Tier::by_name(word).is_none());
        let filter = others.next().cloned();
        anyhow::ensure!(
            others.next().is_none(),
            "at most one filter; the tiers are {}",
            Tier::ALL.map(Tier::name).join(", ")
        );
        let all = Tier::ALL.into_iter().filter(|tier| filter.is_none() || *tier != Tier::Conformance);
        Ok(Choice { tiers: if tiers.is_empty() { all.collect() } else { tiers }, filter })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_tiers_or_one_filter() {
        let parse = |words: &[&str]| {
            Options { words: words.iter().map(ToString::to_string).collect(), ..Options::default() }.choice()
        };
        let check = |words: &[&str], tiers: &[Tier], filter: Option<&str>| {
            let choice = parse(words).unwrap();
            assert_eq!((choice.tiers.as_slice(), choice.filter.as_deref()), (tiers, filter), "{words:?}");
        };
        check(&[], &Tier::ALL, None);
        check(&["node", "hairpin"], &[Tier::Node], Some("hairpin"));
        check(&["hairpin"], &Tier::ALL[..5], Some("hairpin"));
        assert!(parse(&["node", "a", "b"]).is_err());
    }
}
