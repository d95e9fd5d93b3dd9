//! Checks of the sources and documents: the stable interface, links, the structure of modules, and style. The build
//! script is tested here, too.

#[path = "../support/mod.rs"]
mod support;

mod api;
mod build;
mod dependencies;
mod docs;
mod errors;
mod packaging;
mod sources;
mod structure;
mod tidy;
