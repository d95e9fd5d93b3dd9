//! Checks the style of the repository, as far as rustfmt and clippy do not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::sources::{packages, rust_sources, texts};
use crate::support::{files_below, root};

const TEXT_EXTENSIONS: [&str; 9] = ["rs", "toml", "md", "cu", "cuh", "json", "html", "css", "js"];
/// Folders of files that stay as they are: inputs of tests, and what tests and other programs have written.
const UNCHECKED: [&str; 4] = ["fuzz/corpus/", "tests/corpus/", "tests/formats/", "tests/golden/"];
/// Files of others, which stay as they are.
const VENDORED: [&str; 2] =
    ["engine/views/src/report/page/uplot.css", "engine/views/src/report/page/uplot.js"];
const LINE_CHARS_MAX: usize = 120;
/// A longer file has more than one idea. Test files may be longer, since tests are read one by one.
const RUST_LINES_MAX: usize = 700;
/// Marks of unfinished work. `concat!` keeps them out of the text of this file.
const WORDS: [&str; 6] = [
    concat!("to", "do!("),
    concat!("db", "g!("),
    concat!("unimple", "mented!("),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("TO", "DO"),
];
/// Phrases that are not plain English; CONTRIBUTING.md has alternatives. `..` stands for one or two words.
const PHRASES: [&str; 13] = [
    "is told",
    "are told",
    "was told",
    "be told",
    "comes to",
    "came to",
    "come to",
    "so many",
    "gradients by",
    "gradient by",
    "no number",
    "of such",
    "what .. is for",
];
/// The maximum number of occurrences: some of them are idiomatic.
const PHRASES_MAX: usize = 40;
/// Pronouns without their nouns, which make a reader look back, and the most that there may be: lower these numbers.
const PRONOUNS: [(&str, usize); 3] = [("those of", 389), ("that of", 181), ("in words", 43)];
/// Prefixes of paths that exist on one developer's machine only.
const MACHINE_PATHS: [&str; 3] = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

/// Returns the violations of the rules in a file, one line of text each.
fn violations(name: &str, text: &str) -> Vec<String> {
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    let rust = extension == "rs";
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let mut complain = |what: &str| found.push(format!("{name}:{number}: {what}"));
        // Rows of tables and links cannot be broken into lines.
        let unbreakable = extension == "md" && (line.starts_with('|') || line.contains("://"));
        if ["rs", "toml", "md", "html", "css", "js"].contains(&extension)
            && !unbreakable
            && line.chars().count() > LINE_CHARS_MAX
        {
            complain(&format!("over {LINE_CHARS_MAX} characters"));
        }
        if rust && line.contains('\t') {
            complain("a tab");
        }
        if rust && line.contains(concat!("super", "::super")) {
            complain("a path two modules up: name it from the crate's root");
        }
        if line.ends_with(char::is_whitespace) {
            complain("trailing white space");
        }
        for word in WORDS.into_iter().filter(|word| contains_word(line, word)) {
            complain(&format!("unfinished: {word}"));
        }
        for path in MACHINE_PATHS.into_iter().filter(|path| line.contains(path)) {
            complain(&format!("a path of one machine: {path}"));
        }
    }
    let mut complain = |what: &str| found.push(format!("{name}: {what}"));
    if !text.ends_with('\n') || text.ends_with("\n\n") {
        complain("does not end with exactly one line feed");
    }
    if rust && !text.starts_with("//! ") {
        complain("does not start with a //! comment about its purpose");
    }
    let tests = name.starts_with("tests/") || name.contains("/tests/") || name.ends_with("/tests.rs");
    if rust && !tests && text.lines().count() > RUST_LINES_MAX {
        complain(&format!("over {RUST_LINES_MAX} lines"));
    }
    if rust {
        let unproven = unproven_unsafe(text);
        found.extend(
            unproven.map(|line| format!("{name}:{line}: unsafe without a preceding // SAFETY: comment")),
        );
    }
    found
}

/// Returns how often the phrase occurs in the line, as whole words.
fn occurrences(line: &str, phrase: &str) -> usize {
    match phrase.split_once("..") {
        None => line.match_indices(phrase).filter(|(at, _)| contains_word(&line[*at..], phrase)).count(),
        Some((before, after)) => line
            .match_indices(before)
            .filter(|(at, _)| {
                let rest = line[at + before.len()..].split(['.', ',', ';']).next().unwrap_or_default();
                rest.find(after).is_some_and(|end| (1..=2).contains(&rest[..end].split_whitespace().count()))
            })
            .count(),
    }
}

