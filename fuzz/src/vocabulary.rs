//! A vocabulary: if it is valid, it can be written and read again unchanged.

use rankine_reader::vocabulary;

use super::{Reader, TEXT_BASE_BYTES, TEXT_FACTOR, TempFolder};

/// The file of a vocabulary.
#[derive(Debug)]
pub struct Vocabulary;

impl Reader for Vocabulary {
    const NAME: &'static str = "vocabulary";
    const BASE_BYTES: usize = TEXT_BASE_BYTES;
    const FACTOR: usize = TEXT_FACTOR;

    fn new(_: TempFolder) -> Self {
        Self
    }

    fn read(&self, bytes: &[u8]) -> Result<(), String> {
        let vocabulary = vocabulary::Vocabulary::from_tsv(bytes)?;
        let mut text = Vec::new();
        let Ok(()) = vocabulary.to_tsv(|piece| {
            text.extend_from_slice(piece);
            Ok::<_, std::convert::Infallible>(())
        });
        let again = vocabulary::Vocabulary::from_tsv(&text);
        assert!(again.as_ref() == Ok(&vocabulary), "the vocabulary changed when it was written and read");
        Ok(())
    }

    fn seeds(&self) -> Vec<(&'static str, Vec<u8>)> {
        let kinds =
            "\\*\t7\n\t5\na category of more than 15 bytes\t3\n\\\\\\t\\n\\r\\x00\\xff\t2\n1\t2\né\t1\n";
        [("empty", "\\*\t0\n"), ("every-kind", kinds)].map(|(name, text)| (name, text.into())).into()
    }
}
