//! The documents: links lead somewhere, the book has every page, commands are such that the
//! program takes them, and what is generated is what the code says.
#![allow(clippy::unwrap_used, reason = "a test")]

mod commands;
mod links;
mod reference;