/// Returns whether a line contains the word, not as a part of a longer one.
fn contains_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let part = |char: Option<char>| char.is_some_and(|char| char.is_alphanumeric() || char == '_');
        let open = word.ends_with('(');
        !part(line[..at].chars().next_back()) && (open || !part(line[at + word.len()..].chars().next()))
    })
}

/// Returns the numbers of lines that open an unsafe block or implementation without a proof above their statement.
fn unproven_unsafe(text: &str) -> impl Iterator<Item = usize> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let opens = |line: &str| {
        let code = line.split("//").next().unwrap_or_default();
        contains_word(code, concat!("unsafe", " {")) || contains_word(code, concat!("unsafe", " impl"))
    };
    let proven = |at: usize| {
        let above = lines[..at].iter().rev();
        // Up to the end of the previous statement: attributes and the statement's own first lines may be in between.
        let mut statement = above.take_while(|line| {
            let comment_or_attribute = line.starts_with("//") || line.starts_with("#[");
            comment_or_attribute || !(line.is_empty() || line.ends_with([';', '{', '}']))
        });
        lines[at].contains("// SAFETY: ") || statement.any(|line| line.starts_with("// SAFETY: "))
    };
    let unproven: Vec<_> =
        (0..lines.len()).filter(|&at| opens(lines[at]) && !proven(at)).map(|at| at + 1).collect();
    unproven.into_iter()
}

/// Returns the Rust files below a `src` or beside the `main.rs` of a test that no file declares as a module, given the
/// names and texts of all files.
fn undeclared(files: &BTreeMap<String, String>) -> Vec<&str> {
    let declares = |parent: &str, module: &str| {
        let declarations = [format!("mod {module};"), format!("#[path = \"{module}.rs\"]")];
        let declares = |line: &str| declarations.iter().any(|declaration| line.trim().ends_with(declaration));
        files.get(parent).is_some_and(|text| text.lines().any(declares))
    };
    let undeclared = files.keys().filter(|name| {
        let Some((folder, module)) = name.strip_suffix(".rs").and_then(|name| name.rsplit_once('/')) else {
            return false;
        };
        let of_test = files.contains_key(&format!("{folder}/main.rs"));
        if !(of_test || name.contains("/src/")) || ["lib", "main"].contains(&module) {
            return false;
        }
        let (folder, module) = if module == "mod" {
            folder.rsplit_once('/').expect("it is below src")
        } else {
            (folder, module)
        };
        let parents = [
            format!("{folder}/mod.rs"),
            format!("{folder}.rs"),
            format!("{folder}/lib.rs"),
            format!("{folder}/main.rs"),
        ];
        !parents.iter().any(|parent| declares(parent, module))
    });
    undeclared.map(String::as_str).collect()
}

/// Returns the names, relative to the root, and the texts of all files to check.
fn checked_files() -> BTreeMap<String, String> {
    texts(|name| {
        let extension = name.rsplit_once('.').map(|(_, extension)| extension);
        extension.is_some_and(|own| TEXT_EXTENSIONS.contains(&own))
            && !UNCHECKED.iter().any(|folder| name.starts_with(folder))
            && !VENDORED.contains(&name)
    })
}

/// `doctor` and training find the same GPU libraries, because one function searches for them. The search of the
/// bindings tries other names in another order; only `Device::count` makes sure that it finds the same driver.
#[test]
fn gpu_libraries_are_searched_for_in_one_place() {
    const SEARCHES: [&str; 3] = ["libloading::Library::new(", "is_culib_present(", "culib("];
    const FILES: [&str; 2] = ["cuda/src/probe/library.rs", "cuda/src/runtime/device.rs"];
    for (name, text) in rust_sources() {
        let search = SEARCHES.iter().find(|search| text.contains(**search));
        assert!(search.is_none() || FILES.contains(&name.as_str()), "{name} searches with {search:?}");
    }
}

#[test]
fn every_file_is_tidy() {
    let files = checked_files();
    for package in packages() {
        assert!(
            files.keys().any(|name| name.starts_with(&package.sources)),
            "no file was found in {}",
            package.name
        );
    }
    let found: Vec<_> = files.iter().flat_map(|(name, text)| violations(name, text)).collect();
    assert!(found.is_empty(), "{} violations:\n{}", found.len(), found.join("\n"));
}

