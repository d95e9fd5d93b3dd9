//! Checks the structure of the crates: imports without cycles, one style of module files, tests apart from production
//! files, short functions, and named arguments instead of tuples.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::sources::{packages, rust_sources};
use crate::support::{files_below, root, word};

/// The longest function, from `fn` to its closing brace.
const FUNCTION_LINES_MAX: usize = 80;
/// The longest tuple that a parameter may be.
const TUPLE_MAX: usize = 2;

/// The path of a module below its crate, such as `["cuda", "feed"]`. The crate itself has the empty path.
type ModulePath = Vec<String>;

/// A module of production code that stands in a file of its own.
struct Module {
    file: PathBuf,
    /// What `use` brings into the module: the name there and the path that it stands for.
    imports: BTreeMap<String, Vec<String>>,
    /// All other paths of at least two segments, without their generic arguments.
    paths: BTreeSet<Vec<String>>,
    violations: Vec<String>,
}

/// The modules of a crate's production code.
struct Crate {
    modules: BTreeMap<ModulePath, Module>,
    /// The files of modules that only tests compile.
    test_files: Vec<PathBuf>,
}

impl Crate {
    /// Parses the crate with the root `folder/lib.rs` and, if present, `folder/main.rs`.
    fn parse(folder: &Path) -> Self {
        let mut parsed = Self { modules: BTreeMap::new(), test_files: Vec::new() };
        parsed.parse_module(Vec::new(), &folder.join("lib.rs"), folder);
        if folder.join("main.rs").exists() {
            parsed.parse_module(vec!["main".to_owned()], &folder.join("main.rs"), folder);
        }
        parsed
    }

    /// Parses a module and its children, which are files of `folder`.
    fn parse_module(&mut self, path: ModulePath, file: &Path, folder: &Path) {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let syntax = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let mut reader = ModuleReader::new(file);
        reader.visit_file(&syntax);
        let children = std::mem::take(&mut reader.children);
        // A stub may have the name of the module that it stands in for.
        self.modules.entry(path.clone()).or_insert(reader.module);
        for child in children {
            let (file, folder) = child.find(folder);
            if child.test {
                self.test_files.push(file);
            } else {
                let name = if child.path.is_some() { stem(&file) } else { child.name };
                let of_root = if path == ["main"] { Vec::new() } else { path.clone() };
                self.parse_module([of_root, vec![name]].concat(), &file, &folder);
            }
        }
    }

    /// Returns the module that defines what `path`, relative to `from`, stands for. Re-exports are followed.
    fn definition(&self, from: &[String], path: &[String], depth: usize) -> Option<ModulePath> {
        let (first, rest) = path.split_first()?;
        let mut module = match first.as_str() {
            "crate" => Vec::new(),
            "self" => from.to_vec(),
            "super" => from.split_last()?.1.to_vec(),
            name => {
                let child = [from, &[name.to_owned()]].concat();
                if self.modules.contains_key(&child) {
                    child
                } else {
                    let import = self.modules.get(from)?.imports.get(name)?;
                    let whole = [import.as_slice(), rest].concat();
                    return (depth > 0).then(|| self.definition(from, &whole, depth - 1))?;
                }
            }
        };
        for (at, name) in rest.iter().enumerate() {
            if name == "super" {
                module.pop()?;
                continue;
            }
            let child = [module.as_slice(), std::slice::from_ref(name)].concat();
            if self.modules.contains_key(&child) {
                module = child;
                continue;
            }
            let import = self.modules.get(&module)?.imports.get(name);
            return match import {
                Some(import) if depth > 0 => {
                    let whole = [import.as_slice(), &rest[at + 1..]].concat();
                    self.definition(&module, &whole, depth - 1)
                }
                _ => Some(module),
            };
        }
        Some(module)
    }

