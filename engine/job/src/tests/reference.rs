//! The reference of the job file, generated from its types: `docs/reference/job.schema.json` for editors, and
//! `docs/reference/job.md` for people. Both are committed; a test compares them with the types.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use rankine_reader::io::IoMode;
use rankine_reader::raw::{RawDense, RawIds};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::Value;

use super::jobs_in_configs;
use crate::definition::Job;
use crate::json_schema::{KIND, assert_valid, assert_written, json, text, violation};
use crate::model::Model;
use crate::schedule::Schedule;

const INTRODUCTION: &str = "\
# The job file

A job file is TOML with all settings of a training run. This page lists every key. It is generated from the types that
read the file.

- `rankine init --data DATASET` writes a job file that suits a dataset.
- `rankine check JOB.toml` reports problems with line and column. Unknown keys are errors.
- `rankine check JOB.toml --effective` prints the job with all defaults.

Commands that read a job take `--set KEY=VALUE`, which replaces or adds a value before the job is checked:
`--set train.batch_size=1024`. Elements of lists have indices from 0: `--set table.0.dim=8`.

Editors with support for JSON Schema can complete and check a job with [job.schema.json](job.schema.json). Those that
use Taplo, such as VS Code with Even Better TOML, find it by a comment at the start of the job file: `#:schema` and its
URL or its path from the job's folder. `rankine init` writes that comment, and the schema of its version into
`$XDG_DATA_HOME/rankine` (default `~/.local/share/rankine`).
";

// Choices that are defined in another crate.

pub(crate) fn io_mode(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": IoMode::ALL.map(IoMode::name) })
}

pub(crate) fn raw_dense(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": [RawDense::Float, RawDense::Int] })
}

pub(crate) fn split(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string" })
}

pub(crate) fn raw_ids(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": [RawIds::PerTable, RawIds::GlobalOffset] })
}

impl serde::Serialize for Schedule {
    /// Used for defaults: a choice whose settings all have defaults may be written as only its name.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Constant => serializer.serialize_str("constant"),
            other => unreachable!("no default has settings: {other:?}"),
        }
    }
}

/// Returns the JSON Schema of a job file.
fn schema() -> Value {
    crate::json_schema::schema::<Job>("job")
}

/// Returns the schema as a Markdown document.
fn markdown(schema: &Value) -> String {
    let mut writer =
        Writer { definitions: &schema["$defs"], uses: BTreeMap::new(), out: INTRODUCTION.into() };
    writer.count_uses(schema, "");
    writer.table("The job", "", schema, 2);
    for (name, paths) in writer.uses.clone().into_iter().filter(|(_, paths)| paths.len() > 1) {
        let definition = &writer.definitions[&name];
        if names_of(definition).is_some() {
            continue;
        }
        let at: Vec<_> = paths.iter().map(|path| format!("`{path}`")).collect();
        writer.table(&format!("{name}: {}", at.join(", ")), "", definition, 2);
    }
    writer.out
}

struct Writer<'a> {
    definitions: &'a Value,
    /// The keys whose values have a definition, by its name.
    uses: BTreeMap<String, Vec<String>>,
    out: String,
}

impl<'a> Writer<'a> {
    fn count_uses(&mut self, table: &'a Value, path: &str) {
        let kinds = table["oneOf"].as_array().map_or_else(|| vec![table], |kinds| kinds.iter().collect());
        for (key, property) in kinds.into_iter().flat_map(properties) {
            let Some((name, _)) = referred(property) else { continue };
            let path = joined(path, key);
            let uses = self.uses.entry(name.into()).or_default();
            uses.push(path.clone());
            if uses.len() == 1 {
                self.count_uses(&self.definitions[name], &path);
            }
        }
    }