#[test]
fn texts_are_in_plain_english() {
    let mut found = Vec::new();
    for (name, text) in checked_files().iter().filter(|(name, _)| *name != "tests/checks/tidy.rs") {
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.to_lowercase();
            for phrase in PHRASES {
                let count = occurrences(&line, phrase);
                found.extend((0..count).map(|_| format!("{name}:{number}: {phrase}")));
            }
        }
    }
    let most = PHRASES_MAX;
    assert!(found.len() <= most, "{} phrases, {most} allowed:\n{}", found.len(), found.join("\n"));
}

#[test]
fn pronouns_have_nouns() {
    let files = checked_files();
    let texts = || files.iter().filter(|(name, _)| *name != "tests/checks/tidy.rs").map(|(_, text)| text);
    for (phrase, most) in PRONOUNS {
        let lines = texts().flat_map(|text| text.lines());
        let found: usize = lines.map(|line| occurrences(&line.to_lowercase(), phrase)).sum();
        assert!(found <= most, "{found} times {phrase:?}, {most} allowed");
    }
}

#[test]
fn every_source_file_is_part_of_a_crate() {
    let files = checked_files();
    assert_eq!(undeclared(&files), [] as [&str; 0]);
}

/// An entry of `tests/planted`: a bug that `.ci/planted` plants.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct PlantedBug {
    name: String,
    file: String,
    find: String,
    replace: String,
    test: String,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct PlantedBugs {
    bug: Vec<PlantedBug>,
}

/// Returns the names of all functions and modules in source files. Filters of `cargo test` match parts of them.
fn names_in_sources() -> Vec<String> {
    let files = checked_files().into_iter().filter(|(name, _)| name.ends_with(".rs"));
    let named = |line: &str, keyword: &str| {
        let (_, rest) = line.split_once(keyword)?;
        Some(rest.split(|char: char| !(char.is_alphanumeric() || char == '_')).next()?.to_owned())
    };
    let names = files.flat_map(|(_, text)| {
        let lines = text.lines().flat_map(|line| ["fn ", "mod "].map(|keyword| named(line, keyword)));
        lines.flatten().collect::<Vec<_>>()
    });
    names.collect()
}

/// Returns the filters among the arguments of `cargo test`, without options and their values.
fn test_filters(arguments: &str) -> Vec<&str> {
    let mut filters = Vec::new();
    let mut words = arguments.split_whitespace();
    while let Some(word) = words.next() {
        match word {
            "-p" | "--test" | "--bin" | "--features" => drop(words.next()),
            _ if word.starts_with('-') => {}
            _ => filters.push(word),
        }
    }
    filters
}

/// Every bug of `tests/planted` can still be planted: its text occurs exactly once in its file, and the tests that must
/// catch it exist.
#[test]
fn planted_bugs_fit_the_sources() {
    let mut names = BTreeSet::new();
    let mut wrong = Vec::new();
    let known = names_in_sources();
    let files = files_below(&root().join("tests/planted"));
    for path in files.into_iter().filter(|path| path.extension().is_some_and(|own| own == "toml")) {
        let text = fs::read_to_string(&path).expect("the file is readable");
        let bugs: PlantedBugs =
            toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for PlantedBug { name, file, find, replace, test } in bugs.bug {
            let mut complain = |what: String| wrong.push(format!("{}: {name}: {what}", path.display()));
            match fs::read_to_string(root().join(&file)) {
                Ok(source) if source.matches(&*find).count() == 1 => {}
                Ok(source) => {
                    complain(format!("{file} has `{find}` {} times", source.matches(&*find).count()))
                }
                Err(error) => complain(format!("{file}: {error}")),
            }
            if find == replace {
                complain("`replace` equals `find`".to_owned());
            }
            if test.trim().is_empty() {
                complain("`test` is empty".to_owned());
            }
            for filter in test_filters(&test) {
                let last = filter.rsplit("::").find(|part| !part.is_empty()).unwrap_or_default();
                if !known.iter().any(|name| name.contains(last)) {
                    complain(format!("no test or module is named `{last}`"));
                }
            }
            if !names.insert(name.clone()) {
                complain("another bug has the same name".to_owned());
            }
        }
    }
    assert!(wrong.is_empty(), "{} planted bugs do not fit:\n{}", wrong.len(), wrong.join("\n"));
}

