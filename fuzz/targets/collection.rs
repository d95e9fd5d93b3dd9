//! See `rankine_fuzz::Collection`.
#![no_main]

rankine_fuzz::target!(Collection);
