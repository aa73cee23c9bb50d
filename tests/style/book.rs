//! The documentation is a book: every page below `docs` stands in its summary, once. `prose` checks
//! that its links lead to files.

use crate::report::{Finding, clean, found_at};
use crate::source::{Kind, Source, tree};

const SUMMARY: &str = "docs/SUMMARY.md";

/// Pages that the summary names: line, and path from the top.
fn named(summary: &Source) -> Vec<(usize, String)> {
    let links = summary.lines().filter_map(|(line, text)| {
        let (_, rest) = text.split_once("](")?;
        let (target, _) = rest.split_once(')')?;
        Some((line, format!("docs/{target}")))
    });
    links.collect()
}

fn unlisted(sources: &[Source]) -> Vec<Finding> {
    let Some(summary) = sources.iter().find(|source| source.path == SUMMARY) else {
        return vec![Finding::new(SUMMARY, 1, "is not there")];
    };
    let named = named(summary);
    let pages = sources.iter().filter(|source| {
        source.kind() == Kind::Prose && source.path.starts_with("docs/") && source.path != SUMMARY
    });
    let missing = pages.filter(|page| named.iter().all(|(_, path)| *path != page.path));
    let mut findings: Vec<_> = missing
        .map(|page| Finding::new(&page.path, 1, format!("does not stand in {SUMMARY}")))
        .collect();
    for (at, (line, path)) in named.iter().enumerate() {
        if named[..at].iter().any(|(_, before)| before == path) {
            findings.push(Finding::new(SUMMARY, *line, format!("names {path} again")));
        }
    }
    findings
}

#[test]
fn every_page_stands_in_the_book() {
    clean(&unlisted(tree()), "add a line to docs/SUMMARY.md");
}

#[test]
fn pages_outside_the_book_are_found() {
    let page = |path: &str, text: &str| Source::snippet(path, text);
    let text = "# Summary\n\n- [A](a.md)\n- [B](b/c.md)\n";
    let good = [page(SUMMARY, text), page("docs/a.md", ""), page("docs/b/c.md", "")];
    found_at(&unlisted(&good), &[]);
    let lost = [page(SUMMARY, text), page("docs/a.md", ""), page("docs/d.md", "")];
    found_at(&unlisted(&lost), &[1]);
    let twice = format!("{text}- [A](a.md)\n");
    found_at(&unlisted(&[page(SUMMARY, &twice), page("docs/a.md", "")]), &[5]);
    found_at(&unlisted(&[page("docs/a.md", "")]), &[1]);
}
