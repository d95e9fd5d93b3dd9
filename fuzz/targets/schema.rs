//! See `rankine_fuzz::Schema`.
#![no_main]

rankine_fuzz::target!(Schema);