    /// Writes a table with its keys, then the tables in it.
    fn table(&mut self, title: &str, path: &str, table: &'a Value, level: usize) {
        let hashes = "#".repeat(level);
        self.heading(&format!("{hashes} {title}"), table["description"].as_str());
        let Some(kinds) = table["oneOf"].as_array() else {
            self.keys(path, table, level);
            return;
        };
        for kind in kinds.iter().filter(|kind| kind["properties"].is_object()) {
            let name = kind["properties"][KIND]["const"].as_str().expect("each kind has a name");
            self.heading(&format!("{hashes}# `kind = \"{name}\"`"), kind["description"].as_str());
            self.keys(path, kind, level + 1);
        }
    }

    fn heading(&mut self, heading: &str, description: Option<&str>) {
        write!(self.out, "\n{heading}\n").expect("a string takes whatever is written");
        if let Some(description) = description {
            // The heading already has the prefix of the Rust documentation.
            let prefix = description.strip_prefix("`[").and_then(|rest| rest.split_once("]`: "));
            let mut rest = prefix.map_or(description, |(_, rest)| rest).chars();
            let first = rest.next().map(|first| first.to_uppercase());
            let first = first.into_iter().flatten().collect::<String>();
            write!(self.out, "\n{first}{}\n", rest.as_str()).expect("a string takes whatever is written");
        }
    }

    fn keys(&mut self, path: &str, table: &'a Value, level: usize) {
        let rows: Vec<_> = properties(table).filter(|(_, property)| property["const"].is_null()).collect();
        if rows.is_empty() {
            return;
        }
        self.out += "\n| key | value | default | meaning |\n|---|---|---|---|\n";
        let mut inner = Vec::new();
        for (key, property) in rows {
            let required = table["required"].as_array().is_some_and(|keys| keys.iter().any(|one| one == key));
            let default = match &property["default"] {
                _ if required => "required".into(),
                Value::Null => String::new(),
                default => format!("`{default}`"),
            };
            let mut meaning = property["description"].as_str().unwrap_or_default().replace('\n', " ");
            let value = match referred(property) {
                Some((name, list)) => {
                    let definition = &self.definitions[name];
                    if let Some(names) = names_of(definition) {
                        meaning += &choices_of(definition);
                        names
                    } else if let Some((names, other)) = names_or_table(definition) {
                        meaning += &choices_of(definition);
                        inner.push((joined(path, key), list, &self.definitions[other]));
                        format!("{names}, or table, below")
                    } else if self.uses[name].len() > 1 {
                        format!("{}, below", name.to_lowercase())
                    } else {
                        inner.push((joined(path, key), list, definition));
                        if list { "tables, below" } else { "table, below" }.into()
                    }
                }
                None => words(property),
            };
            writeln!(self.out, "| `{key}` | {value} | {default} | {} |", meaning.trim())
                .expect("a string takes whatever is written");
        }
        for (path, list, definition) in inner {
            let title = if list { format!("`[[{path}]]`") } else { format!("`[{path}]`") };
            let level = if level == 2 && !path.contains('.') { 2 } else { level + 1 };
            self.table(&title, &path, definition, level);
        }
    }
}

fn joined(path: &str, key: &str) -> String {
    if path.is_empty() { key.into() } else { format!("{path}.{key}") }
}

fn properties(table: &Value) -> impl Iterator<Item = (&str, &Value)> {
    table["properties"].as_object().into_iter().flatten().map(|(key, property)| (key.as_str(), property))
}

/// Returns the definition of a property or of the elements of its list, and whether it is a list.
fn referred(property: &Value) -> Option<(&str, bool)> {
    let list = property["items"]["$ref"].is_string();
    let value = if list { &property["items"] } else { property };
    value["$ref"].as_str()?.rsplit('/').next().map(|name| (name, list))
}

/// Returns the names of a choice without settings.
fn names_of(definition: &Value) -> Option<String> {
    let choices = definition["oneOf"].as_array()?;
    let names: Option<Vec<_>> = choices.iter().map(|choice| choice["const"].as_str()).collect();
    Some(quoted(&names?))
}

/// Returns what the names of a choice mean.
fn choices_of(definition: &Value) -> String {
    let choices = definition["oneOf"].as_array().into_iter().flatten();
    let named =
        choices.filter_map(|choice| Some((choice["const"].as_str()?, choice["description"].as_str()?)));
    named.map(|(name, description)| format!(" `{name}`: {}", description.replace('\n', " "))).collect()
}

