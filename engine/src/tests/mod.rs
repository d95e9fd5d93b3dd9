//! Tests of several modules together.

mod checkpoint;