    /// Returns which modules each module refers to.
    fn references(&self) -> BTreeMap<&ModulePath, BTreeSet<ModulePath>> {
        let of_module = |path: &ModulePath, module: &Module| {
            let imports = module.imports.values().filter(|import| {
                // Modules are imported to write shorter paths, which are read below.
                !self.is_module(path, import)
            });
            let mut found: BTreeSet<_> =
                imports.chain(&module.paths).filter_map(|used| self.definition(path, used, 8)).collect();
            found.remove(path);
            found
        };
        self.modules.iter().map(|(path, module)| (path, of_module(path, module))).collect()
    }

    fn is_module(&self, from: &[String], path: &[String]) -> bool {
        let Some((last, before)) = path.split_last() else { return false };
        let parent = if before.is_empty() { Some(from.to_vec()) } else { self.definition(from, before, 8) };
        parent.is_some_and(|parent| self.modules.contains_key(&[parent, vec![last.clone()]].concat()))
    }

    /// Returns the cycles among siblings, everything below a sibling counted as the sibling: one line of text each.
    fn cycles(&self) -> Vec<String> {
        // For each parent: from child to child, with an example of files.
        let mut siblings: BTreeMap<ModulePath, BTreeMap<String, BTreeMap<String, String>>> = BTreeMap::new();
        for (from, targets) in self.references() {
            for to in targets {
                let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
                // A parent may name its children, and a child what its parent defines.
                if let (Some(a), Some(b)) = (from.get(common), to.get(common)) {
                    let example = format!("{} -> {}", from.join("::"), to.join("::"));
                    let of_parent = siblings.entry(from[..common].to_vec()).or_default();
                    of_parent.entry(a.clone()).or_default().entry(b.clone()).or_insert(example);
                }
            }
        }
        let mut found = Vec::new();
        for (parent, edges) in &siblings {
            for (a, targets) in edges {
                for (b, example) in targets {
                    if reaches(edges, b, a) {
                        found.push(format!("[{}] {a} -> {b}: {example}", parent.join("::")));
                    }
                }
            }
        }
        found
    }
}

/// Returns whether `to` can be reached from `from`.
fn reaches(edges: &BTreeMap<String, BTreeMap<String, String>>, from: &str, to: &str) -> bool {
    let mut seen = BTreeSet::from([from]);
    let mut open = vec![from];
    while let Some(at) = open.pop() {
        if at == to {
            return true;
        }
        for next in edges.get(at).into_iter().flatten().map(|(next, _)| next.as_str()) {
            if seen.insert(next) {
                open.push(next);
            }
        }
    }
    false
}

fn stem(file: &Path) -> String {
    word(file.file_stem().map(Path::new).expect("a module has a name"))
}

/// A `mod name;`.
struct Child {
    name: String,
    /// The value of `#[path]`.
    path: Option<String>,
    test: bool,
}

impl Child {
    /// Returns the module's file and the folder of its children, given the folder of its parent's children.
    fn find(&self, folder: &Path) -> (PathBuf, PathBuf) {
        let own = folder.join(&self.name);
        if let Some(path) = &self.path {
            return (folder.join(path), own);
        }
        let flat = folder.join(format!("{}.rs", self.name));
        (if flat.exists() { flat } else { own.join("mod.rs") }, own)
    }
}

/// Collects what a module's file says, without code that only tests compile.
struct ModuleReader {
    module: Module,
    children: Vec<Child>,
}

impl ModuleReader {
    fn new(file: &Path) -> Self {
        let module = Module {
            file: file.to_owned(),
            imports: BTreeMap::new(),
            paths: BTreeSet::new(),
            violations: Vec::new(),
        };
        Self { module, children: Vec::new() }
    }

