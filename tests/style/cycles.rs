//! No import cycle between the files of a crate: a file can be read after those that it imports,
//! and without those that import it.
//!
//! An import is a path that names something of another file of the crate: in a `use`, or inline. It
//! leads to the file that defines the thing, whatever re-exports lie between, so that neither the
//! crate's root nor a `mod.rs` hides a cycle or makes one. Tests and examples may import all.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proc_macro2::{Delimiter, Group, TokenTree};

use crate::reach::{Role, candidates, folder, home, roots};
use crate::report::{Finding, clean};
use crate::source::{Source, tree};
use crate::tokens::{is_group, is_mark, is_word};

/// Words before the name of an item.
const DEFINERS: [&str; 8] = ["struct", "enum", "union", "trait", "type", "fn", "const", "static"];

/// One module: a file's own, or one within a file.
#[derive(Debug, Default)]
struct Module {
    file: String,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    items: BTreeSet<String>,
    /// Names that `use` brings into scope, with their paths.
    names: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    /// Paths in the module.
    paths: Vec<Vec<String>>,
}

/// All modules of a crate, its root first.
#[derive(Debug, Default)]
struct Crate(Vec<Module>);

/// Which files a file imports, with a path that does.
pub(crate) type Imports<'a> = BTreeMap<&'a str, BTreeMap<&'a str, String>>;

/// Target of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Module(usize),
    Item(usize),
}

impl Crate {
    fn of(root: &str, sources: &[Source]) -> Self {
        let mut modules = Self::default();
        modules.read(root, Role::Root, None, sources);
        modules
    }

    /// Reads a file that exists, and those that it declares; returns its module.
    fn read(
        &mut self,
        path: &str,
        role: Role,
        parent: Option<usize>,
        sources: &[Source],
    ) -> Option<usize> {
        let source = sources.iter().find(|source| source.path == path)?;
        let at = self.add(path, parent);
        let tokens: Vec<TokenTree> = source.tokens().into_iter().collect();
        self.scan(&tokens, at, &home(path, role), sources);
        Some(at)
    }

    fn add(&mut self, file: &str, parent: Option<usize>) -> usize {
        self.0.push(Module { file: file.to_owned(), parent, ..Module::default() });
        self.0.len() - 1
    }

    /// Reads the items of a module.
    fn scan(&mut self, tokens: &[TokenTree], here: usize, home: &str, sources: &[Source]) {
        let (mut at, mut file) = (0, None);
        while at < tokens.len() {
            if let Some(attribute) = attribute(tokens, at) {
                at += 2;
                if is_for_tests(attribute) {
                    at = behind_item(tokens, at);
                }
                file = named_file(attribute).or(file);
            } else if is_word(tokens.get(at), "use") {
                at = self.read_use(tokens, at, here);
            } else if let (true, Some(TokenTree::Ident(name))) =
                (is_word(tokens.get(at), "mod"), tokens.get(at + 1))
            {
                let (name, inside) = (name.to_string(), format!("{home}/{name}"));
                let child = if let Some(TokenTree::Group(body)) = tokens.get(at + 2) {
                    let child = self.add(&self.0[here].file.clone(), Some(here));
                    let body: Vec<TokenTree> = body.stream().into_iter().collect();
                    self.scan(&body, child, &inside, sources);
                    Some(child)
                } else if let Some(file) = file.take() {
                    let path = format!("{}/{file}", folder(&self.0[here].file));
                    self.read(&path, Role::Root, Some(here), sources)
                } else {
                    let mut paths = candidates(home, &name).into_iter();
                    paths.find_map(|path| self.read(&path, Role::Module, Some(here), sources))
                };
                self.0[here].children.extend(child.map(|child| (name, child)));
                at += 3;
            } else {
                at = self.read_item(tokens, at, here);
            }
        }
    }

    /// Reads one token of an item and its content; returns the index behind.
    fn read_item(&mut self, tokens: &[TokenTree], at: usize, here: usize) -> usize {
        let module = &mut self.0[here];
        if let (TokenTree::Ident(word), Some(TokenTree::Ident(name))) =
            (&tokens[at], tokens.get(at + 1))
            && DEFINERS.iter().any(|definer| word == definer)
            && !DEFINERS.iter().any(|definer| name == definer)
        {
            module.items.insert(name.to_string());
        }
        if is_word(tokens.get(at), "macro_rules")
            && let Some(TokenTree::Ident(name)) = tokens.get(at + 2)
        {
            module.items.insert(name.to_string());
        }
        mentioned(tokens, at, &mut module.paths)
    }

