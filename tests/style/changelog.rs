//! The changelog keeps the form of keepachangelog.com, where there is one.

use crate::report::{Finding, clean, found_at};
use crate::source::{Source, tree};

const GROUPS: [&str; 6] = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"];

fn misshapen(sources: &[Source]) -> Vec<Finding> {
    let Some(source) = sources.iter().find(|source| source.path == "CHANGELOG.md") else {
        return Vec::new();
    };
    let headings = source.lines().filter(|(_, text)| text.starts_with('#'));
    let wrong = headings.filter(|(_, text)| !heading(text));
    wrong
        .map(|(line, text)| Finding::new(&source.path, line, format!("heading `{text}`")))
        .collect()
}

fn heading(text: &str) -> bool {
    let (marks, rest) = text.split_once(' ').unwrap_or((text, ""));
    match marks {
        "#" => rest == "Changelog",
        "##" => rest == "[Unreleased]" || release(rest),
        "###" => GROUPS.contains(&rest),
        _ => false,
    }
}

/// `[1.2.3] - 2030-01-31`
fn release(text: &str) -> bool {
    let numbers = |text: &str, separator: char, count: usize| {
        let parts: Vec<&str> = text.split(separator).collect();
        parts.len() == count && parts.iter().all(|part| part.parse::<u32>().is_ok())
    };
    let Some((version, date)) = text.split_once(" - ") else { return false };
    let version = version.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    version.is_some_and(|version| numbers(version, '.', 3)) && numbers(date, '-', 3)
}

#[test]
fn the_changelog_keeps_its_form() {
    clean(&misshapen(tree()), "use `## [Unreleased]`, `## [1.2.3] - 2030-01-31`, `### Added`, ...");
}

#[test]
fn headings_of_another_form_are_found() {
    let text = "# Changelog\n## [Unreleased]\n### Added\n### New things\n## 0.1.0\n\
                ## [0.1.0] - 2030-01-31\n#### Fixed\n## [0.1] - 2030-01-31\n";
    found_at(&misshapen(&[Source::snippet("CHANGELOG.md", text)]), &[4, 5, 7, 8]);
}
