//! Several files as one input: concatenated, with a separator between two.

const MARK: &[u8] = b"\n%%\n";

/// Returns the `COUNT` files of an input; missing ones are empty.
pub fn split<const COUNT: usize>(mut bytes: &[u8]) -> [&[u8]; COUNT] {
    let mut sections: [&[u8]; COUNT] = [&[]; COUNT];
    for (number, section) in sections.iter_mut().enumerate() {
        let mark = bytes.windows(MARK.len()).position(|window| window == MARK);
        match mark {
            Some(at) if number + 1 < COUNT => {
                *section = &bytes[..at];
                bytes = &bytes[at + MARK.len()..];
            }
            _ => {
                *section = bytes;
                break;
            }
        }
    }
    sections
}

/// Returns the input that consists of these files.
pub fn join(sections: &[&[u8]]) -> Vec<u8> {
    sections.join(MARK)
}
