//! Ranks against one rank, and against a count by hand.
