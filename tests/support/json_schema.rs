//! JSON Schemas of TOML files, made from the types that read the files. Unit tests of several crates include this file.

use std::fs;
use std::path::Path;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

/// The key of a table that names the choice.
pub(crate) const KIND: &str = "kind";

/// Environment variable: if it is set, the tests write the documents instead of comparing them.
const BLESS: &str = "RANKINE_BLESS";

/// Where docs.rs shows the documents of the latest release.
const DOCUMENTS: &str = "https://docs.rs/crate/rankine/latest/source/docs/reference";

/// Returns the name of a schema's document in `docs/reference`.
pub(crate) fn document(name: &str) -> String {
    format!("{name}.schema.json")
}

/// Returns the JSON Schema of a TOML file; `name` is its kind, such as `job`.
pub(crate) fn schema<T: JsonSchema>(name: &str) -> Value {
    let mut schema: Value =
        SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>().into();
    without_null(&mut schema);
    with_bare_names(&mut schema);
    let mut named = Map::new();
    named.extend(schema.as_object_mut().and_then(|schema| schema.shift_remove_entry("$schema")));
    named.insert("$id".into(), format!("{DOCUMENTS}/{}", document(name)).into());
    named.extend(schema.as_object().cloned().into_iter().flatten());
    named.into()
}

/// Allows only the name for a kind that needs no settings, as the reader does.
fn with_bare_names(schema: &mut Value) {
    let definitions = schema.get_mut("$defs").and_then(Value::as_object_mut);
    let choices = definitions.into_iter().flat_map(Map::values_mut);
    for kinds in choices.filter_map(|choice| choice.get_mut("oneOf")?.as_array_mut()) {
        let bare = |kind: &&Value| kind["required"].as_array().is_some_and(|keys| keys == &[KIND]);
        let names: Vec<_> = kinds.iter().filter(bare).map(|kind| kind["properties"][KIND].clone()).collect();
        kinds.extend(names);
    }
}

/// Removes null, which TOML does not have, and the formats of Rust's integers, whose ranges the schema states.
fn without_null(value: &mut Value) {
    match value {
        Value::Object(object) => {
            if object.get("default").is_some_and(Value::is_null) {
                object.remove("default");
            }
            // A property may have that name, too.
            if object.get("format").is_some_and(Value::is_string) {
                object.remove("format");
            }
            if let Some(Value::Array(types)) = object.get_mut("type") {
                types.retain(|name| name != "null");
                if let [only] = types.as_slice() {
                    let only = only.clone();
                    object.insert("type".into(), only);
                }
            }
            if let Some(Value::Array(choices)) = object.get_mut("anyOf") {
                choices.retain(|choice| choice["type"] != "null");
                if let [Value::Object(only)] = choices.as_slice() {
                    let only = only.clone();
                    object.remove("anyOf");
                    for (key, value) in only {
                        object.entry(key).or_insert(value);
                    }
                }
            }
            object.values_mut().for_each(without_null);
        }
        Value::Array(values) => values.iter_mut().for_each(without_null),
        _ => (),
    }
}

/// Compares a document with its text in `docs/reference`, or writes it. `root` is the root of the repository, and
/// `test` the arguments of `cargo test`.
#[track_caller]
pub(crate) fn assert_written(root: &Path, name: &str, text: &str, test: &str) {
    let path = root.join("docs/reference").join(name);
    if std::env::var_os(BLESS).is_some() {
        fs::write(&path, text).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == text,
        "docs/reference/{name} differs from the types: {BLESS}=1 cargo test {test} rewrites it"
    );
}

/// Returns the text of a schema.
pub(crate) fn text(schema: &Value) -> String {
    serde_json::to_string_pretty(schema).unwrap() + "\n"
}

/// Returns what a TOML file contains, as JSON.
pub(crate) fn json(toml: &str) -> Value {
    serde_json::to_value(toml::from_str::<toml::Value>(toml).unwrap()).unwrap()
}

/// Validates a value against the part of JSON Schema that these schemas use. Returns the first violation.
pub(crate) fn violation(value: &Value, schema: &Value) -> Option<String> {
    violation_of(value, schema, schema)
}

