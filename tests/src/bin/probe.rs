//! Servers and clients in namespaces, as told on standard input. Started by the harness.

fn main() -> anyhow::Result<()> {
    tests::probe::work()
}
