//! The files of the repository, as text.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use proc_macro2::TokenStream;

/// One text file.
#[derive(Debug)]
pub(crate) struct Source {
    /// From the root of the repository, with slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Language of a file, as far as rules differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Rust,
    Shell,
    Manifest,
    /// Other languages: C, CUDA, Python, configuration.
    Code,
    Prose,
    /// Locks, stored results, pictures: written by programs.
    Data,
}

impl Source {
    /// A made-up file, for self-tests.
    pub(crate) fn snippet(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    pub(crate) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    pub(crate) fn kind(&self) -> Kind {
        let extension = Path::new(&self.path).extension().and_then(|extension| extension.to_str());
        match extension {
            Some("rs") => Kind::Rust,
            Some("sh") => Kind::Shell,
            Some("toml") if self.name() == "Cargo.toml" => Kind::Manifest,
            Some("c" | "h" | "cpp" | "cu" | "cuh" | "py" | "pyi" | "toml" | "service" | "yml") => {
                Kind::Code
            }
            Some("md") => Kind::Prose,
            _ if self.text.starts_with("#!") => Kind::Shell,
            _ => Kind::Data,
        }
    }

    /// Lines with their numbers, counted from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(at, line)| (at + 1, line))
    }

    /// One line by its number; empty beyond the ends.
    pub(crate) fn line(&self, number: usize) -> &str {
        number.checked_sub(1).and_then(|at| self.text.lines().nth(at)).unwrap_or("")
    }

    /// Tokens of a Rust file. Macros are included, comments are not.
    pub(crate) fn tokens(&self) -> TokenStream {
        self.text.parse().unwrap_or_else(|why| panic!("{}: no Rust: {why}", self.path))
    }

    /// Syntax tree of a Rust file.
    pub(crate) fn syntax(&self) -> syn::File {
        syn::parse_file(&self.text).unwrap_or_else(|why| panic!("{}: no Rust: {why}", self.path))
    }
}

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is a folder").to_path_buf()
}

/// Every file of the repository; those that are no text are empty.
pub(crate) fn tree() -> &'static [Source] {
    static TREE: LazyLock<Vec<Source>> = LazyLock::new(|| {
        let mut sources = Vec::new();
        walk(&root(), "", &mut sources);
        sources.sort_by(|a, b| a.path.cmp(&b.path));
        sources
    });
    &TREE
}

/// Rust files of a set.
pub(crate) fn rust(sources: &[Source]) -> impl Iterator<Item = &Source> {
    sources.iter().filter(|source| source.kind() == Kind::Rust)
}

fn walk(dir: &Path, prefix: &str, sources: &mut Vec<Source>) {
    for entry in fs::read_dir(dir).unwrap_or_else(|why| panic!("{}: {why}", dir.display())) {
        let entry = entry.expect("a readable folder");
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().expect("a file has a type");
        let path = format!("{prefix}{name}");
        if kind.is_dir() && ours(&path) {
            walk(&entry.path(), &format!("{path}/"), sources);
        } else if kind.is_file() && name != ".git" {
            // Not a worktree's pointer. Of a picture the name counts: documents link to it.
            let text = fs::read_to_string(entry.path()).unwrap_or_default();
            sources.push(Source { path, text });
        }
    }
}

/// Whether a folder holds sources: no output of builds at the root, no hidden folders of tools.
fn ours(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let built = path == "target" || (path == name && name.starts_with("target-"));
    !built && (!name.starts_with('.') || name == ".ci")
}

#[test]
fn the_tree_has_the_files_that_rules_are_about() {
    for path in ["Cargo.toml", "tests/style/source.rs", "engine/ring/src/lib.rs", ".gitignore"] {
        assert!(tree().iter().any(|source| source.path == path), "{path} is missing");
    }
    assert!(tree().iter().all(|source| !source.path.starts_with("target")));
    assert!(
        ours("engine/host/target") && !ours("target") && !ours("target-loom") && !ours("a/.git")
    );
}

#[test]
fn kinds_follow_names_and_first_lines() {
    for (path, text, kind) in [
        ("a/b.rs", "", Kind::Rust),
        ("scripts/dev", "#!/usr/bin/env bash", Kind::Shell),
        ("a/Cargo.toml", "", Kind::Manifest),
        ("config/default.toml", "", Kind::Code),
        ("README.md", "", Kind::Prose),
        ("Cargo.lock", "", Kind::Data),
    ] {
        assert_eq!(Source::snippet(path, text).kind(), kind, "{path}");
    }
}