/// Returns the names of a choice, and the definition of the table that is the other choice.
fn names_or_table(definition: &Value) -> Option<(String, &str)> {
    let (table, names) = definition["oneOf"].as_array()?.split_last()?;
    let names: Option<Vec<_>> = names.iter().map(|choice| choice["const"].as_str()).collect();
    Some((quoted(&names?), referred(table)?.0))
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Describes the valid values in words.
fn words(property: &Value) -> String {
    if let Some(names) = property["enum"].as_array() {
        return quoted(&names.iter().filter_map(Value::as_str).collect::<Vec<_>>());
    }
    if let Some(choices) = property["oneOf"].as_array() {
        return choices.iter().map(words).collect::<Vec<_>>().join(", or ");
    }
    let noun = match property["type"].as_str() {
        Some("integer") => "whole number",
        Some("number") => "number",
        Some("boolean") => return "`true`, `false`".into(),
        Some("string") => return "string".into(),
        Some("array") => return format!("list: {}", words(&property["items"])),
        other => unreachable!("no value of a job file is of type {other:?}"),
    };
    let bound = |key: &str| property[key].as_number().map(ToString::to_string);
    let least = bound("minimum").map(|least| format!("from {least}"));
    let least = least.or(bound("exclusiveMinimum").map(|least| format!("above {least}")));
    // The largest number that TOML can represent is not worth stating.
    let most = bound("maximum").filter(|most| *most != i64::MAX.to_string()).map(|most| format!("to {most}"));
    let most = most.or(bound("exclusiveMaximum").map(|most| format!("below {most}")));
    [Some(noun.to_owned()), least, most].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_documents_say_what_the_types_say() {
    let schema = schema();
    let root = &Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (name, text) in [("job.schema.json", text(&schema)), ("job.md", markdown(&schema))] {
        assert_written(root, name, &text, "-p rankine-job reference");
    }
}

#[test]
fn the_schema_admits_the_jobs_in_configs_and_no_wrong_ones() {
    let schema = schema();
    assert_valid(&schema);
    for path in jobs_in_configs() {
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(violation(&json(&text), &schema), None, "{}", path.display());
        // The effective job is valid, too.
        let effective = Job::from_toml("", &text, &["optimizer.schedule=constant"]).unwrap().to_toml();
        assert_eq!(violation(&json(&effective), &schema), None, "{effective}");
        let bare = text.replace("[train]", "[optimizer]\nschedule = \"constant\"\n[train]");
        if !text.contains("[optimizer.schedule]") {
            assert_eq!(violation(&json(&bare), &schema), None, "{bare}");
        }
        let wrong = [
            ("[train]\n", "[train]\nbatch_sise = 3\n"),
            ("[model]\n", "[model]\ncross_layers = 3\n"),
            ("kind = \"dlrm\"", "kind = \"drlm\""),
            ("batch_size = ", "batch_size = 0 # "),
            ("embedding_dim = ", "# "),
            ("learning_rate = ", "learning_rate = -"),
            ("[train]", "[[head]]\nlabel = 3\n[train]"),
        ];
        for (piece, replacement) in wrong.iter().filter(|(piece, _)| text.contains(piece)) {
            if text.contains("cross_layers") && replacement.contains("cross_layers") {
                continue;
            }
            let text = text.replacen(piece, replacement, 1);
            assert_ne!(violation(&json(&text), &schema), None, "{text}");
            assert!(Job::from_toml("", &text, &[""; 0]).is_err(), "{text}");
        }
    }
}

#[test]
fn every_kind_is_in_the_schema() {
    let kinds = schema()["$defs"]["Model"]["oneOf"].as_array().unwrap().clone();
    let names: Vec<_> =
        kinds.iter().map(|kind| kind["properties"][KIND]["const"].as_str().unwrap()).collect();
    assert_eq!(names, Model::KINDS.map(|kind| kind.name));
}