    fn import(&mut self, tree: &syn::UseTree, before: &[String]) {
        let followed_by = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.import(&path.tree, &followed_by(&path.ident)),
            syn::UseTree::Name(name) if name.ident == "self" => {
                let last = before.last().expect("self follows a path").clone();
                self.module.imports.insert(last, before.to_vec());
            }
            syn::UseTree::Name(name) => {
                self.module.imports.insert(name.ident.to_string(), followed_by(&name.ident));
            }
            syn::UseTree::Rename(rename) => {
                let path = followed_by(&rename.ident);
                // `_` may stand for several traits.
                if rename.rename == "_" {
                    self.module.paths.insert(path);
                } else {
                    self.module.imports.insert(rename.rename.to_string(), path);
                }
            }
            syn::UseTree::Glob(_) => {
                self.module.paths.insert(before.to_vec());
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, before)),
        }
    }

    /// Finds the paths in the arguments of a macro.
    fn read_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.end_path(&mut path);
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.end_path(&mut path);
                    self.read_tokens(group.stream());
                    colons = 0;
                }
                _ => {
                    self.end_path(&mut path);
                    colons = 0;
                }
            }
        }
        self.end_path(&mut path);
    }

    fn end_path(&mut self, path: &mut Vec<String>) {
        let path = std::mem::take(path);
        if path.len() > 1 {
            self.module.paths.insert(path);
        }
    }

    fn read_function(&mut self, signature: &syn::Signature, end: proc_macro2::Span) {
        let name = &signature.ident;
        let first = signature.fn_token.span().start().line;
        let lines = end.end().line + 1 - first;
        let mut complain = |what: String| {
            self.module.violations.push(format!("{}:{first}: {what}", self.module.file.display()));
        };
        if lines > FUNCTION_LINES_MAX {
            complain(format!("{name} has {lines} lines"));
        }
        for input in &signature.inputs {
            if let syn::FnArg::Typed(input) = input {
                let longest = tuple_length(&input.ty).max(pattern_length(&input.pat));
                if longest > TUPLE_MAX {
                    complain(format!("{name} has a parameter that is a tuple of {longest}"));
                }
            }
        }
    }
}

fn tuple_length(of: &syn::Type) -> usize {
    match of {
        syn::Type::Tuple(tuple) => tuple.elems.len(),
        syn::Type::Reference(reference) => tuple_length(&reference.elem),
        syn::Type::Paren(paren) => tuple_length(&paren.elem),
        _ => 0,
    }
}

fn pattern_length(pattern: &syn::Pat) -> usize {
    match pattern {
        syn::Pat::Tuple(tuple) => tuple.elems.len(),
        syn::Pat::Reference(reference) => pattern_length(&reference.pat),
        _ => 0,
    }
}

/// Returns whether an item is compiled for tests alone.
pub(crate) fn for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let tests = |tokens: &TokenStream| {
            let text = tokens.to_string();
            text == "test" || text.replace(' ', "").starts_with("all(test,")
        };
        attribute.path().is_ident("test")
            || matches!(&attribute.meta, syn::Meta::List(list) if list.path.is_ident("cfg") && tests(&list.tokens))
    })
}

