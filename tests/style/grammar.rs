//! Plain English, counted: what the prose of comments and documents may have of a word that stands
//! for the field's own, for each 10,000 words. The limits may only fall.

use std::collections::BTreeMap;

use crate::report::{Finding, clean};
use crate::source::{Kind, Source, rust, tree};

/// Words that are counted together, and how many there may be for each 10,000 words.
struct Limit {
    /// What the words have in common.
    what: &'static str,
    words: &'static [&'static str],
    most: f64,
}

/// A finding is a limit above its count by more than this part, too: it is lowered then.
const SLACK: f64 = 0.2;
const LIMITS: [Limit; 3] = [
    Limit {
        what: "things that speak",
        words: &["told", "said", "tell", "tells", "says", "say", "telling", "saying"],
        most: 31.5,
    },
    Limit { what: "persons for things", words: &["who", "whoever", "nobody", "whom"], most: 19.2 },
    Limit {
        what: "measures in words",
        words: &["so many", "as much", "so long", "so much"],
        most: 9.0,
    },
];

/// Closures whose parameter is `it`, in all of Rust.
const IT_MOST: usize = 520;

/// Lower-case words of prose: comments of Rust, documents without code, changes left out.
fn words(source: &Source) -> Vec<String> {
    let mut fenced = false;
    let lines = source.text.lines().filter_map(|line| {
        let line = line.trim();
        match source.kind() {
            Kind::Rust => line.find("//").map(|at| &line[at..]),
            Kind::Prose if line.starts_with("```") => {
                fenced = !fenced;
                None
            }
            Kind::Prose => (!fenced).then_some(line),
            _ => None,
        }
    });
    let text: Vec<&str> = lines.collect();
    // Code between backticks is not prose.
    let text = text.join("\n");
    let prose = text.split('`').step_by(2).collect::<Vec<_>>().join(" ");
    let letters = |letter: char| !letter.is_alphanumeric() && letter != '\'';
    prose.split(letters).filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
}

/// How often words occur, one after another where an entry has several, for each 10,000.
fn rate(sources: &[Source], wanted: &[&str]) -> f64 {
    let (mut all, mut hits) = (0_usize, 0_usize);
    for source in sources.iter().filter(|source| source.name() != "CHANGELOG.md") {
        let words = words(source);
        all += words.len();
        for wanted in wanted {
            let wanted: Vec<&str> = wanted.split(' ').collect();
            hits += words.windows(wanted.len()).filter(|found| **found == wanted[..]).count();
        }
    }
    hits as f64 * 10_000.0 / all.max(1) as f64
}

/// The count beside its limit, where it is above or far below.
fn beside(what: &str, count: f64, most: f64) -> Option<Finding> {
    let off = count > most || count < most * (1.0 - SLACK);
    off.then(|| {
        Finding::new("tests/style/grammar.rs", 1, format!("{what}: {count:.1} for {most:.1}"))
    })
}

#[test]
fn words_of_a_private_dialect_become_fewer() {
    let over =
        LIMITS.iter().filter_map(|limit| beside(limit.what, rate(tree(), limit.words), limit.most));
    clean(
        &over.collect::<Vec<_>>(),
        "above: name the subject and the field's term; below: lower the limit",
    );
}

/// Closures over `it` in each file.
fn its(sources: &[Source]) -> BTreeMap<&str, usize> {
    let count = |source: &Source| {
        source.text.matches("|it|").count() + source.text.matches("|&it|").count()
    };
    rust(sources)
        .filter(|source| source.name() != "grammar.rs")
        .map(|source| (source.path.as_str(), count(source)))
        .collect()
}

#[test]
fn closures_name_what_they_take() {
    let all: usize = its(tree()).values().sum();
    let over = beside("closures over `it`", all as f64, IT_MOST as f64);
    clean(&Vec::from_iter(over), "above: name what the closure takes; below: lower the limit");
}

#[test]
fn words_are_counted_in_comments_and_documents_alone() {
    let sources = [
        Source::snippet("a.rs", "let said = \"said\"; // it said `told` no\n/// So many said.\n"),
        Source::snippet("a.md", "Nobody said so.\n```\nsaid\n```\n`said` so many\n"),
        Source::snippet("CHANGELOG.md", "said said said"),
    ];
    let all = 3.0 + 3.0 + 3.0 + 2.0;
    assert!((rate(&sources, &["said"]) - 3.0 * 10_000.0 / all).abs() < 1e-6);
    assert!((rate(&sources, &["so many"]) - 2.0 * 10_000.0 / all).abs() < 1e-6);
    assert!(beside("x", 1.1, 1.0).is_some() && beside("x", 0.7, 1.0).is_some());
    assert!(beside("x", 0.9, 1.0).is_none());
}
