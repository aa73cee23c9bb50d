//! Fields that an object shows outside its file: few.
//!
//! An object has methods of its own, and its fields hold its invariants: a file that changes them
//! must know all of these. A record is another thing: a report, options, the words of a message.
//! Its fields are its meaning, all of them are `pub` or no method takes `&mut self`. So a finding
//! is a type with a method that takes `&mut self`, and with more than a few fields that the crate
//! or a part of it can see.

use syn::{Fields, FnArg, Item, ItemStruct, Type, Visibility};

use crate::cycles::is_product;
use crate::report::{Finding, clean, found_at};
use crate::source::{Source, rust, tree};

/// Fields that an object may show.
const SHOWN_MAX: usize = 8;

fn shown(item: &ItemStruct) -> usize {
    let Fields::Named(fields) = &item.fields else { return 0 };
    let restricted = |it: &&syn::Field| matches!(it.vis, Visibility::Restricted(_));
    fields.named.iter().filter(restricted).count()
}

/// Types that have a method which changes them; by name, in every file of the crate.
fn changed(items: &[Item], names: &mut Vec<String>) {
    for item in items {
        match item {
            Item::Mod(module) => {
                changed(module.content.as_ref().map_or(&[], |(_, items)| items), names);
            }
            Item::Impl(block) => {
                let Type::Path(path) = &*block.self_ty else { continue };
                let changes = |item: &syn::ImplItem| match item {
                    syn::ImplItem::Fn(method) => match method.sig.inputs.first() {
                        Some(FnArg::Receiver(it)) => {
                            it.reference.is_some() && it.mutability.is_some()
                        }
                        _ => false,
                    },
                    _ => false,
                };
                if let Some(last) = path.path.segments.last()
                    && block.items.iter().any(changes)
                {
                    names.push(last.ident.to_string());
                }
            }
            _ => {}
        }
    }
}

/// The folder of a file's crate.
fn home(path: &str) -> &str {
    path.split_once("/src/").map_or(path, |(home, _)| home)
}

fn open_objects(sources: &[Source]) -> Vec<Finding> {
    let product = rust(sources).filter(|source| is_product(&source.path));
    let parsed: Vec<_> = product.map(|source| (source, source.syntax().items)).collect();
    let mut objects = Vec::new();
    for (source, items) in &parsed {
        let mut names = Vec::new();
        changed(items, &mut names);
        objects.extend(names.into_iter().map(|name| (home(&source.path), name)));
    }
    let mut findings = Vec::new();
    for (source, items) in &parsed {
        let structs = items.iter().filter_map(|item| match item {
            Item::Struct(item) => Some(item),
            _ => None,
        });
        for item in structs.filter(|item| shown(item) > SHOWN_MAX) {
            let (name, count) = (item.ident.to_string(), shown(item));
            if objects.iter().any(|object| object.0 == home(&source.path) && object.1 == name) {
                let what = format!("{name} shows {count} fields, at most {SHOWN_MAX}");
                let line = item.ident.span().start().line;
                findings.push(Finding::new(&source.path, line, what));
            }
        }
    }
    findings
}

#[test]
fn objects_show_few_fields() {
    let remedy = "make the fields private and add methods for its callers, or cut the object";
    clean(&open_objects(tree()), remedy);
}

#[test]
fn a_wide_open_object_is_found_and_a_record_is_not() {
    let fields = |count: usize| {
        let field = |at| format!("    pub(crate) f{at}: u8,\n");
        (0..count).map(field).collect::<String>()
    };
    let object = |count| format!("struct A {{\n{}}}\n", fields(count));
    let found = |text: &str, other: &str| {
        let file = |name: &str, text: &str| Source::snippet(&format!("a/src/{name}.rs"), text);
        open_objects(&[file("a", text), file("b", other)])
    };
    let method = "impl A { fn change(&mut self) {} }";
    found_at(&found(&object(9), method), &[1]);
    found_at(&found(&format!("{}{method}", object(9)), ""), &[1]);
    found_at(&found(&object(8), method), &[]);
    found_at(&found(&object(9), "impl A { fn look(&self) {} }"), &[]);
    found_at(&found(&object(9).replace("pub(crate)", "pub"), method), &[]);
}
