//! The stable interface of the library, `rankine::prelude`, kept as text.
//!
//! A change of the interface shows in `golden/api.txt`: `UPDATE_EXPECT=1 cargo test --test checks api::` rewrites it.
//! The text is made from the sources: items are found as the compiler finds them, through modules and re-exports.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use expect_test::expect_file;
use proc_macro2::{Span, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::{Attribute, Fields, ImplItem, Item, TraitItem, UseTree, Visibility};

use crate::sources::packages;
use crate::support::root;

/// The path of a module or an item; its first name is that of the crate.
type ItemPath = Vec<String>;

struct Module {
    text: String,
    items: Vec<Item>,
    /// What `use` brings into the module, by its name there. Paths are as written.
    imports: BTreeMap<String, ItemPath>,
}

#[derive(Default)]
struct Sources {
    modules: BTreeMap<ItemPath, Module>,
}

impl Sources {
    fn read() -> Self {
        let mut sources = Self::default();
        for package in packages() {
            let folder = root().join(package.sources);
            sources.module(vec![package.name], &folder.join("lib.rs"), &folder);
        }
        sources
    }

    /// Reads a module and its children, which are files of `folder`.
    fn module(&mut self, path: ItemPath, file: &Path, folder: &Path) {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let items =
            syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display())).items;
        let mut imports = BTreeMap::new();
        for item in &items {
            match item {
                Item::Use(item) => import(&item.tree, &[], &mut imports),
                Item::Mod(item) if item.content.is_none() && !has(&item.attrs, "cfg", "test") => {
                    let name = item.ident.to_string();
                    let file = [folder.join(format!("{name}.rs")), folder.join(&name).join("mod.rs")];
                    // Without the feature `cuda`, another file stands in.
                    if let Some(file) = file.iter().find(|file| file.exists()) {
                        self.module([path.clone(), vec![name.clone()]].concat(), file, &folder.join(name));
                    }
                }
                _ => {}
            }
        }
        self.modules.insert(path, Module { text, items, imports });
    }

    /// Returns the path at which an item is defined, `path` being relative to a module.
    fn definition(&self, module: &[String], path: &[String]) -> Option<ItemPath> {
        let (first, rest) = path.split_first()?;
        let here = match first.as_str() {
            "crate" => vec![module[0].clone()],
            "self" => module.to_vec(),
            "super" => module.split_last()?.1.to_vec(),
            name => {
                let child = [module, std::slice::from_ref(first)].concat();
                if self.modules.contains_key(&child) {
                    child
                } else if self.modules.contains_key(&[name.to_owned()][..]) {
                    vec![name.to_owned()]
                } else {
                    let module_of = self.modules.get(module)?;
                    if rest.is_empty()
                        && module_of.items.iter().any(|item| name_of(item).as_deref() == Some(name))
                    {
                        return Some(child);
                    }
                    let Some(imported) = module_of.imports.get(name) else {
                        let globs = module_of.imports.iter().filter(|(name, _)| name.ends_with("::*"));
                        let mut found = globs.map(|(_, from)| [from.as_slice(), path].concat());
                        return found.find_map(|path| self.definition(module, &path));
                    };
                    // `use` of a name of itself is one of another crate.
                    let again = imported.first() == Some(first) && imported.len() == 1;
                    return (!again)
                        .then(|| self.definition(module, &[imported.as_slice(), rest].concat()))?;
                }
            }
        };
        if rest.is_empty() { Some(here) } else { self.definition(&here, rest) }
    }
}

/// Adds what a `use` brings into a module.
fn import(tree: &UseTree, before: &[String], imports: &mut BTreeMap<String, ItemPath>) {
    let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
    match tree {
        UseTree::Path(path) => import(&path.tree, &with(&path.ident), imports),
        UseTree::Group(group) => group.items.iter().for_each(|tree| import(tree, before, imports)),
        UseTree::Name(name) if name.ident == "self" => {
            imports.insert(before.last().cloned().unwrap_or_default(), before.to_vec());
        }
        UseTree::Name(name) => {
            imports.insert(name.ident.to_string(), with(&name.ident));
        }
        UseTree::Rename(rename) => {
            imports.insert(rename.rename.to_string(), with(&rename.ident));
        }
        UseTree::Glob(_) => {
            imports.insert(format!("{}::*", before.join("::")), before.to_vec());
        }
    }
}

