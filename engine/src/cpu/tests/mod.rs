//! Models on the CPU, compared with models that are computed independently.

pub(super) mod oracle;
