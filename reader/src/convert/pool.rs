//! A pool of objects that are expensive to create for each chunk.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

/// Objects that are expensive to create for each chunk.
#[derive(Debug)]
pub(crate) struct Pool<T>(Mutex<Vec<T>>);

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Pool<T> {
    pub(crate) fn take(&self) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    pub(crate) fn put(&self, thing: T) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(thing);
    }
}

/// An object that is put into its pool when nobody needs it any more. Memory fresh from the system for each chunk costs
/// more time than finding the lines in it.
#[derive(Debug)]
pub(crate) struct Pooled<T: Default> {
    thing: T,
    pool: Option<Arc<Pool<T>>>,
}

impl<T: Default> Pooled<T> {
    pub(crate) fn new(thing: T, pool: &Arc<Pool<T>>) -> Self {
        Self { thing, pool: Some(Arc::clone(pool)) }
    }

    /// Puts it into its pool now, and leaves an empty one.
    pub(crate) fn release(&mut self) {
        if let Some(pool) = self.pool.take() {
            pool.put(std::mem::take(&mut self.thing));
        }
    }
}

impl<T: Default> Drop for Pooled<T> {
    fn drop(&mut self) {
        self.release();
    }
}

impl<T: Default> Deref for Pooled<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.thing
    }
}
