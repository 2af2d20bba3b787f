//! The library is never run, so it needs nothing that starts a program.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-nostartfiles");
    println!("cargo:rerun-if-changed=build.rs");
}
