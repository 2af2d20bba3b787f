//! The parser on the packets that the fuzzer starts from, and on mutations of them: what the
//! fuzzer asks is asked here, too, in the time of a unit test (`cargo xtask fuzz` goes on).

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use tests::mutate::{Rng, mutate};

#[path = "../../fuzz/src/parser.rs"]
mod parser;

/// Mutations of each seed.
const MUTATIONS: u64 = 5_000;

#[test]
fn seeds_and_their_mutations() -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/parser");
    let mut seeds = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        seeds.push((fs::read(&path)?, path));
    }
    ensure!(seeds.len() > 30, "few seeds in {}", folder.display());
    for (seed, path) in &seeds {
        println!("{}", path.display());
        parser::check(seed);
        for number in 0..MUTATIONS {
            let mut rng = Rng::new(number);
            let other = &seeds[rng.below(seeds.len())].0;
            parser::check(&mutate(&mut rng, seed, other));
        }
    }
    Ok(())
}
