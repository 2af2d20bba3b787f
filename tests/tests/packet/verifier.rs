//! What the verifier says of the programs.

use crate::bench::Bench;

/// What the kernel may walk of a program: an eighth of where it gives up (`BPF_COMPLEXITY_LIMIT_INSNS`).
const LIMIT: u32 = 125_000;
/// What it may walk of all of them: about a microsecond each, for which each start of an agent waits. Of programs for
/// devices without an Ethernet header, and of those for drivers, only where there are such. 6.1 walks a fifth more than
/// 6.18.
const ALL: u32 = 1_500_000;

#[test]
fn every_program_stays_far_below_the_verifiers_limit() {
    let bench = Bench::new();
    let counts = bench.datapath.verified_instructions();
    assert_eq!(counts.len(), 49, "{counts:?}");
    let mut all = 0;
    for (program, count) in counts {
        println!("{program:20} {count:>8} instructions verified");
        assert!(count < LIMIT, "{program}: {count}");
        all += count;
    }
    println!("{:20} {all:>8} instructions verified", "all");
    assert!(all < ALL, "{all}");
}