fn violation_of(value: &Value, schema: &Value, root: &Value) -> Option<String> {
    if let Some(path) = schema["$ref"].as_str() {
        return violation_of(value, root.pointer(path.strip_prefix('#')?)?, root);
    }
    for (keyword, is_met) in
        [("oneOf", (|count| count == 1) as fn(usize) -> bool), ("anyOf", |count| count > 0)]
    {
        if let Some(choices) = schema[keyword].as_array() {
            let admitted =
                choices.iter().filter(|choice| violation_of(value, choice, root).is_none()).count();
            return (!is_met(admitted)).then(|| format!("{value} is of {admitted} kinds"));
        }
    }
    let wrong = |what: &str| Some(format!("{value} {what}"));
    if !schema["const"].is_null() && schema["const"] != *value {
        return wrong("is another constant");
    }
    if schema["enum"].as_array().is_some_and(|names| !names.contains(value)) {
        return wrong("is no such name");
    }
    let of_type = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        other => unreachable!("{other:?}"),
    };
    if !of_type {
        return wrong("is of another type");
    }
    let length = value.as_str().map(|text| text.chars().count() as f64);
    for (number, keyword, is_wrong) in [
        (value.as_f64(), "minimum", (|number, bound| number < bound) as fn(f64, f64) -> bool),
        (value.as_f64(), "exclusiveMinimum", |number, bound| number <= bound),
        (value.as_f64(), "maximum", |number, bound| number > bound),
        (value.as_f64(), "exclusiveMaximum", |number, bound| number >= bound),
        (length, "minLength", |length, bound| length < bound),
        (length, "maxLength", |length, bound| length > bound),
    ] {
        if number.zip(schema[keyword].as_f64()).is_some_and(|(number, bound)| is_wrong(number, bound)) {
            return wrong("is outside of its range");
        }
    }
    if let Some(values) = value.as_array() {
        return values.iter().find_map(|value| violation_of(value, &schema["items"], root));
    }
    let object: &Map<String, Value> = value.as_object()?;
    assert_eq!(schema["additionalProperties"], false, "a table admits any key: {schema}");
    let missing = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    if let Some(missing) = missing.into_iter().find(|key| !object.contains_key(*key)) {
        return wrong(&format!("lacks {missing}"));
    }
    object.iter().find_map(|(key, value)| match &schema["properties"][key] {
        Value::Null => Some(format!("{key} is no key")),
        property => violation_of(value, property, root),
    })
}

/// Asserts that what a schema's keywords contain has the form that JSON Schema demands, as far as these schemas use
/// it; `.ci/schemas` validates them against the whole metaschema.
#[track_caller]
pub(crate) fn assert_valid(schema: &Value) {
    let Some(object) = schema.as_object() else { panic!("{schema} is no schema") };
    for (keyword, content) in object {
        match keyword.as_str() {
            "oneOf" | "anyOf" => {
                let choices = content.as_array().unwrap_or_else(|| panic!("{keyword} is {content}"));
                assert!(!choices.is_empty(), "{keyword} is empty");
                choices.iter().for_each(assert_valid);
            }
            "properties" | "$defs" => {
                let parts = content.as_object().unwrap_or_else(|| panic!("{keyword} is {content}"));
                parts.values().for_each(assert_valid);
            }
            "items" => assert_valid(content),
            "type" => assert!(content.is_string(), "{content}"),
            "required" | "enum" => assert!(content.is_array(), "{keyword} is {content}"),
            "default" | "const" => assert!(!content.is_null(), "{keyword} is null"),
            "title" | "description" | "pattern" | "$ref" | "$schema" | "$id" => {
                assert!(content.is_string(), "{keyword} is {content}");
            }
            "additionalProperties" => assert!(content.is_boolean(), "{content}"),
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "minLength" | "maxLength"
            | "minItems" | "maxItems" => assert!(content.is_number(), "{keyword} is {content}"),
            other => panic!("{other}: {content} is a keyword that this check does not know"),
        }
    }
}
