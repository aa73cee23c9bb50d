//! Parameters of public functions: enums where a bool has no meaning at the call.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{FnArg, ImplItemFn, ItemFn, ItemTrait, Signature, TraitItemFn, Type, Visibility};

use crate::report::{Finding, clean, found_at};
use crate::source::{Source, rust, tree};

/// Looks at signatures.
struct Signatures<'a> {
    path: &'a str,
    public_trait: bool,
    flags: Vec<Finding>,
}

impl Signatures<'_> {
    fn check(&mut self, signature: &Signature, public: bool) {
        let (line, name) = (signature.span().start().line, &signature.ident);
        let flag = signature
            .inputs
            .iter()
            .any(|input| matches!(input, FnArg::Typed(typed) if flag(&typed.ty)));
        if public && flag {
            let what = format!("public fn {name} takes a bool");
            self.flags.push(Finding::new(self.path, line, what));
        }
    }
}

/// Whether a type is bool, a reference to it, or an option of it.
fn flag(kind: &Type) -> bool {
    match kind {
        Type::Reference(reference) => flag(&reference.elem),
        Type::Path(path) => path.path.segments.last().is_some_and(|last| {
            let inner = match &last.arguments {
                syn::PathArguments::AngleBracketed(list) => list.args.first(),
                _ => None,
            };
            let inside = matches!(inner, Some(syn::GenericArgument::Type(it)) if flag(it));
            last.ident == "bool" || (last.ident == "Option" && inside)
        }),
        _ => false,
    }
}

fn public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

impl<'ast> Visit<'ast> for Signatures<'_> {
    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.check(&item.sig, public(&item.vis));
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.check(&item.sig, public(&item.vis));
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        self.public_trait = public(&item.vis);
        visit::visit_item_trait(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        self.check(&item.sig, self.public_trait);
        visit::visit_trait_item_fn(self, item);
    }
}

fn signatures(source: &Source) -> Signatures<'_> {
    let path = &source.path;
    let mut all = Signatures { path, public_trait: false, flags: vec![] };
    all.visit_file(&source.syntax());
    all
}

fn flags(sources: &[Source]) -> Vec<Finding> {
    rust(sources).flat_map(|source| signatures(source).flags).collect()
}

#[test]
fn public_functions_take_no_bool() {
    clean(&flags(tree()), "take an enum of two values whose names state the effect");
}

#[test]
fn bools_in_public_functions_are_found() {
    let text = "pub fn a(on: bool) {}
fn private(on: bool) {}
pub(crate) fn inner(on: bool) {}
impl A { pub fn b(&self, on: Option<bool>) {} }
pub trait T { fn c(&self, on: &bool); }
trait Private { fn c(&self, on: &bool); }
impl From<bool> for A { fn from(on: bool) -> Self { A } }
pub fn chosen(by: impl Fn(u32) -> bool) -> bool { true }";
    found_at(&flags(&[Source::snippet("a.rs", text)]), &[1, 4, 5]);
}