    fn read_use(&mut self, tokens: &[TokenTree], at: usize, here: usize) -> usize {
        let shown = at > 0
            && (is_word(tokens.get(at - 1), "pub")
                || is_group(tokens.get(at - 1), Delimiter::Parenthesis));
        let end = (at..tokens.len()).find(|at| is_mark(tokens.get(*at), ';')).expect("a use ends");
        let module = &mut self.0[here];
        for (path, name) in leaves(&tokens[at + 1..end], &[]) {
            // A private re-export is no import.
            if !shown {
                module.paths.push(path.clone());
            }
            match name {
                Some(name) => drop(module.names.insert(name, path)),
                None => module.globs.push(path),
            }
        }
        end + 1
    }

    /// The target of a path, seen from a module; `None` beyond the crate.
    fn resolve(&self, here: usize, path: &[String], depth: usize) -> Option<Found> {
        let (first, rest) = path.split_first()?;
        let start = match first.as_str() {
            "crate" => Some(0),
            "self" => Some(here),
            "super" => self.0[here].parent,
            _ => None,
        };
        match start {
            Some(start) => self.walk(start, rest, depth),
            None => self.step(here, path, depth),
        }
    }

    /// As `resolve`, inside of a module. An item that no file defines (macros make items, too)
    /// counts as the module's own.
    fn walk(&self, module: usize, path: &[String], depth: usize) -> Option<Found> {
        match path.first().map(String::as_str) {
            None | Some("self") => Some(Found::Module(module)),
            Some("super") => self.walk(self.0[module].parent?, &path[1..], depth),
            Some(_) => self.step(module, path, depth).or(Some(Found::Item(module))),
        }
    }

    fn step(&self, here: usize, path: &[String], depth: usize) -> Option<Found> {
        let (first, rest) = path.split_first()?;
        let module = &self.0[here];
        if let Some(child) = module.children.get(first) {
            return self.walk(*child, rest, depth);
        }
        if module.items.contains(first) {
            return Some(Found::Item(here));
        }
        // Names may lead in a circle: `use self::a; mod a`.
        let depth = depth.checked_sub(1)?;
        if let Some(longer) = module.names.get(first).filter(|longer| *longer != path) {
            let whole: Vec<String> = longer.iter().chain(rest).cloned().collect();
            return self.resolve(here, &whole, depth);
        }
        module.globs.iter().find_map(|glob| match self.resolve(here, glob, depth) {
            Some(Found::Module(of)) if of != here => self.step(of, path, depth),
            _ => None,
        })
    }

    /// Imports between files.
    fn imports(&self) -> Imports<'_> {
        let mut imports = Imports::new();
        let mut add = |from, to, why: String| {
            if from != to {
                imports.entry(from).or_default().entry(to).or_insert(why);
            }
        };
        for (here, module) in self.0.iter().enumerate() {
            let file = |path| match self.resolve(here, path, 8)? {
                Found::Item(at) => Some(self.0[at].file.as_str()),
                Found::Module(_) => None,
            };
            for path in &module.paths {
                if let Some(to) = file(path) {
                    add(&module.file, to, path.join("::"));
                }
            }
        }
        imports
    }
}

/// The attribute that begins here.
fn attribute(tokens: &[TokenTree], at: usize) -> Option<&Group> {
    match tokens.get(at + 1) {
        Some(TokenTree::Group(group)) if is_mark(tokens.get(at), '#') => Some(group),
        _ => None,
    }
}

fn is_for_tests(attribute: &Group) -> bool {
    let text = attribute.stream().to_string().replace(' ', "");
    text.starts_with("cfg(test") || text.starts_with("cfg(all(test") || text == "test"
}

/// The file of `#[path = "..."]`.
fn named_file(attribute: &Group) -> Option<String> {
    let text = attribute.stream().to_string();
    Some(text.strip_prefix("path = \"")?.strip_suffix('"')?.to_owned())
}

