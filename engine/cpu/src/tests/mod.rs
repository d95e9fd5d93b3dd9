//! Models on the CPU, compared with models that are computed independently.

mod bf16;
pub(super) mod oracle;
