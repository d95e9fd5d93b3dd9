//! What a starter job makes of columns that share a vocabulary: attention over sequences, and tables.

use rankine_reader::schema::{Categorical, Hotness, Sequence};

use super::{Lines, Starter, list_of, quoted};

impl Starter<'_> {
    /// Writes attention over each sequence. Without a query, it is an option.
    pub(super) fn attention(&self, out: &mut Lines<'_>) {
        for sequence in &self.schema.sequences {
            let name = quoted(&sequence.name);
            out.line("");
            if let Some(query) = self.query(sequence) {
                out.remarked("[[attention]]", "weighs the positions of a sequence by what is on offer");
                out.remarked("kind = \"din\"", "or dot, or mean (without query and hidden)");
                out.line(&format!("sequence = {name}"));
                let of = sequence.columns.join(", ");
                out.remarked(
                    &format!("query = {}", list_of(query)),
                    &format!("share the vocabularies of {of}"),
                );
                out.line("hidden = [36]");
                out.remarked("# position_embedding = true", "recent positions may count more");
            } else {
                out.remarked("# [[attention]]", "no columns share its vocabularies, so there is no query");
                out.line(&format!("# kind = \"mean\"\n# sequence = {name}"));
            }
        }
    }

    /// Writes the tables of columns that share a vocabulary: an option, unless attention compares their vectors.
    pub(super) fn tables(&self, out: &mut Lines<'_>) {
        let columns = &self.schema.categorical;
        let compared: Vec<_> =
            self.schema.sequences.iter().filter_map(|sequence| self.query(sequence)).flatten().collect();
        for owner in columns {
            let shares = |column: &&Categorical| vocabulary(column) == owner.name;
            let names: Vec<_> = columns.iter().filter(shares).map(|column| column.name.as_str()).collect();
            if names.len() > 1 {
                let is_compared = names.iter().any(|name| compared.contains(name));
                let mark = if is_compared { "" } else { "# " };
                out.line("");
                out.remarked(
                    &format!("{mark}[[table]]"),
                    "these columns have one vocabulary, and may have one table",
                );
                out.line(&format!("{mark}columns = {}", list_of(names)));
            }
        }
    }

    /// Returns the columns that are compared with the columns of a sequence: for each of them one outside of sequences
    /// with the same vocabulary, best with one id per sample.
    fn query(&self, sequence: &Sequence) -> Option<Vec<&str>> {
        let columns = &self.schema.categorical;
        let counterpart = |name: &String| {
            let own = columns.iter().find(|column| column.name == *name)?;
            let suits = |column: &&Categorical| {
                vocabulary(column) == vocabulary(own) && self.schema.sequence_of(&column.name).is_none()
            };
            let found = columns.iter().filter(suits);
            found.min_by_key(|column| column.hotness != Hotness::Fixed(1)).map(|column| column.name.as_str())
        };
        sequence.columns.iter().map(counterpart).collect()
    }
}

/// Returns the column whose vocabulary a column has.
fn vocabulary(column: &Categorical) -> &str {
    column.shares.as_ref().unwrap_or(&column.name)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rankine_reader::Schema;
    use rankine_reader::schema::Keep;

    use super::*;
    use crate::starter::StarterData;
    use crate::starter::tests::{assert_sound, schema};

    fn text_for(schema: &Schema) -> String {
        let starter = Starter::new(schema, StarterData::Folder(Path::new("data")), 12_000, 500);
        starter.text(&starter.by_size(None))
    }

    /// The columns 0 and 2 with vocabularies of their own, and sequences that share them: of the columns 1 and 3, and
    /// of column 4.
    #[test]
    fn queries_share_the_vocabularies_of_their_sequences() {
        let mut schema = schema(2, 6);
        for (number, shares) in [(1, Some(0)), (3, Some(2)), (4, Some(2)), (5, None)] {
            schema.categorical[number].shares = shares.map(|of: usize| format!("C{of}"));
        }
        for number in [1, 3, 4, 5] {
            schema.categorical[number].hotness = Hotness::Ragged { max: 9 };
        }
        let sequence = |name: &str, columns: &[&str]| Sequence {
            name: name.into(),
            columns: columns.iter().map(|&column| column.into()).collect(),
            max: 9,
            keep: Keep::Last,
        };
        schema.sequences = vec![sequence("a", &["C1", "C3"]), sequence("b", &["C4"]), sequence("c", &["C5"])];
        let text = text_for(&schema);
        assert_sound(&text, &schema);
        for lines in [
            "sequence = \"a\"\nquery = [\"C0\", \"C2\"] ",
            "sequence = \"b\"\nquery = [\"C2\"] ",
            "# kind = \"mean\"\n# sequence = \"c\"\n",
            "\ncolumns = [\"C0\", \"C1\"]\n",
            "\ncolumns = [\"C2\", \"C3\", \"C4\"]\n",
        ] {
            assert!(text.contains(lines), "{lines}: {text}");
        }
        // A column of another sequence is no query, and tables without a query are options.
        schema.sequences.remove(0);
        schema.categorical[2].hotness = Hotness::Ragged { max: 9 };
        schema.sequences.push(sequence("d", &["C2"]));
        let text = text_for(&schema);
        assert_sound(&text, &schema);
        assert!(text.contains("sequence = \"b\"\nquery = [\"C3\"] "), "{text}");
        assert!(text.contains("\n# columns = [\"C0\", \"C1\"]\n"), "{text}");
    }
}
