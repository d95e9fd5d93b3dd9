//! Arbitrary bytes as one line of text without tabs, and back: how vocabularies and messages show categories.

use crate::error::Malformed;

/// Appends bytes as text. A backslash, a tab and line ends become `\\`, `\t`, `\n`, `\r`; other control characters,
/// and bytes that are not UTF-8, become `\xNN`.
pub fn escape(bytes: &[u8], out: &mut String) {
    fn hex(bytes: &[u8], out: &mut String) {
        for &byte in bytes {
            out.push_str("\\x");
            for digit in [byte >> 4, byte & 15] {
                out.push(char::from(b"0123456789abcdef"[usize::from(digit)]));
            }
        }
    }
    for piece in bytes.utf8_chunks() {
        for char in piece.valid().chars() {
            match char {
                '\\' => out.push_str("\\\\"),
                '\t' => out.push_str("\\t"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                char if char.is_control() => hex(char.encode_utf8(&mut [0; 4]).as_bytes(), out),
                char => out.push(char),
            }
        }
        hex(piece.invalid(), out);
    }
}

/// Appends the bytes that an escaped text stands for.
///
/// # Errors
/// A description of the first escape that [`escape`] does not write.
pub fn unescape(text: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    let digit = |byte: Option<&u8>| byte.and_then(|&byte| char::from(byte).to_digit(16));
    let mut rest = text;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at + 1..];
        let (byte, taken) = match rest.first() {
            Some(b'\\') => (b'\\', 1),
            Some(b't') => (b'\t', 1),
            Some(b'n') => (b'\n', 1),
            Some(b'r') => (b'\r', 1),
            Some(b'x') => match (digit(rest.get(1)), digit(rest.get(2))) {
                (Some(high), Some(low)) => ((high * 16 + low) as u8, 3),
                _ => return Err("\\x is not followed by two hexadecimal digits".into()),
            },
            _ => return Err("a backslash is not followed by one of \\ t n r x".into()),
        };
        out.push(byte);
        rest = &rest[taken..];
    }
    out.extend_from_slice(rest);
    Ok(())
}

/// Returns the start of `bytes` in quotes, for a message.
pub fn excerpt(bytes: &[u8]) -> String {
    const BYTES_MAX: usize = 40;
    let mut out = String::from("'");
    escape(&bytes[..bytes.len().min(BYTES_MAX)], &mut out);
    out.push('\'');
    if bytes.len() > BYTES_MAX {
        out.push_str("...");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_restored_from_one_line(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut text = String::new();
            escape(&bytes, &mut text);
            prop_assert!(!text.contains(['\t', '\n', '\r', '\0']) && !text.starts_with("\\*"));
            let mut back = Vec::new();
            unescape(text.as_bytes(), &mut back).unwrap();
            prop_assert_eq!(back, bytes);
        }

        #[test]
        fn arbitrary_text_does_not_panic(
            text in prop::collection::vec(prop_oneof![any::<u8>(), Just(b'\\'), Just(b'x')], 0..40),
        ) {
            let _ = unescape(&text, &mut Vec::new());
            let _ = excerpt(&text);
        }
    }

    #[test]
    fn bytes_are_written_as_documented() {
        let escaped = |bytes: &[u8]| {
            let mut text = String::new();
            escape(bytes, &mut text);
            text
        };
        assert_eq!(escaped(b"a b\\\t\n\r\x07\x7f"), "a b\\\\\\t\\n\\r\\x07\\x7f");
        assert_eq!(escaped("d\u{e9}j\u{e0}".as_bytes()), "d\u{e9}j\u{e0}");
        assert_eq!(escaped(b"\xc3(\xff"), "\\xc3(\\xff");
        assert_eq!(excerpt(b""), "''");
        assert_eq!(excerpt(&[b'x'; 40]), format!("'{}'", "x".repeat(40)));
        assert_eq!(excerpt(&[b'x'; 41]), format!("'{}'...", "x".repeat(40)));
    }
}