impl<'ast> Visit<'ast> for ModuleReader {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let test = for_tests(&item.attrs);
        if item.content.is_none() {
            let path = item.attrs.iter().find(|attribute| attribute.path().is_ident("path"));
            let path = path.and_then(|path| match &path.meta.require_name_value().ok()?.value {
                syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
                _ => None,
            });
            self.children.push(Child { name: item.ident.to_string(), path, test });
        } else if !test {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = match item {
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            syn::Item::Struct(item) => &item.attrs,
            syn::Item::Const(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.import(&item.tree, &[]);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.read_function(&item.sig, item.block.span());
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !for_tests(&item.attrs) {
            self.read_function(&item.sig, item.block.span());
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.read_function(&item.sig, item.span());
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            self.module.paths.insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, of: &'ast syn::Macro) {
        self.read_tokens(of.tokens.clone());
        visit::visit_macro(self, of);
    }
}

/// Returns the violations of the rules on files: the style of module files, and tests that look like production code.
fn misplaced_files(folder: &Path, test_files: &[PathBuf]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files_below(folder) {
        if file.extension().is_some_and(|own| own == "rs") && file.with_extension("").is_dir() {
            found.push(format!("{}: stands beside its folder; name it mod.rs", file.display()));
        }
    }
    for file in test_files {
        let below = file.strip_prefix(root()).unwrap_or(file);
        let in_tests = below.components().any(|part| part.as_os_str() == "tests");
        if !in_tests && !file.ends_with("tests.rs") {
            found.push(format!("{}: only tests compile it; put it into a folder `tests`", file.display()));
        }
    }
    found
}

#[test]
fn imports_have_no_cycles() {
    let mut found = Vec::new();
    for folder in packages().into_iter().map(|package| package.sources) {
        let parsed = Crate::parse(&root().join(&folder));
        let files = files_below(&root().join(&folder));
        let files =
            files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "rs")).count();
        let modules = parsed.modules.len();
        assert!(4 * modules >= 3 * files, "{folder} has {modules} modules in {files} files");
        found.extend(parsed.cycles().into_iter().map(|cycle| format!("{folder}: {cycle}")));
    }
    assert!(found.is_empty(), "{} imports are part of cycles:\n{}", found.len(), found.join("\n"));
}

#[test]
fn functions_are_short_and_name_their_arguments() {
    let mut found = Vec::new();
    for package in packages() {
        let parsed = Crate::parse(&root().join(package.sources));
        found.extend(parsed.modules.into_values().flat_map(|module| module.violations));
    }
    assert!(found.is_empty(), "{} violations:\n{}", found.len(), found.join("\n"));
}

#[test]
fn files_stand_where_their_names_say() {
    let mut found = Vec::new();
    for package in packages() {
        let folder = root().join(package.sources);
        found.extend(misplaced_files(&folder, &Crate::parse(&folder).test_files));
    }
    assert!(found.is_empty(), "{} files:\n{}", found.len(), found.join("\n"));
}

/// Returns whether a file has unsafe code that is not for tests alone.
fn has_unsafe(text: &str) -> bool {
    struct Finder(bool);
    impl<'ast> Visit<'ast> for Finder {
        fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
            if !for_tests(&item.attrs) {
                visit::visit_item_mod(self, item);
            }
        }

        fn visit_expr_unsafe(&mut self, _: &'ast syn::ExprUnsafe) {
            self.0 = true;
        }

        fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
            self.0 |= item.unsafety.is_some();
            visit::visit_item_impl(self, item);
        }

        fn visit_macro(&mut self, of: &'ast syn::Macro) {
            self.0 |= of.tokens.to_string().contains(concat!("unsafe", " {"));
        }

        fn visit_signature(&mut self, signature: &'ast syn::Signature) {
            self.0 |= matches!(signature.safety, syn::Safety::Unsafe(_));
        }
    }
    let mut finder = Finder(false);
    finder.visit_file(&syn::parse_file(text).expect("it is Rust"));
    finder.0
}

/// `docs/internals/architecture.md` names every place of unsafe code, and no other.
#[test]
fn unsafe_code_is_where_the_architecture_says() {
    let page = fs::read_to_string(root().join("docs/internals/architecture.md")).expect("the page is there");
    let (_, rest) = page.split_once("**`unsafe` stays at the edges,**").expect("the page has the list");
    let list = rest.split("\n\n").next().unwrap_or_default();
    let places: Vec<_> = list.split('`').skip(1).step_by(2).collect();
    let is_of_tests = |name: &str| name.contains("/tests/") || name.ends_with("/tests.rs");
    let files = rust_sources().into_iter().filter(|(name, text)| !is_of_tests(name) && has_unsafe(text));
    let files: Vec<_> = files.map(|(name, _)| name).collect();
    let is_in = |file: &String, place: &str| Path::new(file).starts_with(place);
    let unnamed: Vec<_> =
        files.iter().filter(|file| !places.iter().any(|place| is_in(file, place))).collect();
    let stale: Vec<_> = places.iter().filter(|place| !files.iter().any(|file| is_in(file, place))).collect();
    assert!(
        unnamed.is_empty() && stale.is_empty(),
        "not on the page: {unnamed:?}; without unsafe code: {stale:?}"
    );
}

