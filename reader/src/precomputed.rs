//! Functions whose values at small integers are computed in advance.

/// A function with its values at small integers. Most numbers in click logs are small integers, and a
/// logarithm takes as long as reading a whole field.
#[derive(Debug, Clone)]
pub(crate) struct PrecomputedFunction<T> {
    at_integers: Vec<T>,
}

impl<T: Copy> PrecomputedFunction<T> {
    const SIZE: i32 = 1 << 14;

    pub(crate) fn new(function: impl Fn(f64) -> T) -> Self {
        Self { at_integers: (0..Self::SIZE).map(|x| function(f64::from(x))).collect() }
    }

    /// Returns the value at `x`; `function` must be the one passed to [`PrecomputedFunction::new`].
    #[inline]
    pub(crate) fn get(&self, x: f64, function: impl Fn(f64) -> T) -> T {
        let integer = x as i32;
        match usize::try_from(integer).ok().and_then(|at| self.at_integers.get(at)) {
            Some(&value) if f64::from(integer) == x => value,
            _ => function(x),
        }
    }
}
