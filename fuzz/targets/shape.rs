//! See `rankine_fuzz::Shape`.
#![no_main]

rankine_fuzz::target!(Shape);
