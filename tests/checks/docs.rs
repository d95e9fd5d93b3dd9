//! Checks the documents: each link has a target, the book's table of contents names every page, and the pages for
//! maintainers name only files and types that exist.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::ops::Range;
use std::path::Path;

use pulldown_cmark::{BrokenLink, Event, LinkType, Options, Parser, Tag, TagEnd};

use crate::sources::rust_sources;
use crate::support::{files_below, root, word};

/// Documents outside `docs/`.
const ROOT_DOCUMENTS: [&str; 5] =
    ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "tests/formats/README.md", "tests/planted/README.md"];
const SUMMARY: &str = "docs/SUMMARY.md";

/// A link or image of a document.
struct Link {
    line: usize,
    target: String,
}

/// The links, anchors and mistakes of a document.
#[derive(Default)]
struct Document {
    links: Vec<Link>,
    /// The anchors of its headings.
    anchors: BTreeSet<String>,
    /// Mistakes that can be found without the other documents.
    mistakes: Vec<(usize, String)>,
}

impl Document {
    fn parse(text: &str) -> Self {
        let line = |range: &Range<usize>| text[..range.start].matches('\n').count() + 1;
        let mut document = Self::default();
        let mut undefined = Vec::new();
        let options = Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES;
        let events = Parser::new_with_broken_link_callback(
            text,
            options,
            Some(|link: BrokenLink<'_>| {
                // Plain text may have [brackets]; [text][label] is meant as a link.
                if matches!(link.link_type, LinkType::Reference | LinkType::Collapsed) {
                    undefined
                        .push((line(&link.span), format!("link label [{}] is not defined", link.reference)));
                }
                None
            }),
        );
        // The text of the heading that is being read.
        let mut heading: Option<String> = None;
        let mut headings = HashMap::new();
        for (event, range) in events.into_offset_iter() {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    document.links.push(Link { line: line(&range), target: dest_url.into_string() });
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let slug = slug(&heading.take().expect("the heading has started"));
                    document.anchors.insert(numbered(&mut headings, slug));
                }
                Event::Text(part) | Event::Code(part) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&part);
                    }
                }
                Event::SoftBreak => {
                    if let Some(heading) = &mut heading {
                        heading.push(' ');
                    }
                }
                _ => {}
            }
        }
        document.mistakes = undefined;
        document
    }
}

/// The anchor of a heading, as GitHub and mdBook make it.
fn slug(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|char| match char {
        char if char.is_whitespace() => Some('-'),
        char if char.is_alphanumeric() || ['-', '_'].contains(&char) => Some(char),
        _ => None,
    });
    kept.flat_map(char::to_lowercase).collect()
}

/// The second heading with one slug gets `-1` after it, the third one `-2`.
fn numbered(headings: &mut HashMap<String, usize>, slug: String) -> String {
    let earlier = headings.entry(slug.clone()).and_modify(|count| *count += 1).or_insert(0);
    if *earlier == 0 { slug } else { format!("{slug}-{earlier}") }
}