/// Returns the name of an item that the prelude can have.
fn name_of(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Struct(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Const(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

/// Returns whether one of the attributes is `name` and has this word.
fn has(attributes: &[Attribute], name: &str, word: &str) -> bool {
    let named = attributes.iter().filter(|attribute| attribute.path().is_ident(name));
    let mut lists = named.filter_map(|attribute| attribute.meta.require_list().ok());
    lists.any(|list| words(&list.tokens).contains(word))
}

/// Returns all names in tokens.
fn words(tokens: &TokenStream) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for token in tokens.clone() {
        match token {
            TokenTree::Ident(ident) => drop(found.insert(ident.to_string())),
            TokenTree::Group(group) => found.extend(words(&group.stream())),
            _ => {}
        }
    }
    found
}

fn public(visibility: &Visibility, attributes: &[Attribute]) -> bool {
    matches!(visibility, Visibility::Public(_)) && !has(attributes, "doc", "hidden")
}

/// Writes the items of a module as text.
struct Writer<'a> {
    module: &'a Module,
    out: String,
}

impl Writer<'_> {
    /// Returns the source from one token to another, on one line.
    fn text(&self, from: Span, to: Span) -> String {
        let source = &self.module.text[from.byte_range().start..to.byte_range().end];
        let words = source.lines().filter(|line| !line.trim_start().starts_with("//"));
        let words = words.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ");
        words.replace("( ", "(").replace(", )", ")").replace(" )", ")").replace(", >", ">").replace("< ", "<")
    }

    fn of(&self, tokens: &impl Spanned) -> String {
        self.text(tokens.span(), tokens.span())
    }

    fn line(&mut self, depth: usize, text: &str) {
        writeln!(self.out, "{:1$}{text}", "", 4 * depth).expect("a string takes any text");
    }

    /// Writes the attributes that callers depend on.
    fn attributes(&mut self, depth: usize, attributes: &[Attribute]) {
        for attribute in attributes.iter().filter(|attribute| {
            ["derive", "non_exhaustive"].into_iter().any(|name| attribute.path().is_ident(name))
        }) {
            let text = self.of(attribute);
            self.line(depth, &text);
        }
    }

    fn fields(&mut self, depth: usize, fields: &Fields, of_variant: bool) {
        for field in fields {
            if of_variant || public(&field.vis, &field.attrs) {
                let name = field.ident.as_ref().map_or(String::new(), |name| format!("{name}: "));
                let text = format!("{name}{}", self.of(&field.ty));
                self.line(depth, &text);
            }
        }
    }

    fn definition(&mut self, item: &Item) {
        match item {
            Item::Struct(item) => {
                self.attributes(0, &item.attrs);
                let text = format!("struct {}{}", item.ident, self.of(&item.generics));
                self.line(0, &text);
                self.fields(1, &item.fields, false);
            }
            Item::Enum(item) => {
                self.attributes(0, &item.attrs);
                let text = format!("enum {}{}", item.ident, self.of(&item.generics));
                self.line(0, &text);
                for variant in &item.variants {
                    self.line(1, &variant.ident.to_string());
                    self.fields(2, &variant.fields, true);
                }
            }
            Item::Trait(item) => {
                let supertraits =
                    if item.supertraits.is_empty() { String::new() } else { self.of(&item.supertraits) };
                let text = format!("trait {}{}: {supertraits}", item.ident, self.of(&item.generics));
                self.line(0, text.trim_end_matches(": "));
                for item in &item.items {
                    match item {
                        TraitItem::Fn(method) => self.signature(1, &method.sig),
                        TraitItem::Const(constant) => {
                            let text = format!("const {}: {}", constant.ident, self.of(&constant.ty));
                            self.line(1, &text);
                        }
                        _ => {}
                    }
                }
            }
            Item::Fn(item) => self.signature(0, &item.sig),
            _ => panic!("{:?} is no item that the prelude has so far", name_of(item)),
        }
    }

    fn signature(&mut self, depth: usize, signature: &syn::Signature) {
        let text = self.of(signature);
        self.line(depth, &text);
    }

    /// Writes what a macro of the module makes, as the macro has it.
    fn made_by(&mut self, name: &str, sources: &Sources) {
        for (module, item) in
            sources.modules.values().flat_map(|of| of.items.iter().map(move |item| (of, item)))
        {
            if let Item::Macro(item) = item
                && item.ident.as_ref().is_some_and(|ident| ident == name)
            {
                let span = item.span().byte_range();
                let lines = module.text[span].lines().map(str::trim);
                let heads = ["impl ", "pub fn ", "const "];
                for line in lines.filter(|line| heads.iter().any(|head| line.starts_with(head))) {
                    let head = line.trim_start_matches("pub ").trim_end_matches(" {").to_owned();
                    self.line(usize::from(!line.starts_with("impl ")), &head);
                }
            }
        }
    }

    /// Writes an `impl`, if it has anything public.
    fn implementation(&mut self, item: &syn::ItemImpl) {
        let head = self.text(item.impl_token.span(), item.self_ty.span());
        if item.trait_.is_some() {
            return self.line(0, &head);
        }
        let items = item.items.iter().filter(|item| match item {
            ImplItem::Fn(method) => public(&method.vis, &method.attrs),
            ImplItem::Const(constant) => public(&constant.vis, &constant.attrs),
            _ => false,
        });
        for (number, item) in items.enumerate() {
            if number == 0 {
                self.line(0, &head);
            }
            match item {
                ImplItem::Fn(method) => self.signature(1, &method.sig),
                ImplItem::Const(constant) => {
                    let text = format!("const {}: {}", constant.ident, self.of(&constant.ty));
                    self.line(1, &text);
                }
                _ => {}
            }
        }
    }
}

