//! See `rankine_fuzz::Criteo`.
#![no_main]

rankine_fuzz::target!(Criteo);