fn behind_item(tokens: &[TokenTree], at: usize) -> usize {
    let ends =
        |at: &usize| is_mark(tokens.get(*at), ';') || is_group(tokens.get(*at), Delimiter::Brace);
    (at..tokens.len()).find(ends).map_or(tokens.len(), |end| end + 1)
}

/// Whether `::` stands here.
fn joins(tokens: &[TokenTree], at: usize) -> bool {
    is_mark(tokens.get(at), ':') && is_mark(tokens.get(at + 1), ':')
}

/// Paths of a use tree with the names they get; no name for a glob.
fn leaves(tokens: &[TokenTree], before: &[String]) -> Vec<(Vec<String>, Option<String>)> {
    let mut found = Vec::new();
    let mut path = before.to_vec();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Ident(word) if word == "as" => {
                let name = tokens.get(at + 1).map(ToString::to_string);
                found.push((std::mem::replace(&mut path, before.to_vec()), name));
                at += 1;
            }
            TokenTree::Ident(word) => path.push(word.to_string()),
            TokenTree::Group(group) => {
                let inside: Vec<TokenTree> = group.stream().into_iter().collect();
                found.extend(leaves(&inside, &path));
                path = before.to_vec();
            }
            TokenTree::Punct(mark) if mark.as_char() == '*' => {
                found.push((std::mem::replace(&mut path, before.to_vec()), None));
            }
            TokenTree::Punct(mark) if mark.as_char() == ',' => {
                found.extend(named(&path, before));
                path = before.to_vec();
            }
            _ => {}
        }
        at += 1;
    }
    found.extend(named(&path, before));
    found
}

/// A path under its own last word, if it is more than what it began with.
fn named(path: &[String], before: &[String]) -> Option<(Vec<String>, Option<String>)> {
    let mut path = path.to_vec();
    (path.len() > before.len()).then_some(())?;
    if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
        path.pop();
    }
    let name = path.last().cloned();
    Some((path, name))
}

/// Collects the paths that begin at a token, and those of its group; returns the place behind.
fn mentioned(tokens: &[TokenTree], place: usize, paths: &mut Vec<Vec<String>>) -> usize {
    if let TokenTree::Group(group) = &tokens[place] {
        let inside: Vec<TokenTree> = group.stream().into_iter().collect();
        let mut at = 0;
        while at < inside.len() {
            at = mentioned(&inside, at, paths);
        }
        return place + 1;
    }
    let TokenTree::Ident(first) = &tokens[place] else { return place + 1 };
    let mut path = vec![first.to_string()];
    let mut next = place + 1;
    while joins(tokens, next) {
        match tokens.get(next + 2) {
            Some(TokenTree::Ident(word)) => path.push(word.to_string()),
            Some(TokenTree::Group(group)) => {
                let inside: Vec<TokenTree> = group.stream().into_iter().collect();
                paths.extend(leaves(&inside, &path).into_iter().map(|(path, _)| path));
                return next + 3;
            }
            _ => break,
        }
        next += 3;
    }
    // A field or method is no path; a word alone may be a re-export that the file uses itself.
    if !(place > 0 && is_mark(tokens.get(place - 1), '.')) {
        paths.push(path);
    }
    next
}

/// Files that reach one another: the shortest way around of each such group, in words.
pub(crate) fn circles(imports: &Imports<'_>) -> Vec<(String, String)> {
    let mut circles = Vec::new();
    let mut tied: BTreeSet<&str> = BTreeSet::new();
    for start in imports.keys().copied() {
        let ahead = reached(imports, start);
        if !ahead.contains_key(start) || tied.contains(start) {
            continue;
        }
        let group: BTreeSet<&str> = ahead
            .keys()
            .copied()
            .filter(|file| reached(imports, file).contains_key(start))
            .collect();
        let mut way = vec![start];
        while way.len() == 1 || way.last() != Some(&start) {
            way.push(ahead[way[way.len() - 1]]);
        }
        let steps = way.windows(2).rev();
        let words = steps.map(|pair| format!("{} names {}", pair[1], imports[pair[1]][pair[0]]));
        let words = words.collect::<Vec<_>>().join("; ");
        let count = group.len();
        circles.push((start.to_owned(), format!("one of {count} files in a circle: {words}")));
        tied.extend(group);
    }
    circles
}

