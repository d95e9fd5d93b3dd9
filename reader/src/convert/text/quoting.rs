//! Rows of text that may span lines within quotes.

/// How quotes that may contain line ends are recognized: at the start of a field.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quoting {
    /// The delimiter before every field except a row's first.
    pub(crate) delimiter: u8,
    /// Whether white space may precede the quote.
    pub(crate) trim: bool,
}

impl Quoting {
    /// Returns the bytes of the row at the front of `bytes`, including its line end; `None` if it does not end within
    /// them. A row whose quote is not closed within `bytes_max` bytes ends with its first line, so that one missing
    /// quote cannot swallow the rest of a file or all memory. Once there are `bytes_max` bytes, more bytes never
    /// change an answer other than `None`.
    pub(super) fn row_bytes(self, bytes: &[u8], bytes_max: usize, whole: bool) -> Option<usize> {
        let line = memchr::memchr(b'\n', bytes).map(|at| at + 1);
        let first = &bytes[..line.unwrap_or(bytes.len())];
        if memchr::memchr(b'"', first).is_none() {
            return line;
        }
        let window = &bytes[..bytes.len().min(bytes_max)];
        let mut at = 0;
        while let Some(next) = memchr::memchr2(b'"', b'\n', &window[at..]) {
            at += next;
            if window[at] == b'\n' {
                return Some(at + 1);
            }
            if !self.opens(&window[..at]) {
                at += 1;
                continue;
            }
            match closing_quote(window, at + 1) {
                Some(closing) => at = closing + 1,
                None => break,
            }
        }
        // Undecided: only the first line, once it is known that the quote is not closed.
        if whole || bytes.len() >= bytes_max { line } else { None }
    }

    /// Returns whether a quote after `before`, which starts with a row, opens a field.
    pub(crate) fn opens(self, before: &[u8]) -> bool {
        let before = if self.trim { trim_end(before, self.delimiter) } else { before };
        before.last().is_none_or(|&byte| byte == self.delimiter)
    }
}

fn trim_end(bytes: &[u8], delimiter: u8) -> &[u8] {
    let blank = |byte: u8| (byte == b' ' || byte == b'\t') && byte != delimiter;
    let kept = bytes.iter().rposition(|&byte| !blank(byte)).map_or(0, |at| at + 1);
    &bytes[..kept]
}

/// Returns the position of the quote that closes a quoted field whose text starts at `from`: the first one not
/// doubled.
pub(crate) fn closing_quote(bytes: &[u8], mut from: usize) -> Option<usize> {
    loop {
        let at = from + memchr::memchr(b'"', bytes.get(from..)?)?;
        if bytes.get(at + 1) != Some(&b'"') {
            return Some(at);
        }
        from = at + 2;
    }
}
