//! Checks that errors which cross the boundary of a crate have types that callers can match, not texts.

use std::collections::BTreeSet;

use syn::visit::{self, Visit};

use crate::sources::rust_sources;
use crate::structure::for_tests;
use crate::support::root;

/// Collects the public items of a file whose errors are texts.
#[derive(Default)]
struct TextErrors {
    /// The line and the item of each.
    found: BTreeSet<(usize, String)>,
}

impl TextErrors {
    fn add(&mut self, name: &syn::Ident, what: &str) {
        self.found.insert((name.span().start().line, format!("{name} {what}")));
    }

    fn check(&mut self, name: &syn::Ident, has_text: bool) {
        if has_text {
            self.add(name, "has a `Result` whose error is a `String`");
        }
    }
}

/// Finds `Result<_, String>`.
#[derive(Default)]
struct TextResult(bool);

impl<'ast> Visit<'ast> for TextResult {
    fn visit_path_segment(&mut self, segment: &'ast syn::PathSegment) {
        if let syn::PathArguments::AngleBracketed(of) = &segment.arguments
            && segment.ident == "Result"
            && let Some(syn::GenericArgument::Type(error)) = of.args.iter().nth(1)
        {
            self.0 |= is_text(error);
        }
        visit::visit_path_segment(self, segment);
    }
}

fn is_text(of: &syn::Type) -> bool {
    matches!(of, syn::Type::Path(of) if of.path.segments.last().is_some_and(|last| last.ident == "String"))
}

fn has_text_result(look: impl FnOnce(&mut TextResult)) -> bool {
    let mut found = TextResult::default();
    look(&mut found);
    found.0
}

fn is_public(of: &syn::Visibility) -> bool {
    matches!(of, syn::Visibility::Public(_))
}

/// Returns whether a variant or struct is `Name(String)`, with the text as its whole message.
fn is_message(fields: &syn::Fields, attributes: &[syn::Attribute]) -> bool {
    let syn::Fields::Unnamed(fields) = fields else { return false };
    let is_whole = |attribute: &syn::Attribute| {
        attribute.path().is_ident("error")
            && attribute.parse_args::<syn::LitStr>().is_ok_and(|words| words.value() == "{0}")
    };
    fields.unnamed.len() == 1 && is_text(&fields.unnamed[0].ty) && attributes.iter().any(is_whole)
}

impl<'ast> Visit<'ast> for TextErrors {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if is_public(&item.vis) {
            self.check(&item.sig.ident, has_text_result(|find| find.visit_signature(&item.sig)));
        }
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        if is_public(&item.vis) {
            self.check(&item.ident, has_text_result(|find| find.visit_type(&item.ty)));
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if let Some(name) = field.ident.as_ref().filter(|_| is_public(&field.vis)) {
            self.check(name, has_text_result(|find| find.visit_type(&field.ty)));
        }
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        if is_message(&variant.fields, &variant.attrs) {
            self.add(&variant.ident, "holds nothing but a message");
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        if is_message(&item.fields, &item.attrs) {
            self.add(&item.ident, "holds nothing but a message");
        }
        visit::visit_item_struct(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.check(&item.sig.ident, has_text_result(|find| find.visit_signature(&item.sig)));
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        for part in &item.items {
            match part {
                syn::ImplItem::Fn(of) if item.trait_.is_some() || is_public(&of.vis) => {
                    self.check(&of.sig.ident, has_text_result(|find| find.visit_signature(&of.sig)));
                }
                syn::ImplItem::Type(of) if ["Err", "Error"].iter().any(|name| of.ident == name) => {
                    self.check(&of.ident, is_text(&of.ty));
                }
                _ => {}
            }
        }
    }
}

#[test]
fn errors_can_be_matched() {
    let mut found = Vec::new();
    for (file, text) in rust_sources() {
        // Bindings raise exceptions of Python.
        if file.starts_with("bindings/") || file.contains("/tests/") || file.ends_with("/tests.rs") {
            continue;
        }
        let mut errors = TextErrors::default();
        let syntax = syn::parse_file(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
        errors.visit_file(&syntax);
        let place = root().join(&file);
        let errors = errors.found.into_iter();
        found.extend(errors.map(|(line, what)| format!("{}:{line}: {what}", place.display())));
    }
    let rule = "docs/internals/extending.md says how errors are typed";
    assert!(found.is_empty(), "{rule}:\n{}", found.join("\n"));
}

#[test]
fn each_kind_of_text_error_is_found() {
    let found = |text: &str| {
        let mut errors = TextErrors::default();
        errors.visit_file(&syn::parse_file(text).expect("it is Rust"));
        errors.found.len()
    };
    for text in [
        "pub fn read() -> Result<u8, String> { Ok(1) }",
        "pub fn all() -> Vec<std::result::Result<u8, String>> { Vec::new() }",
        "pub fn with(read: impl Fn() -> Result<u8, String>) {}",
        "pub type Gather = Box<dyn FnMut(&[u8]) -> Result<u8, String> + Send>;",
        "pub struct Library { pub version: Result<u8, String> }",
        "trait Source { fn read(&self) -> Result<u8, String>; }",
        "impl Name { pub fn read() -> Result<u8, String> { Ok(1) } }",
        "impl FromStr for Name { type Err = String; }",
        "enum Error { #[error(\"{0}\")] Invalid(String) }",
        "#[error(\"{0}\")] pub struct Invalid(pub String);",
    ] {
        assert_eq!(found(text), 1, "{text}");
    }
    for text in [
        "fn read() -> Result<u8, String> { Ok(1) }",
        "pub(crate) fn read() -> Result<u8, String> { Ok(1) }",
        "pub fn name() -> Result<String, Error> { Ok(NAME) }",
        "impl Name { fn read() -> Result<u8, String> { Ok(1) } }",
        "enum Error { #[error(\"{0} is missing\")] Missing(String) }",
        "#[cfg(test)] mod tests { pub fn read() -> Result<u8, String> { Ok(1) } }",
    ] {
        assert_eq!(found(text), 0, "{text}");
    }
}
