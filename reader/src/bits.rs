//! Integers packed to the bits that they need: value `i` of a stream occupies bits `i * bits..(i + 1) * bits`,
//! counted from the least significant bit of the first byte.

/// Bytes after a stream that [`unpack`] may load (and ignore): it loads eight bytes at a time.
pub(crate) const GUARD_BYTES: usize = 16;

/// Returns the number of bits that `value` needs; 0 needs none.
pub(crate) fn width(value: u64) -> u32 {
    u64::BITS - value.leading_zeros()
}

/// Returns the bytes that `count` values of `bits` bits take.
pub(crate) fn packed_bytes(count: usize, bits: u32) -> usize {
    (count as u64 * u64::from(bits)).div_ceil(8) as usize
}

/// Appends values to `out`. Each value minus `base` must be below `2^bits`.
pub(crate) fn pack(values: impl Iterator<Item = u64>, base: u64, bits: u32, out: &mut Vec<u8>) {
    if bits == 0 {
        return;
    }
    let mut pending: u128 = 0;
    let mut pending_bits = 0;
    for value in values {
        debug_assert!(width(value - base) <= bits, "{value} - {base} does not fit {bits} bits");
        pending |= u128::from(value - base) << pending_bits;
        pending_bits += bits;
        while pending_bits >= 64 {
            out.extend_from_slice(&(pending as u64).to_le_bytes());
            pending >>= 64;
            pending_bits -= 64;
        }
    }
    let rest = pending_bits.div_ceil(8) as usize;
    out.extend_from_slice(&(pending as u64).to_le_bytes()[..rest]);
}

/// Passes `count` values to `take`, each with `base` added (wrapping: a damaged base cannot panic).
///
/// # Panics
/// If `packed` is shorter than the values plus [`GUARD_BYTES`]; callers check this once per stream.
pub(crate) fn unpack(packed: &[u8], count: usize, base: u64, bits: u32, mut take: impl FnMut(u64)) {
    assert!(bits <= 64 && packed.len() >= packed_bytes(count, bits) + GUARD_BYTES);
    let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
    let load = |byte: usize| {
        let bytes: [u8; 8] = packed[byte..byte + 8].try_into().expect("eight bytes");
        u64::from_le_bytes(bytes)
    };
    match bits {
        0 => (0..count).for_each(|_| take(base)),
        // A value and the up to seven bits before it fit into one load.
        1..=57 => {
            let mut bit = 0;
            for _ in 0..count {
                take(base.wrapping_add((load(bit >> 3) >> (bit & 7)) & mask));
                bit += bits as usize;
            }
        }
        _ => {
            let mut bit = 0;
            for _ in 0..count {
                let (low, high) = (load(bit >> 3), u64::from(packed[(bit >> 3) + 8]));
                let value = (u128::from(low) | u128::from(high) << 64) >> (bit & 7);
                take(base.wrapping_add(value as u64 & mask));
                bit += bits as usize;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn unpack_restores_packed_values(
            bits in 0..=64u32,
            base in prop_oneof![0..1u64 << 40, any::<u64>(), Just(0), Just(u64::MAX)],
            raw in prop::collection::vec(any::<u64>(), 0..200),
        ) {
            let mask = if bits == 64 { u64::MAX - base } else { (1 << bits) - 1 };
            let values: Vec<u64> = raw.iter().map(|value| (value & mask).min(u64::MAX - base) + base).collect();
            let mut packed = Vec::new();
            pack(values.iter().copied(), base, bits, &mut packed);
            prop_assert_eq!(packed.len(), packed_bytes(values.len(), bits));
            packed.extend([0xff; GUARD_BYTES]);
            let mut back = Vec::new();
            unpack(&packed, values.len(), base, bits, |value| back.push(value));
            prop_assert_eq!(back, values);
        }
    }
}
