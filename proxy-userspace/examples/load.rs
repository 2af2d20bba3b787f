fn main() -> anyhow::Result<()> {
    let t = std::time::Instant::now();
    proxy_userspace::kernel::try_load()?;
    println!("{:?}", t.elapsed());
    Ok(())
}