/// Returns the path that a type is written with, without generic arguments and references.
fn path_of(of: &syn::Type) -> Option<ItemPath> {
    match of {
        syn::Type::Path(of) => {
            Some(of.path.segments.iter().map(|segment| segment.ident.to_string()).collect())
        }
        _ => None,
    }
}

/// Returns the text of an item of the prelude: its definition, its `impl`s, and the macros that make others.
fn written(sources: &Sources, name: &str, defined: &ItemPath) -> String {
    let (own, module) = defined.split_last().expect("an item has a name");
    let mut out = String::new();
    for (path, module_of) in &sources.modules {
        let mut writer = Writer { module: module_of, out: String::new() };
        for item in &module_of.items {
            match item {
                Item::Impl(item) => {
                    let of = path_of(&item.self_ty).and_then(|of| sources.definition(path, &of));
                    if of.as_ref() == Some(defined) {
                        writer.implementation(item);
                    }
                }
                Item::Macro(item) if item.ident.is_none() && words(&item.mac.tokens).contains(own) => {
                    let of = sources.definition(path, std::slice::from_ref(own));
                    if let (true, Some(by)) = (of.as_ref() == Some(defined), item.mac.path.get_ident()) {
                        writer.made_by(&by.to_string(), sources);
                    }
                }
                item if path == module && name_of(item).as_ref() == Some(own) => {
                    writer.definition(item);
                }
                _ => {}
            }
        }
        // The definition comes first.
        if path == module { out.insert_str(0, &writer.out) } else { out += &writer.out }
    }
    let renamed = if name == own { String::new() } else { format!(" (elsewhere {own})") };
    format!("## {name}{renamed}\n{out}")
}

#[test]
fn the_interface_is_the_recorded_one() {
    let sources = Sources::read();
    let prelude: ItemPath = ["rankine", "prelude"].map(str::to_owned).into();
    let mut text = String::from("# `rankine::prelude`\n");
    for (name, path) in &sources.modules[&prelude].imports {
        let defined = sources.definition(&prelude, path);
        let defined = defined.unwrap_or_else(|| panic!("{name} is not found at {path:?}"));
        write!(text, "\n{}", written(&sources, name, &defined)).expect("a string takes any text");
    }
    let file: PathBuf = root().join("tests/golden/api.txt");
    expect_file![file].assert_eq(&text);
}
