//! Several files as one input: one behind the other, with a mark between two.

const MARK: &[u8] = b"\n%%\n";

/// The files of an input, `COUNT` of them; those that are not there are empty.
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

/// The input that these files are.
pub fn join(sections: &[&[u8]]) -> Vec<u8> {
    sections.join(MARK)
}
