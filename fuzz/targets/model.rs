//! See `rankine_fuzz::Model`.
#![no_main]

rankine_fuzz::target!(Model);