/// Resolves a path against the folder of a document. Returns nothing if it leaves the repository.
fn resolve(document: &str, path: &str) -> Option<String> {
    if path.is_empty() {
        return Some(document.to_owned());
    }
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

fn is_external(target: &str) -> bool {
    ["http://", "https://", "mailto:"].iter().any(|scheme| target.starts_with(scheme))
}

/// Returns a line of text for each link that leads nowhere, given the names and texts of all documents.
fn broken_links(texts: &BTreeMap<String, String>, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let documents: BTreeMap<&str, Document> =
        texts.iter().map(|(name, text)| (&**name, Document::parse(text))).collect();
    let mut broken = Vec::new();
    for (name, document) in &documents {
        broken.extend(document.mistakes.iter().map(|(line, mistake)| format!("{name}:{line}: {mistake}")));
        for Link { line, target } in document.links.iter().filter(|link| !is_external(&link.target)) {
            let mut complain = |what: String| broken.push(format!("{name}:{line}: {what}"));
            let (path, anchor) =
                target.split_once('#').map_or((&**target, None), |(path, anchor)| (path, Some(anchor)));
            if path.starts_with('/') {
                complain(format!("{target}: use a path relative to the document"));
                continue;
            }
            let Some(file) = resolve(name, path) else {
                complain(format!("{target}: outside of the repository"));
                continue;
            };
            if !exists(&file) {
                complain(format!("{target}: no such file"));
                continue;
            }
            let Some(anchor) = anchor else { continue };
            match documents.get(&*file) {
                None => complain(format!("{target}: {file} has no anchors that can be checked")),
                Some(document) if document.anchors.contains(anchor) => {}
                Some(_) => complain(format!("{target}: {file} has no heading with this anchor")),
            }
        }
    }
    broken
}

/// Returns a line of text for each difference between the pages of the book and those that its table of contents
/// names.
fn wrong_contents(texts: &BTreeMap<String, String>) -> Vec<String> {
    let listed: Vec<String> = Document::parse(&texts[SUMMARY])
        .links
        .iter()
        .filter_map(|link| resolve(SUMMARY, link.target.split('#').next().unwrap_or_default()))
        .collect();
    let unique: BTreeSet<&str> = listed.iter().map(|name| &**name).collect();
    let pages: BTreeSet<&str> = texts
        .keys()
        .map(|name| &**name)
        .filter(|name| name.starts_with("docs/") && *name != SUMMARY)
        .collect();
    let mut wrong: Vec<_> =
        pages.difference(&unique).map(|page| format!("{page} is missing in {SUMMARY}")).collect();
    wrong.extend(
        unique.difference(&pages).map(|page| format!("{SUMMARY} names {page}, which does not exist")),
    );
    let mut sorted = listed.clone();
    sorted.sort();
    let twice = sorted.windows(2).filter(|pair| pair[0] == pair[1]);
    wrong.extend(twice.map(|pair| format!("{SUMMARY} names {} twice", pair[0])));
    wrong
}

/// The names, relative to the root, and the texts of all documents.
fn documents() -> BTreeMap<String, String> {
    let pages = files_below(&root().join("docs"));
    let pages = pages.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let others = ROOT_DOCUMENTS.iter().map(|name| root().join(name));
    let name = |path: &Path| word(path.strip_prefix(root()).expect("it is below the root"));
    let read =
        |path: &Path| fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    pages.chain(others).map(|path| (name(&path), read(&path))).collect()
}

/// Folders with code that the pages for maintainers name.
const CODE: [&str; 8] = ["engine", "embedding", "reader", "topology", "cpu", "cuda", "tests", "fuzz"];
/// Terms that look like names in the code.
const MATHEMATICS: [&str; 2] = ["d_weights", "d_input"];

/// Whether a part of a name is an identifier.
fn is_identifier(part: &str) -> bool {
    !part.is_empty()
        && part.chars().all(|char| char.is_ascii_alphanumeric() || char == '_')
        && !part.starts_with(|char: char| char.is_ascii_digit())
}

/// Returns a line of text for each file, type or function in the code spans of a document that does not exist.
/// `identifiers` are all words of the code.
fn unknown_names(
    name: &str,
    text: &str,
    exists: impl Fn(&str) -> bool,
    identifiers: &HashSet<String>,
) -> Vec<String> {
    let mut unknown = Vec::new();
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        let Event::Code(code) = event else { continue };
        let mut complain = |what: &str| {
            let line = text[..range.start].matches('\n').count() + 1;
            unknown.push(format!("{name}:{line}: {code}: no such {what}"));
        };
        let is_path = code.chars().all(|char| char.is_ascii_alphanumeric() || "_-./".contains(char));
        // `NAME` stands for any name.
        if is_path && code.contains('/') && !code.contains("NAME") {
            let folder = code.split('/').next().unwrap_or_default();
            if CODE.contains(&folder) && !exists(&code) {
                complain("file");
            }
            continue;
        }
        let parts: Vec<&str> = code.split("::").collect();
        let is_type = parts[0].starts_with(|char: char| char.is_ascii_uppercase())
            && parts[0].contains(|char: char| char.is_ascii_lowercase());
        let is_function = parts[0].contains('_') && !MATHEMATICS.contains(&parts[0]);
        if parts.iter().all(|part| is_identifier(part))
            && (is_type || is_function || parts.len() > 1)
            && !parts.iter().all(|part| identifiers.contains(*part))
        {
            complain("name in the code");
        }
    }
    unknown
}

#[test]
fn internals_name_what_exists() {
    let mut identifiers = HashSet::new();
    for file in CODE.iter().flat_map(|folder| files_below(&root().join(folder))) {
        if file.extension().is_some_and(|extension| ["rs", "cu", "cuh"].iter().any(|code| extension == *code))
        {
            let text =
                fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            let words = text.split(|char: char| !char.is_ascii_alphanumeric() && char != '_');
            identifiers.extend(words.filter(|word| is_identifier(word)).map(str::to_owned));
        }
    }
    let exists = |path: &str| root().join(path).exists();
    let unknown: Vec<String> = documents()
        .iter()
        .filter(|(name, _)| name.starts_with("docs/internals/"))
        .flat_map(|(name, text)| unknown_names(name, text, exists, &identifiers))
        .collect();
    assert!(unknown.is_empty(), "{} unknown names:\n{}", unknown.len(), unknown.join("\n"));
}

#[test]
fn unknown_names_are_found() {
    let text = "# `Wrong` heading\n\n`Table::pool` and `engine/a.rs`, `engine/b.rs`\n\n| `Table::other` |\n|---|\n\
                | `step-N/x`, `kernels::table` `cuda/kernels/NAME.cu` `fp32` `x y` `TOML` |\n\n`d_weights` `look_up`\n";
    let identifiers = ["Table", "pool", "kernels"].map(str::to_owned).into();
    assert_eq!(
        unknown_names("a.md", text, |path| path == "engine/a.rs", &identifiers),
        [
            "a.md:1: Wrong: no such name in the code",
            "a.md:3: engine/b.rs: no such file",
            "a.md:5: Table::other: no such name in the code",
            "a.md:7: kernels::table: no such name in the code",
            "a.md:9: look_up: no such name in the code",
        ]
    );
}

