//! What the verifier says of the programs.

use crate::bench::Bench;

/// Half of what the kernel walks before it gives up (`BPF_COMPLEXITY_LIMIT_INSNS`).
const LIMIT: u32 = 500_000;

#[test]
fn every_program_stays_far_below_the_verifiers_limit() {
    let bench = Bench::new();
    let counts = bench.datapath.verified_instructions();
    assert_eq!(counts.len(), 49, "{counts:?}");
    for (program, count) in counts {
        println!("{program:20} {count:>8} instructions verified");
        assert!(count < LIMIT, "{program}: {count}");
    }
}
