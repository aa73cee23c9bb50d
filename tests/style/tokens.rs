//! Walks token trees: unlike a syntax tree they show the content of macros too.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Calls `visit` with every run of sibling tokens, outermost first, and its position in the run.
pub(crate) fn each(tokens: TokenStream, visit: &mut impl FnMut(&[TokenTree], usize)) {
    let run: Vec<TokenTree> = tokens.into_iter().collect();
    for at in 0..run.len() {
        visit(&run, at);
        if let TokenTree::Group(group) = &run[at] {
            each(group.stream(), visit);
        }
    }
}

pub(crate) fn is_word(token: Option<&TokenTree>, word: &str) -> bool {
    matches!(token, Some(TokenTree::Ident(ident)) if ident == word)
}

pub(crate) fn is_mark(token: Option<&TokenTree>, mark: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == mark)
}

pub(crate) fn is_group(token: Option<&TokenTree>, delimiter: Delimiter) -> bool {
    matches!(token, Some(TokenTree::Group(group)) if group.delimiter() == delimiter)
}

/// First line of a token, counted from 1.
pub(crate) fn line(token: &TokenTree) -> usize {
    token.span().start().line
}

#[test]
fn tokens_inside_of_groups_and_macros_are_visited() {
    let tokens: TokenStream = "fn a() { b! { deep } }".parse().unwrap();
    let mut words = Vec::new();
    each(tokens, &mut |run, at| {
        if let TokenTree::Ident(ident) = &run[at] {
            words.push(ident.to_string());
        }
    });
    assert_eq!(words, ["fn", "a", "b", "deep"]);
}