/// Queues that a `select!` waits for, or whose receiver several threads use, come from crossbeam-channel. All others
/// come from `std::sync::mpsc`, which needs no dependency.
#[test]
fn channels_come_from_the_standard_library_unless_receivers_are_shared() {
    const SHARED: [&str; 10] = [
        "engine/checkpoint/src/writer.rs",
        "engine/gpu/src/cuda/feed/copier.rs",
        "engine/gpu/src/cuda/feed/mod.rs",
        "engine/src/trainer/mod.rs",
        "engine/src/training/run/requests.rs",
        "reader/src/background.rs",
        "reader/src/convert/write/mod.rs",
        "reader/src/io/",
        "reader/src/ordered.rs",
        "reader/src/stream/",
    ];
    for (name, text) in rust_sources() {
        let is_shared = SHARED.iter().any(|shared| name.starts_with(shared));
        assert!(
            is_shared || !text.contains("crossbeam_channel::"),
            "{name}: does it need crossbeam-channel?"
        );
        let mixes = name.starts_with("reader/src/") && text.contains("std::sync::mpsc");
        assert!(!mixes || name.contains("tests"), "{name}: the reader has crossbeam-channel");
    }
}

/// Writes the files of a crate, and returns its import cycles.
fn cycles_of(files: &[(&str, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, text) in files {
        let file = folder.path().join(name);
        fs::create_dir_all(file.parent().expect("it is in the folder")).expect("the folder is writable");
        fs::write(file, text).expect("the folder is writable");
    }
    Crate::parse(folder.path()).cycles()
}

#[test]
fn each_kind_of_import_can_close_a_cycle() {
    let lib = ("lib.rs", "mod a;\nmod b;");
    let uses_b = ("a.rs", "use crate::b::B;\npub struct A;");
    let number_of_cycles = |b: &str| cycles_of(&[lib, uses_b, ("b.rs", b)]).len();
    assert_eq!(number_of_cycles("pub struct B;"), 0);
    assert_eq!(number_of_cycles("use crate::a::A; pub struct B;"), 2);
    assert_eq!(number_of_cycles("use super::a; pub struct B(a::A);"), 2);
    assert_eq!(number_of_cycles("pub struct B(crate::a::A);"), 2);
    assert_eq!(number_of_cycles("pub struct B; fn f() { println!(\"{}\", crate::a::A); }"), 2);
    assert_eq!(number_of_cycles("pub struct B;\n#[cfg(test)]\nmod tests { use crate::a::A; }"), 0);

    // A re-export stands for the module that defines the name.
    let parent = ("lib.rs", "mod a;\nmod b;\npub use a::A;");
    assert_eq!(cycles_of(&[parent, uses_b, ("b.rs", "use crate::A; pub struct B;")]).len(), 2);
    // A child may use its parent, which names its child.
    let folder = [("lib.rs", "mod a;"), ("a/mod.rs", "mod b;\npub use b::B;\npub struct A;")];
    assert_eq!(cycles_of(&[&folder[..], &[("a/b.rs", "use super::A; pub struct B(A);")]].concat()).len(), 0);
}

#[test]
fn long_functions_and_tuples_are_found() {
    let violations = |text: &str| {
        let mut reader = ModuleReader::new(Path::new("a.rs"));
        reader.visit_file(&syn::parse_file(text).expect("it is Rust"));
        reader.module.violations.len()
    };
    let function = |lines: usize| format!("/// Long.\nfn f() {{\n{}}}\n", "f();\n".repeat(lines - 2));
    assert_eq!(violations(&function(FUNCTION_LINES_MAX)), 0);
    assert_eq!(violations(&function(FUNCTION_LINES_MAX + 1)), 1);
    assert_eq!(violations(&format!("impl A {{ {} }}", function(FUNCTION_LINES_MAX + 1))), 1);
    assert_eq!(violations(&format!("#[cfg(test)]\nmod tests {{ {} }}", function(FUNCTION_LINES_MAX + 1))), 0);
    assert_eq!(violations("fn f((a, b): (u8, u8)) {}"), 0);
    assert_eq!(violations("fn f((a, b, c): (u8, u8, u8)) {}"), 1);
    assert_eq!(violations("trait A { fn f(a: &(u8, u8, u8)); }"), 1);
    assert_eq!(violations("type B = (u8, u8, u8); fn f((a, b, c): B) {}"), 1);
}
