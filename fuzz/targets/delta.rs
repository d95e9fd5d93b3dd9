//! See `rankine_fuzz::Delta`.
#![no_main]

rankine_fuzz::target!(Delta);
