//! See `rankine_fuzz::Csv`.
#![no_main]

rankine_fuzz::target!(Csv);
