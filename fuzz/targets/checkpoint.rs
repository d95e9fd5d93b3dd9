//! See `rankine_fuzz::Checkpoint`.
#![no_main]

rankine_fuzz::target!(Checkpoint);
