//! What CUDA, cuBLASLt and NCCL do for Rankine.
