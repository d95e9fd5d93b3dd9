//! See `rankine_fuzz::Mapped`.
#![no_main]

rankine_fuzz::target!(Mapped);
