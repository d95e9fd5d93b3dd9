//! Finding the distinct rows of a batch, and the bags that look each of them up.

pub(crate) mod frequent;
pub(crate) mod router;
