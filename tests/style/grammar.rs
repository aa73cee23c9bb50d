//! Plain English, counted: for each 10,000 words of comments and documents, how many may be words
//! that replace the field's terms. The limits may only fall.

use crate::report::{Finding, clean};
use crate::source::{Kind, Source, tree};

/// Words that are counted together, and how many there may be for each 10,000 words.
struct Limit {
    /// What the words have in common.
    what: &'static str,
    words: &'static [&'static str],
    most: f64,
}

/// A limit above its count by more than this part is a finding, too: it must be lowered.
const SLACK: f64 = 0.2;
const LIMITS: [Limit; 3] = [
    Limit {
        what: "things that speak",
        words: &["told", "said", "tell", "tells", "says", "say", "telling", "saying"],
        most: 3.8,
    },
    Limit { what: "persons for things", words: &["who", "whoever", "nobody", "whom"], most: 2.3 },
    Limit {
        what: "measures in words",
        words: &["so many", "as much", "so long", "so much"],
        most: 1.7,
    },
];

/// Closures whose parameter is `it`, in Rust and Python.
const IT_MOST: usize = 40;

/// Comments of one line and docstrings of a file; of a document all but its code.
fn prose(source: &Source) -> String {
    let comments = |marks: &[&str]| {
        let comment = |line: &'_ str| {
            let begin = marks.iter().filter_map(|mark| line.find(mark)).min();
            begin.map(|begin| line[begin..].to_owned())
        };
        source.text.lines().filter_map(comment).collect::<Vec<_>>().join("\n")
    };
    match (source.kind(), source.path.rsplit('.').next().unwrap_or_default()) {
        (Kind::Prose, _) => source.text.split("```").step_by(2).collect::<Vec<_>>().join("\n"),
        (Kind::Rust, _) => comments(&["//"]),
        (Kind::Code, "c" | "h" | "cpp" | "cu" | "cuh") => comments(&["//", "/*", " * "]),
        (Kind::Code, "py" | "pyi") => format!("{}\n{}", comments(&["# "]), docstrings(source)),
        (Kind::Shell | Kind::Manifest | Kind::Code, _) => comments(&["# "]),
        (Kind::Data, _) => String::new(),
    }
}

/// Texts in three quotes that begin their line; others are values.
fn docstrings(source: &Source) -> String {
    let pieces: Vec<&str> = source.text.split("\"\"\"").collect();
    let pairs = pieces.chunks_exact(2).filter(|pair| {
        let before = pair[0].trim_end_matches(' ');
        before.is_empty() || before.ends_with('\n')
    });
    pairs.map(|pair| pair[1]).collect::<Vec<_>>().join("\n")
}

/// Lower-case words of a file's prose. Code between backticks is not prose.
fn words(source: &Source) -> Vec<String> {
    let prose = prose(source).split('`').step_by(2).collect::<Vec<_>>().join(" ");
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

/// A finding where the count is above its limit or far below it.
fn compared(what: &str, count: f64, most: f64) -> Option<Finding> {
    let off = count > most || count < most * (1.0 - SLACK);
    off.then(|| {
        Finding::new("tests/style/grammar.rs", 1, format!("{what}: {count:.1} for {most:.1}"))
    })
}

#[test]
fn words_of_a_private_dialect_become_fewer() {
    let over = LIMITS
        .iter()
        .filter_map(|limit| compared(limit.what, rate(tree(), limit.words), limit.most));
    clean(
        &over.collect::<Vec<_>>(),
        "above: name the subject and the field's term; below: lower the limit",
    );
}

/// Closures over `it`, of Rust and of Python.
fn its(sources: &[Source]) -> usize {
    let forms = ["|it|", "|&it|", "lambda it:"];
    let sources = sources.iter().filter(|source| source.name() != "grammar.rs");
    sources.flat_map(|source| forms.map(|form| source.text.matches(form).count())).sum()
}

#[test]
fn closures_name_what_they_take() {
    let over = compared("closures over `it`", its(tree()) as f64, IT_MOST as f64);
    clean(&Vec::from_iter(over), "above: name what the closure takes; below: lower the limit");
}

#[test]
fn words_are_counted_in_comments_and_documents_alone() {
    let sources = [
        Source::snippet("a.rs", "let said = \"said\"; // it said `told` no\n/// So many said.\n"),
        Source::snippet("a.md", "Nobody said so.\n```\nsaid\n```\n`said` so many\n"),
        Source::snippet(
            "a.py",
            "\"\"\"It said\nso.\"\"\"\nsaid = 1  # said\nx = \"\"\"said\"\"\"\n",
        ),
        Source::snippet("a.c", "int said; /* said so */\n"),
        Source::snippet("a.toml", "said = 1 # said\n"),
        Source::snippet("CHANGELOG.md", "said said said"),
    ];
    let all = 3.0 + 3.0 + 3.0 + 2.0 + 4.0 + 2.0 + 1.0;
    assert!((rate(&sources, &["said"]) - 7.0 * 10_000.0 / all).abs() < 1e-6);
    assert!((rate(&sources, &["so many"]) - 2.0 * 10_000.0 / all).abs() < 1e-6);
    assert!(compared("x", 1.1, 1.0).is_some() && compared("x", 0.7, 1.0).is_some());
    assert!(compared("x", 0.9, 1.0).is_none());
}
