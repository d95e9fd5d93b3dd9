//! See `rankine_fuzz::Dataset`.
#![no_main]

rankine_fuzz::target!(Dataset);
