//! See `rankine_fuzz::Fit`.
#![no_main]

rankine_fuzz::target!(Fit);
