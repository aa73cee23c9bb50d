//! Documents name what exists: links lead to files, paths exist, functions are in the named files.

use crate::report::{Finding, clean, found_at};
use crate::source::{Kind, Source, tree};

/// What a path in a code span begins with.
const FOLDERS: [&str; 7] = ["bench/", "config/", "docs/", "engine/", "ffi/", "scripts/", "tests/"];

/// A row of a table, an item of a list or a paragraph, with the number of its first line.
struct Block {
    line: usize,
    text: String,
}

impl Block {
    /// Texts between single backticks.
    fn spans(&self) -> impl Iterator<Item = &str> {
        self.text.split('`').skip(1).step_by(2)
    }

    /// Targets of links within the repository, without their anchors.
    fn links(&self) -> impl Iterator<Item = &str> {
        let targets = self.text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        let files = targets.map(|(target, _)| target.split('#').next().unwrap_or_default());
        files.filter(|file| !file.is_empty() && !file.contains("://"))
    }

    /// Paths in code spans; of a command its first word.
    fn paths(&self) -> impl Iterator<Item = &str> {
        let words = self.spans().filter_map(|span| span.split(' ').next());
        words.filter(|word| FOLDERS.iter().any(|folder| word.starts_with(folder)))
    }

    /// Names of functions: code spans like `name()`.
    fn functions(&self) -> impl Iterator<Item = &str> {
        self.spans().filter_map(|span| span.strip_suffix("()"))
    }
}

/// The blocks of a document, without its code fences.
fn blocks(source: &Source) -> Vec<Block> {
    let (mut blocks, mut fenced, mut open) = (Vec::<Block>::new(), false, false);
    for (line, text) in source.lines() {
        let text = text.trim();
        if text.starts_with("```") {
            fenced = !fenced;
        }
        let begins = !open || text.starts_with('|') || text.starts_with("- ");
        open = !(fenced || text.is_empty() || text.starts_with("```"));
        match blocks.last_mut().filter(|_| !begins) {
            _ if !open => {}
            Some(block) => block.text += &format!(" {text}"),
            None => blocks.push(Block { line, text: text.to_owned() }),
        }
    }
    blocks
}

/// The path that a link of a document means, from the root of the repository.
fn resolved(document: &str, link: &str) -> String {
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in link.trim_end_matches('/').split('/') {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Whether there is such a file or folder.
fn is_there(sources: &[Source], path: &str) -> bool {
    let folder = format!("{}/", path.trim_end_matches('/'));
    sources.iter().any(|source| source.path == path || source.path.starts_with(&folder))
}

/// Whether one of the Rust files that a block names has the function. Blocks without a file pass.
fn names_its_file(sources: &[Source], block: &Block, function: &str) -> bool {
    let named: Vec<&str> = block.paths().filter(|path| path.ends_with(".rs")).collect();
    let mut files = sources.iter().filter(|source| named.contains(&source.path.as_str()));
    let heads = [format!("fn {function}("), format!("fn {function}<")];
    named.is_empty() || files.any(|file| heads.iter().any(|head| file.text.contains(head)))
}

fn untrue(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for document in sources.iter().filter(|source| source.kind() == Kind::Prose) {
        for block in blocks(document) {
            let mut find = |what| findings.push(Finding::new(&document.path, block.line, what));
            let links = block.links().map(|link| resolved(&document.path, link));
            for path in links.chain(block.paths().map(str::to_owned)) {
                if !is_there(sources, &path) {
                    find(format!("there is no {path}"));
                }
            }
            for function in block.functions() {
                if !names_its_file(sources, &block, function) {
                    find(format!("no file named in the block has fn {function}"));
                }
            }
        }
    }
    findings
}

#[test]
fn documents_name_what_is_there() {
    clean(&untrue(tree()), "name the file, folder or function as it is called now");
}

#[test]
fn names_of_what_is_not_there_are_found() {
    let text = "[a](../engine/a.rs), [b](b.md#c), [c](https://c.example)\n\n`engine/b.rs`\n\n\
                - `engine/a.rs` `run()`\n- `engine/a.rs`\n  `walk()`\n\n`walk()`\n\n\
                | `scripts/dev help` |\n| `engine` `docs/x.md` |\n```\n`engine/c.rs`\n```\n";
    let sources = [
        Source::snippet("docs/x.md", text),
        Source::snippet("engine/a.rs", "fn run() {}"),
        Source::snippet("scripts/dev", "#!/usr/bin/env bash"),
    ];
    found_at(&untrue(&sources), &[1, 3, 6]);
}
