//! See `rankine_fuzz::Frames`.
#![no_main]

rankine_fuzz::target!(Frames);
