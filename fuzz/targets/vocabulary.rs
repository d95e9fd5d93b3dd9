//! See `rankine_fuzz::Vocabulary`.
#![no_main]

rankine_fuzz::target!(Vocabulary);
