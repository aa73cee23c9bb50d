//! No import cycle between Python files, as between the files of a crate.
//!
//! An import counts wherever it stands: in a function and under `TYPE_CHECKING`, too. A name that a
//! package's `__init__.py` re-exports leads to the file that defines it.

use std::collections::BTreeMap;
use std::path::Path;

use crate::cycles::{Imports, circles, is_product};
use crate::report::{Finding, clean};
use crate::source::{Source, tree};

const INIT: &str = "__init__.py";

/// One Python file: its dotted name, what its imports name, and where they lead.
struct Module<'a> {
    path: &'a str,
    name: String,
    /// Names that imports bring into scope, with their dotted paths.
    names: BTreeMap<String, String>,
    /// Dotted paths in the code, the first name of each replaced by its path.
    mentions: Vec<String>,
}

/// Code without comments and without the content of quotes.
fn bare(text: &str) -> String {
    let (mut bare, mut rest) = (String::new(), text);
    while let Some(first) = rest.chars().next() {
        let quote = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|quote| rest.starts_with(quote));
        let skipped = match (first, quote) {
            ('#', _) => rest.find('\n').unwrap_or(rest.len()),
            (_, Some(quote)) => quote.len() + behind_quote(&rest[quote.len()..], quote),
            _ => {
                bare.push(first);
                first.len_utf8()
            }
        };
        rest = &rest[skipped..];
    }
    bare
}

/// The place behind the end of a string that has begun.
fn behind_quote(text: &str, quote: &str) -> usize {
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with(quote) {
            return at + quote.len();
        }
        let skip = if text[at..].starts_with('\\') { 2 } else { 1 };
        let wide = |char: char| char.len_utf8();
        at += text[at..].chars().take(skip).map(wide).sum::<usize>();
    }
    at
}

/// The dotted name of a file: folders count from the outermost package on.
fn dotted(path: &str, sources: &[Source]) -> String {
    let is_package = |folder: &Path| {
        let init = folder.join(INIT);
        sources.iter().any(|source| Path::new(&source.path) == init)
    };
    let stem = path.rsplit('/').next().and_then(|name| name.strip_suffix(".py")).unwrap_or(path);
    let mut parts = if stem == "__init__" { Vec::new() } else { vec![stem.to_owned()] };
    let folders = Path::new(path).ancestors().skip(1).take_while(|folder| is_package(folder));
    parts.extend(
        folders.filter_map(|folder| Some(folder.file_name()?.to_string_lossy().into_owned())),
    );
    parts.reverse();
    parts.join(".")
}

/// `from .a import b` within a package: the leading dots as the package's name.
fn absolute(from: &str, module: &str, is_init: bool) -> String {
    let dots = from.len() - from.trim_start_matches('.').len();
    if dots == 0 {
        return from.to_owned();
    }
    let up = if is_init { dots - 1 } else { dots };
    let parts: Vec<&str> = module.split('.').collect();
    let kept = parts[..parts.len().saturating_sub(up)].iter().copied();
    kept.chain(Some(&from[dots..]).filter(|rest| !rest.is_empty())).collect::<Vec<_>>().join(".")
}

impl<'a> Module<'a> {
    fn of(source: &'a Source, sources: &[Source]) -> Self {
        let name = dotted(&source.path, sources);
        let text = bare(&source.text).replace("\\\n", " ");
        let (mut names, mut mentions) = (BTreeMap::new(), Vec::new());
        let mut rest = text.as_str();
        let mut code = String::new();
        while !rest.is_empty() {
            let (line, behind) = rest.split_once('\n').unwrap_or((rest, ""));
            let line = line.trim();
            rest = behind;
            if let Some((from, what)) =
                line.strip_prefix("from ").and_then(|import| import.split_once(" import "))
            {
                let from = absolute(from.trim(), &name, source.name() == INIT);
                let mut listed = what.trim().to_owned();
                if listed.starts_with('(') && !listed.contains(')') {
                    let (more, behind) = rest.split_once(')').unwrap_or((rest, ""));
                    listed.push_str(more);
                    rest = behind;
                }
                for (path, alias) in listed.split(',').filter_map(alias) {
                    let path = format!("{from}.{path}");
                    mentions.push(path.clone());
                    names.insert(alias, path);
                }
            } else if let Some(what) = line.strip_prefix("import ") {
                for (path, alias) in what.split(',').filter_map(alias) {
                    mentions.push(path.clone());
                    // `import a.b` brings `a` into scope.
                    let first = path.split('.').next().unwrap_or_default().to_owned();
                    let whole = if alias == path { first.clone() } else { path.clone() };
                    names.insert(if alias == path { first } else { alias }, whole);
                }
            } else {
                code.push_str(line);
                code.push('\n');
            }
        }
        let dotted = |c: char| !(c.is_alphanumeric() || c == '_' || c == '.');
        for word in code.split(dotted).filter(|word| word.contains('.')) {
            let (first, more) = word.split_once('.').unwrap_or((word, ""));
            mentions.extend(names.get(first).map(|path| format!("{path}.{more}")));
        }
        Self { path: &source.path, name, names, mentions }
    }
}

