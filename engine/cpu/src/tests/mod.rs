//! Models on the CPU, compared with models that are computed independently.

mod bf16;
mod dynamic;
pub(super) mod oracle;
