//! See `rankine_fuzz::Raw`.
#![no_main]

rankine_fuzz::target!(Raw);