/// Cargo enables all features of a crate that any dependency in a build requests. If only a dependency of tests
/// requested `preserve_order` of serde_json, tests would see JSON in another order than users.
#[test]
fn json_has_the_same_order_in_tests_and_releases() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("it is readable");
    let manifest: toml::Table = manifest.parse().expect("it is TOML");
    let keeps_order = |name: &str| {
        let features = manifest["workspace"]["dependencies"][name]["features"].as_array();
        features
            .expect("features are a list")
            .iter()
            .any(|feature| feature.as_str() == Some("preserve_order"))
    };
    assert_eq!(keeps_order("schemars"), keeps_order("serde_json"));
}

#[test]
fn each_rule_finds_its_violations() {
    let complaints = |name: &str, text: &str| violations(name, text).len();
    let rust = |text: &str| complaints("engine/src/a.rs", &format!("//! A file.\n{text}"));
    assert_eq!(rust("fn f() {}\n"), 0);
    assert_eq!(complaints("engine/src/a.rs", "fn f() {}\n"), 1);
    assert_eq!(rust(&format!("// {}\n", "é".repeat(118))), 1);
    assert_eq!(rust(&format!("// {}\n", "é".repeat(117))), 0);
    assert_eq!(complaints("a.md", &format!("| {} |\n", "a".repeat(200))), 0);
    assert_eq!(complaints("a.md", &format!("{}\n", "a".repeat(200))), 1);
    assert_eq!(rust("\tf();\n"), 1);
    assert_eq!(rust(concat!("use super", "::super::a;\n")), 1);
    assert_eq!(rust("f(); \n"), 1);
    assert_eq!(rust("f();"), 1);
    assert_eq!(rust("f();\n\n"), 1);
    for word in WORDS {
        assert_eq!(rust(&format!("{word}\n")), 1, "{word}");
        assert_eq!(rust(&format!("a{word}\n")), 0, "a{word}");
    }
    for path in MACHINE_PATHS {
        assert_eq!(complaints("a.toml", &format!("dir = \"{path}data\"\n")), 1, "{path}");
    }
    let long = "f();\n".repeat(RUST_LINES_MAX);
    assert_eq!(rust(&long), 1);
    assert_eq!(complaints("tests/a.rs", &format!("//! A file.\n{long}")), 0);

    let block = concat!("unsafe", " { f() };\n");
    let of_trait = concat!("unsafe", " impl Send for A {}\n");
    for code in [block, of_trait] {
        assert_eq!(rust(code), 1);
        assert_eq!(rust(&format!("// SAFETY: it is.\n{code}")), 0);
        assert_eq!(rust(&format!("// SAFETY: it is.\n#[inline]\n{code}")), 0);
        assert_eq!(rust(&format!("// SAFETY: it is.\n{code}{code}")), 1);
        assert_eq!(rust(&format!("// SAFETY: it is.\n\n{code}")), 1);
    }
    assert_eq!(rust(&format!("// SAFETY: it is.\nlet a =\n    {block}")), 0);

    assert_eq!(test_filters("-p rankine --test command -- kill:: again --exact"), ["kill::", "again"]);
    assert_eq!(occurrences("it is told what so many are, so many", "so many"), 2);
    assert_eq!(occurrences("the basis tolds", "is told"), 0);
    assert_eq!(occurrences("says what the table is for, and what it is for", "what .. is for"), 2);
    assert_eq!(occurrences("what stands here, this is for", "what .. is for"), 0);

    let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let tree = BTreeMap::from([
        file("a/src/lib.rs", "pub mod b;\nmod c;\n"),
        file("a/src/b.rs", ""),
        file("a/src/c/mod.rs", "#[cfg(test)]\nmod d;\n"),
        file("a/src/c/d.rs", ""),
        file("a/src/c/e.rs", ""),
        file("a/src/f/mod.rs", ""),
        file("a/src/f/b.rs", ""),
        file("tests/alone.rs", ""),
        file("tests/g/main.rs", "mod b;\n"),
        file("tests/g/b.rs", ""),
        file("tests/g/h.rs", ""),
    ]);
    assert_eq!(undeclared(&tree), ["a/src/c/e.rs", "a/src/f/b.rs", "a/src/f/mod.rs", "tests/g/h.rs"]);
}
