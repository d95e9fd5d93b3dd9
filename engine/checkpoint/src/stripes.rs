//! Checksums of long files, which several threads compute: of each stripe, and of these checksums together.

use rankine_base::sealed::Checksum;
use rayon::prelude::*;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

/// Bytes of a stripe of new files; the last stripe of a file may be shorter.
pub const STRIPE_BYTES: usize = 2 << 20;

/// Returns the checksum of a file whose stripes have these checksums, in order.
pub fn checksum_of_stripes(stripes: impl IntoIterator<Item = u64>) -> Checksum {
    let mut all = Xxh3Default::new();
    stripes.into_iter().for_each(|stripe| all.update(&stripe.to_le_bytes()));
    Checksum(all.digest())
}

/// Returns the checksum of the bytes of a file that has stripes of this length.
///
/// # Panics
/// If it is 0.
pub fn striped_checksum(file: &[u8], stripe_bytes: usize) -> Checksum {
    checksum_of_stripes(file.par_chunks(stripe_bytes).map(xxh3_64).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_its_place_and_the_length_count() {
        let file: Vec<u8> = (0..1000_u32).map(|at| (at * 7 % 251) as u8).collect();
        let checksum = striped_checksum(&file, 300);
        let sums: Vec<_> = file.chunks(300).flat_map(|stripe| xxh3_64(stripe).to_le_bytes()).collect();
        assert_eq!(checksum, Checksum(xxh3_64(&sums)));
        for at in [0, 299, 300, 999] {
            let mut other = file.clone();
            other[at] ^= 1;
            assert_ne!(striped_checksum(&other, 300), checksum, "byte {at}");
        }
        let swapped = [&file[300..600], &file[..300], &file[600..]].concat();
        assert_ne!(striped_checksum(&swapped, 300), checksum);
        assert_ne!(striped_checksum(&file[..900], 300), checksum);
        assert_eq!(striped_checksum(&[], 300), checksum_of_stripes([]));
    }
}
