//! What CUDA, cuBLASLt and NCCL do for Rankine.
//!
//! The libraries are found when the program runs, never when it is built, so that one binary serves machines with and
//! without GPUs. For now there is [`probe`], which says what is here; nothing computes on a GPU yet.

pub mod probe;
