//! See `rankine_fuzz::Job`.
#![no_main]

rankine_fuzz::target!(Job);
