//! Loops compiled for the vector units of this machine, from one source.

/// Compiles a function for several vector units and calls the best variant that the processor supports.
///
/// All variants compute the same bits: Rust never fuses a product and a sum by itself, nor reorders sums, so wider
/// vectors only do more of the same at once. Loops need independent lanes to benefit.
#[macro_export]
macro_rules! vectorized {
    (
        $(#[$attribute:meta])*
        $visibility:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block
    ) => {
        $(#[$attribute])*
        $visibility fn $name($($argument: $type),*) {
            #[inline(always)]
            fn body($($argument: $type),*) $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw")]
                fn avx512($($argument: $type),*) {
                    body($($argument),*)
                }
                #[target_feature(enable = "avx2")]
                fn avx2($($argument: $type),*) {
                    body($($argument),*)
                }
                if ::std::arch::is_x86_feature_detected!("avx512f")
                    && ::std::arch::is_x86_feature_detected!("avx512vl")
                    && ::std::arch::is_x86_feature_detected!("avx512dq")
                    && ::std::arch::is_x86_feature_detected!("avx512bw")
                {
                    // SAFETY: the processor was just found to have every feature that the function is compiled for.
                    return unsafe { avx512($($argument),*) };
                }
                if ::std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: the processor was just found to have the feature that the function is compiled for.
                    return unsafe { avx2($($argument),*) };
                }
            }
            body($($argument),*)
        }
    };
}
