//! Open vocabularies on the command line: what conversions report, what `inspect` shows, and jobs that cannot train.

use crate::support::{Place, SUCCESS, USAGE, job, json_file, run, train};

const SCHEMA: &str = r#"
[label]
column = "click"

[[dense]]
column = "price"

[[categorical]]
column = "user"
vocabulary = { kind = "open" }

[[categorical]]
column = "friends"
separator = "|"
vocabulary = { kind = "shared", with = "user" }

[[categorical]]
column = "hour"
vocabulary = { kind = "identity", rows = 24 }
"#;

/// Converts rows of 40 users, each of whom has a friend among further ones in every second row.
fn convert(place: &Place, out: &str, args: &[&str]) -> crate::support::Ended {
    let row = |row: u32| {
        let friend = if row.is_multiple_of(2) { format!("f{}", row % 9) } else { String::new() };
        format!("{},{row},u{},{friend},{}\n", row % 2, row % 40, row % 24)
    };
    let rows: String = (0..500).map(row).collect();
    let rows = place.file("rows.csv", "click,price,user,friends,hour\n".to_owned() + &rows);
    let schema = place.file("schema.toml", SCHEMA);
    let out = place.word(out);
    run([&["convert", "csv", &rows, "--schema", &schema, "--split", "last:0.2", "--out", &out], args]
        .concat())
}

#[test]
fn conversions_report_keys_and_inspect_shows_open_columns() {
    let place = Place::new();
    let text = convert(&place, "data", &[]).with(SUCCESS).stdout;
    // 40 users and 9 friends.
    let line = "keys of user: 49 distinct categories; pairs that share a key: 6.5e-17 expected, 0 among 49 \
                categories\n";
    assert!(text.ends_with(line), "{text}");
    let json = convert(&place, "json", &["--json"]).with(SUCCESS).json();
    let user = &json["columns"]["user"];
    assert_eq!((user["keys"]["distinct_categories"].as_u64(), user.get("rows")), (Some(49), None));
    assert_eq!(json["columns"]["friends"].get("keys"), None, "they are counted with the users");
    assert_eq!(json_file(&place.path("data").join("conversion.json"))["columns"]["user"], *user);

    let data = place.word("data");
    let shown = run(["inspect", &data, "--verify"]).with(SUCCESS).stdout;
    let row = |name: &str| -> Vec<&str> {
        let line = shown.lines().find(|line| line.trim_start().starts_with(name)).expect("it is shown");
        line.split_whitespace().collect()
    };
    assert_eq!(row("user "), ["user", "open", "-", "1.00", "-", "-", "-", "-"]);
    assert_eq!(row("friends "), ["friends", "open", "-", "0.50", "-", "-", "-", "-"]);
    assert_eq!(row("hour ")[..3], ["hour", "24", "24"]);
    let json = run(["inspect", &data, "--json"]).with(SUCCESS).json();
    let tables = json["tables"].as_array().expect("a list");
    assert_eq!((&tables[0]["lookups"], tables[0].get("distinct_rows")), (&400.into(), None));
    assert_eq!(tables[2]["distinct_rows"], 24);
}

#[test]
fn training_on_keys_needs_a_dynamic_table() {
    let place = Place::new();
    convert(&place, "data", &[]).with(SUCCESS);
    let refused = train(&place, &job(&place), "run", &[]).with(USAGE);
    refused.says(&[
        "column user has an open vocabulary",
        "column friends has an open vocabulary",
        "rows = { dynamic = true, capacity = ",
    ]);
    assert!(!place.path("run").exists(), "nothing was started");
}
