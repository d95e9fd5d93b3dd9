//! Rankine's embedding tables: storage, look-up, de-duplication and sparse optimizers.