#[test]
fn links_of_documents_have_targets() {
    let broken = broken_links(&documents(), |name| root().join(name).exists());
    assert!(broken.is_empty(), "{} broken links:\n{}", broken.len(), broken.join("\n"));
}

#[test]
fn the_table_of_contents_names_every_page() {
    let wrong = wrong_contents(&documents());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn broken_links_are_found() {
    let texts = |files: &[(&str, &str)]| -> BTreeMap<String, String> {
        files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    };
    let good = "# A `[data]` page: to read, _now_\n\n## Twice\n\n## Twice\n\n[brackets] and `[a](code.md)`\n\n\
                | [b](guide/b.md#größen-in-bytes_) |\n|---|\n| [own](#twice-1) [web](https://a.b/c#d) |\n\n\
                ```\n[c](fenced.md)\n```\n\n[d](../src/d.rs), [label][e], [folder](guide)\n\n[e]: guide/b.md\n";
    let page_b = "Größen in bytes_!\n---\n\n[up](../a.md#a-data-page-to-read-now) [same](./b.md)\n";
    let exists = |name: &str| ["docs/a.md", "docs/guide/b.md", "src/d.rs", "docs/guide"].contains(&name);
    let found = broken_links(&texts(&[("docs/a.md", good), ("docs/guide/b.md", page_b)]), exists);
    assert_eq!(found, [] as [&str; 0]);

    let bad = "[a](missing.md)\n\n[b](a.md#nothing) and ![c](c.png)\n[d](#Title)\n\n\
               # Title\n\n[e](../../x.md) [f](/docs/a.md) [g](../src/d.rs#L3) [h][i]\n";
    assert_eq!(
        broken_links(&texts(&[("docs/a.md", bad)]), exists),
        [
            "docs/a.md:8: link label [i] is not defined",
            "docs/a.md:1: missing.md: no such file",
            "docs/a.md:3: a.md#nothing: docs/a.md has no heading with this anchor",
            "docs/a.md:3: c.png: no such file",
            "docs/a.md:4: #Title: docs/a.md has no heading with this anchor",
            "docs/a.md:8: ../../x.md: outside of the repository",
            "docs/a.md:8: /docs/a.md: use a path relative to the document",
            "docs/a.md:8: ../src/d.rs#L3: src/d.rs has no anchors that can be checked",
        ]
    );

    let summary = "# Summary\n\n- [A](a.md)\n- [C](guide/c.md)\n- [A again](a.md)\n";
    assert_eq!(
        wrong_contents(&texts(&[
            (SUMMARY, summary),
            ("docs/a.md", ""),
            ("docs/guide/b.md", ""),
            ("R.md", "")
        ])),
        [
            "docs/guide/b.md is missing in docs/SUMMARY.md",
            "docs/SUMMARY.md names docs/guide/c.md, which does not exist",
            "docs/SUMMARY.md names docs/a.md twice",
        ]
    );
}

/// The longest run of at least three plain words in a quoted message: names, numbers and values differ each time.
fn longest_run(message: &str) -> Option<String> {
    let plain = |word: &&str| word.chars().all(|char| char.is_ascii_lowercase() || "'-".contains(char));
    let runs = message.split([',', ';']).flat_map(|part| {
        let words: Vec<_> = part.split_whitespace().collect();
        words.split(|word| !plain(word)).map(|run| run.join(" ")).collect::<Vec<_>>()
    });
    runs.filter(|run| run.split(' ').count() >= 3).max_by_key(String::len)
}

/// The text of all sources, in which strings that are continued on another line are joined, and of the messages that
/// `tests/golden` keeps.
fn sources_and_messages() -> String {
    let golden = files_below(&root().join("tests/golden/mistakes"));
    let mut all: String = golden.iter().map(|path| fs::read_to_string(path).unwrap_or_default()).collect();
    for text in rust_sources().into_values() {
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            match line.strip_suffix('\\') {
                Some(part) => {
                    all.push_str(part);
                    if let Some(next) = lines.peek_mut() {
                        *next = next.trim_start();
                    }
                }
                None => {
                    all.push_str(line);
                    all.push('\n');
                }
            }
        }
    }
    all
}

/// The page quotes messages so that people find them by searching: they must be what the program prints.
#[test]
fn the_troubleshooting_page_quotes_messages_as_they_are() {
    const PAGE: &str = "docs/guide/troubleshooting.md";
    let page = fs::read_to_string(root().join(PAGE)).expect("the page exists");
    let sources = sources_and_messages();
    let mut quoted = 0;
    let mut wrong = Vec::new();
    for (number, line) in (1..).zip(page.lines()).filter(|(_, line)| line.starts_with("| `")) {
        let cell = line.split(" | ").next().expect("a split has a part");
        let messages = cell.split('`').skip(1).step_by(2).filter_map(longest_run);
        for message in messages {
            quoted += 1;
            if !sources.contains(&message) {
                wrong.push(format!("{PAGE}:{number}: no message has \"{message}\""));
            }
        }
    }
    assert!(quoted > 50, "only {quoted} messages were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
