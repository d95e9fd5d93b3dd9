//! Checks of the sources and documents: the stable interface, links, the structure of modules, and style.

#[path = "../support/mod.rs"]
mod support;

mod api;
mod docs;
mod structure;
mod tidy;
