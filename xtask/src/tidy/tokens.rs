//! A Rust file as a flat list of tokens, each with its line and whether it is test code.
//!
//! Comments are gone; doc comments have become attributes. Test code is an item behind `#[cfg(test)]` or `#[test]`.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// One token. A group gives its opening delimiter, its contents and its closing one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) line: usize,
    pub(crate) test: bool,
}

/// The tokens of a file, or the line at which it is no Rust.
pub(crate) fn tokens(source: &str) -> Result<Vec<Token>, usize> {
    let stream: TokenStream = source.parse().map_err(|error: proc_macro2::LexError| error.span().start().line)?;
    let mut out = Vec::new();
    flatten(stream, false, &mut out);
    Ok(out)
}

fn flatten(stream: TokenStream, test: bool, out: &mut Vec<Token>) {
    // Inside an item that an attribute has made test code, until its body or its semicolon.
    let mut item = false;
    let mut hash = false;
    for tree in stream {
        let line = tree.span().start().line;
        let test_here = test || item;
        match tree {
            TokenTree::Group(group) => {
                if hash && group.delimiter() == Delimiter::Bracket {
                    item |= is_test_attribute(&group);
                }
                let ends_item = group.delimiter() == Delimiter::Brace;
                flatten_group(&group, test_here, line, out);
                item &= !ends_item;
                hash = false;
            }
            TokenTree::Punct(punct) => {
                let text = punct.as_char();
                out.push(Token { text: text.to_string(), line, test: test_here });
                item &= text != ';';
                hash = text == '#' || (hash && text == '!');
            }
            TokenTree::Ident(ident) => {
                hash = false;
                let text = ident.to_string();
                out.push(Token { text: text.trim_start_matches("r#").to_owned(), line, test: test_here });
            }
            TokenTree::Literal(literal) => {
                hash = false;
                out.push(Token { text: literal.to_string(), line, test: test_here });
            }
        }
    }
}

fn flatten_group(group: &Group, test: bool, line: usize, out: &mut Vec<Token>) {
    let (open, close) = match group.delimiter() {
        Delimiter::Parenthesis => ("(", ")"),
        Delimiter::Brace => ("{", "}"),
        Delimiter::Bracket => ("[", "]"),
        Delimiter::None => ("", ""),
    };
    out.push(Token { text: open.to_owned(), line, test });
    flatten(group.stream(), test, out);
    out.push(Token { text: close.to_owned(), line: group.span_close().start().line, test });
}

/// `[test]`, `[tokio::test]`, `[cfg(test)]`, `[cfg(any(test, …))]`, but not `[cfg(not(test))]`.
fn is_test_attribute(attribute: &Group) -> bool {
    let text: String = attribute.stream().into_iter().map(|token| token.to_string()).collect();
    let text: String = text.split_whitespace().collect();
    text == "test"
        || text.ends_with("::test")
        || text.starts_with("tokio::test(")
        || text == "cfg(test)"
        || text.starts_with("cfg(any(test,")
        || text.starts_with("cfg(all(test,")
}

/// The first place after `at` where these texts stand one after the other.
pub(crate) fn find(tokens: &[Token], texts: &[&str]) -> Vec<usize> {
    tokens
        .windows(texts.len())
        .enumerate()
        .filter(|(_, window)| window.iter().zip(texts).all(|(token, text)| token.text == *text))
        .map(|(at, _)| at)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_no_code() {
        let source = "// a.unwrap()\n/* todo!() */\nfn f() { g(\"dbg!(x)\", 'a'); h::<'static>(r#\"x\"#) }\n";
        let tokens = tokens(source).unwrap();
        assert!(find(&tokens, &["unwrap", "("]).is_empty());
        assert!(find(&tokens, &["todo", "!"]).is_empty());
        assert!(find(&tokens, &["dbg", "!"]).is_empty());
        assert_eq!(tokens.iter().find(|token| token.text == "f").unwrap().line, 3);
    }

    #[test]
    fn test_items_end_where_they_end() {
        let source = "#[cfg(test)]\nuse a;\nuse b;\n#[cfg(test)]\nmod tests { fn c() {} }\n#[cfg(not(test))]\nfn d() {}\n\
                      #[tokio::test]\nasync fn e() {}\n";
        let tokens = tokens(source).unwrap();
        let test = |name: &str| tokens.iter().find(|token| token.text == name).unwrap().test;
        assert_eq!(["a", "b", "c", "d", "e"].map(test), [true, false, true, false, true]);
    }

    #[test]
    fn what_is_no_rust_has_a_line() {
        assert_eq!(tokens("fn f() {\n}\n}"), Err(3));
    }
}