/// All files that a file imports, directly or not; each with its importer on the shortest way.
fn reached<'a>(imports: &Imports<'a>, from: &'a str) -> BTreeMap<&'a str, &'a str> {
    let (mut open, mut by) = (VecDeque::from([from]), BTreeMap::new());
    while let Some(file) = open.pop_front() {
        for next in imports.get(file).into_iter().flat_map(BTreeMap::keys) {
            if !by.contains_key(next) {
                by.insert(*next, file);
                open.push_back(next);
            }
        }
    }
    by
}

/// Whether a file is part of the product: not of tests or examples.
pub(crate) fn is_product(path: &str) -> bool {
    let mut folders = path.split('/');
    !folders.any(|folder| matches!(folder, "tests" | "examples" | "benches"))
}

fn cycles(sources: &[Source]) -> Vec<Finding> {
    let roots = roots(sources).into_iter().filter(|root| is_product(root));
    let of = |root: String| circles(&Crate::of(&root, sources).imports());
    let found = roots.flat_map(of).collect::<BTreeSet<_>>();
    found.into_iter().map(|(path, words)| Finding::new(&path, 1, words)).collect()
}

#[test]
fn no_files_import_one_another() {
    let remedy = "move what both need into a file of its own, or pass it as a parameter";
    clean(&cycles(tree()), remedy);
}

fn found(files: &[(&str, &str)]) -> Vec<String> {
    let manifest = Source::snippet("a/Cargo.toml", "[package]\nname = \"a\"\n");
    let file = |(path, text): &(&str, &str)| Source::snippet(&format!("a/src/{path}"), text);
    let sources: Vec<Source> = files.iter().map(file).chain([manifest]).collect();
    cycles(&sources).into_iter().map(|finding| finding.what).collect()
}

#[test]
fn a_cycle_is_found_through_use_and_path_and_its_files_are_named() {
    let files = [
        ("lib.rs", "mod b;\nmod c;\nmod d;"),
        ("b.rs", "use crate::c::C;\npub struct B;"),
        ("c.rs", "mod deep;\npub struct C;\nfn f() { deep::g() }"),
        ("c/deep.rs", "pub fn g() { println!(\"{:?}\", super::super::b::B); }"),
        ("d.rs", "use crate::b::B;"),
    ];
    let words = found(&files);
    let [words] = &words[..] else { panic!("one circle: {words:?}") };
    assert!(words.contains("one of 3 files") && !words.contains("d.rs"), "{words}");
    for step in ["b.rs names crate::c::C", "c.rs names deep::g", "deep.rs names super::super::b::B"]
    {
        assert!(words.contains(step), "no {step:?} in {words}");
    }
}

#[test]
fn re_exports_neither_make_nor_hide_a_cycle() {
    // Through the root, which passes on what b defines.
    let lib = "mod b;\nmod c;\npub use b::{B, inner::*};\npub(crate) use c::C as Renamed;";
    let fine = "use crate::{B, Deep};\npub struct C(B, Deep);";
    let b = "pub struct B;\npub mod inner { pub struct Deep; }";
    assert_eq!(found(&[("lib.rs", lib), ("b.rs", b), ("c.rs", fine)]), Vec::<String>::new());
    let hidden = format!("{b}\nuse crate::Renamed;");
    let words = found(&[("lib.rs", lib), ("b.rs", &hidden), ("c.rs", fine)]);
    assert!(words.len() == 1 && words[0].contains("one of 2 files"), "{words:?}");
}

#[test]
fn code_for_tests_may_import_all() {
    let b = "use crate::c::C;\npub struct B;\n#[cfg(test)]\nmod tests { use super::B; }";
    let c = "pub struct C;\n#[cfg(test)]\nmod tests { use crate::b::B; }";
    let files = [("lib.rs", "mod b;\nmod c;"), ("b.rs", b), ("c.rs", c)];
    assert_eq!(found(&files), Vec::<String>::new());
    assert!(is_product("engine/ring/src/lib.rs") && !is_product("tests/flow/actor/main.rs"));
}
