//! See `rankine_fuzz::Machine`.
#![no_main]

rankine_fuzz::target!(Machine);