/// `a as b`, `a`, with the text around them in an import.
fn alias(listed: &str) -> Option<(String, String)> {
    let listed = listed.trim_matches(|c: char| c.is_whitespace() || c == '(' || c == ')');
    let (path, name) = listed.split_once(" as ").unwrap_or((listed, listed));
    let (path, name) = (path.trim().to_owned(), name.trim().to_owned());
    (!path.is_empty()).then_some((path, name))
}

/// The file that defines the target of a dotted path; `None` for other packages.
fn resolve<'a>(modules: &[Module<'a>], path: &str, depth: usize) -> Option<&'a str> {
    let depth = depth.checked_sub(1)?;
    let fits = |module: &&Module<'_>| {
        path.strip_prefix(&module.name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let module = modules.iter().filter(fits).max_by_key(|module| module.name.len())?;
    let rest = path[module.name.len()..].trim_start_matches('.');
    if !module.path.ends_with(INIT) {
        return Some(module.path);
    }
    // A package alone is a name for its content.
    let (first, more) = rest.split_once('.').unwrap_or((rest, ""));
    let passed_on = module.names.get(first)?;
    let whole = [passed_on, more].join(".");
    resolve(modules, whole.trim_end_matches('.'), depth)
}

fn python_cycles(sources: &[Source]) -> Vec<Finding> {
    let ours = |it: &&Source| it.path.ends_with(".py") && is_product(&it.path);
    let modules: Vec<Module<'_>> =
        sources.iter().filter(ours).map(|source| Module::of(source, sources)).collect();
    let mut imports = Imports::new();
    for module in &modules {
        for mention in &module.mentions {
            if let Some(to) = resolve(&modules, mention, 8).filter(|to| *to != module.path) {
                imports.entry(module.path).or_default().entry(to).or_insert(mention.clone());
            }
        }
    }
    circles(&imports).into_iter().map(|(path, words)| Finding::new(&path, 1, words)).collect()
}

#[test]
fn no_python_files_import_one_another() {
    let remedy = "move what both need into a file of its own, or pass it as a parameter";
    clean(&python_cycles(tree()), remedy);
}

fn found(files: &[(&str, &str)]) -> Vec<String> {
    let file = |(path, text): &(&str, &str)| Source::snippet(&format!("a/{path}"), text);
    let sources: Vec<Source> = files.iter().map(file).collect();
    python_cycles(&sources).into_iter().map(|finding| finding.what).collect()
}

#[test]
fn a_cycle_is_found_wherever_its_imports_stand() {
    let files = [
        ("p/__init__.py", "from p.b import (\n    B,\n    other as C,\n)\n"),
        ("p/b.py", "if TYPE_CHECKING:\n    from p.c import C\nclass B: ...\n"),
        ("p/c.py", "def f():\n    from p import d as deep\n    deep.g()\n"),
        ("p/d.py", "import p\np.C()\n"),
        ("p/e.py", "from p.b import B\n"),
    ];
    let words = found(&files);
    let [words] = &words[..] else { panic!("one circle: {words:?}") };
    assert!(words.contains("one of 3 files") && !words.contains("e.py"), "{words}");
    for step in ["b.py names p.c.C", "c.py names p.d", "d.py names p.C"] {
        assert!(words.contains(step), "no {step:?} in {words}");
    }
}

#[test]
fn packages_and_texts_make_no_cycle() {
    let files = [
        (
            "p/__init__.py",
            "\"\"\"Doc: from p.b import B\"\"\"\nfrom p.b import B\nfrom ._x import X\n",
        ),
        ("p/b.py", "import p\nPATH = \"p.c\"  # from p.c import C\nclass B(p.X): ...\n"),
        ("p/c.py", "from .b import B\nfrom . import b\n"),
        ("tests/t.py", "from p.c import C\n"),
        ("q.py", "import p.b\nimport os, p.c as c\n"),
    ];
    assert_eq!(found(&files), Vec::<String>::new());
}
