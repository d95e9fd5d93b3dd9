//! See `rankine_fuzz::Block`.
#![no_main]

rankine_fuzz::target!(Block);
