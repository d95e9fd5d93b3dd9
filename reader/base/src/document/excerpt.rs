//! The line of a text that a message is about, with carets under the wrong words.

use std::ops::Range;

use unicode_width::UnicodeWidthStr;

/// A line of a text, made safe to print in a terminal.
pub(super) struct Excerpt {
    /// The number of the line, counted from 1.
    pub line: usize,
    /// Where the words start in the line, in characters counted from 1.
    pub column: usize,
    text: String,
    /// White space as wide as the text before the carets.
    indent: String,
    /// The number of carets, in terminal columns.
    carets: usize,
}

/// How many bytes of a line are shown before and after the start of the words.
const BYTES_BEFORE: usize = 120;
const BYTES_AFTER: usize = 240;

impl Excerpt {
    /// Returns the line of `text` in which `words`, a range of bytes, starts. A range beyond the text is clamped to
    /// it.
    pub(super) fn of(text: &str, words: Range<usize>) -> Self {
        let start = floor_char_boundary(text, words.start);
        let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |at| start + at);
        let line_end = line_start + text[line_start..line_end].trim_end_matches('\r').len();
        let from = floor_char_boundary(text, start.saturating_sub(BYTES_BEFORE)).max(line_start);
        let to = floor_char_boundary(text, start + BYTES_AFTER).min(line_end).max(start);
        let end = floor_char_boundary(text, words.end).clamp(start, to);
        let cut_before = if from > line_start { "..." } else { "" };
        let cut_after = if to < line_end { "..." } else { "" };
        Self {
            line: text[..start].matches('\n').count() + 1,
            column: text[line_start..start].chars().count() + 1,
            text: format!("{cut_before}{}{cut_after}", printable(&text[from..to])),
            indent: blank(&format!("{cut_before}{}", printable(&text[from..start]))),
            carets: printable(&text[start..end]).width().max(1),
        }
    }

    /// Returns a line feed, then the line with carets below it and `margin` before it.
    pub(super) fn with_margin(&self, margin: &str) -> String {
        let Self { text, indent, carets, .. } = self;
        let (width, carets) = (margin.len(), "^".repeat(*carets));
        format!("\n{:width$} |\n{margin} | {text}\n{:width$} | {indent}{carets}", "", "")
    }
}

/// Returns white space as wide in a terminal as `text`. Tabs are kept because their width depends on the column.
fn blank(text: &str) -> String {
    text.split('\t').map(|piece| " ".repeat(piece.width())).collect::<Vec<_>>().join("\t")
}

/// Replaces control characters: a file may come from anywhere, and these must not reach the terminal.
fn printable(line: &str) -> String {
    line.chars().map(|c| if c.is_control() && c != '\t' { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

fn floor_char_boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, words: Range<usize>) -> String {
        let excerpt = Excerpt::of(text, words);
        excerpt.with_margin(&excerpt.line.to_string())
    }

    #[test]
    fn carets_stand_under_the_words_in_columns_of_a_terminal() {
        assert_eq!(shown("a = 1\nbc = 2\r\nd = 3", 6..8), "\n  |\n2 | bc = 2\n  | ^^");
        // A Chinese character takes two columns, a combining accent none.
        let text = "\"名前\" = e\u{301}x";
        let at = text.find('x').unwrap();
        assert_eq!(shown(text, at..at + 1), format!("\n  |\n1 | {text}\n  | {}^", " ".repeat(10)));
        assert_eq!(shown(text, 0..8), format!("\n  |\n1 | {text}\n  | ^^^^^^"));
        assert_eq!(Excerpt::of(text, at..at + 1).column, 10);
        assert_eq!(shown("\tx = \u{1b}[2J", 5..9), "\n  |\n1 | \tx = \u{fffd}[2J\n  | \t    ^^^^");
    }

    #[test]
    fn long_lines_are_cut_around_the_words() {
        let text = format!("{}x{}", "a".repeat(200), "b".repeat(300));
        let found = shown(&text, 200..201);
        let line = format!("...{}x{}...", "a".repeat(BYTES_BEFORE), "b".repeat(BYTES_AFTER - 1));
        assert_eq!(found, format!("\n  |\n1 | {line}\n  | {}^", " ".repeat(3 + BYTES_BEFORE)));
    }

    #[test]
    fn any_range_has_an_excerpt() {
        let text = "é\n\n名前\r\n";
        for start in 0..text.len() + 3 {
            for end in 0..text.len() + 3 {
                assert!(shown(text, start..end).ends_with('^'));
            }
        }
    }
}
