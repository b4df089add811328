//! Added tokens: token texts that are cut out of the input before the model's algorithm sees it.

use std::ops::Range;

/// One added token and how it is matched.
#[derive(Debug, Clone)]
pub(crate) struct AddedToken {
    pub id: u32,
    pub content: String,
    /// Left out of decoded text when special tokens are skipped.
    pub special: bool,
    /// Never recognised in message content.
    pub control: bool,
    /// Matched in the normalised text instead of the raw text.
    pub normalized: bool,
    /// A match swallows the white space before it.
    pub lstrip: bool,
    /// A match swallows the white space after it.
    pub rstrip: bool,
}

/// A match: byte range in the searched text, and the token's id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub range: Range<usize>,
    pub id: u32,
}

/// Leftmost-longest matcher over a set of added tokens.
#[derive(Debug, Default)]
pub(crate) struct Matcher {
    tokens: Vec<AddedToken>,
    nodes: Vec<Node>,
}

/// A trie node: children ascending by byte, and the index of the token that ends here.
#[derive(Debug, Default)]
struct Node {
    children: Vec<(u8, usize)>,
    token: Option<usize>,
}

impl Matcher {
    /// Builds a matcher; `pattern` gives the text to search for, empty patterns never match. Of two equal patterns the first wins.
    pub fn new(tokens: Vec<AddedToken>, pattern: impl Fn(&AddedToken) -> String) -> Self {
        let mut matcher = Matcher {
            nodes: vec![Node::default()],
            tokens: Vec::new(),
        };
        for token in tokens {
            let text = pattern(&token);
            if text.is_empty() {
                continue;
            }
            let index = matcher.tokens.len();
            let end = text.bytes().fold(0, |node, byte| matcher.child_or_insert(node, byte));
            matcher.nodes[end].token.get_or_insert(index);
            matcher.tokens.push(token);
        }
        matcher
    }

    /// The tokens that can match.
    pub fn tokens(&self) -> &[AddedToken] {
        &self.tokens
    }

    fn child_or_insert(&mut self, node: usize, byte: u8) -> usize {
        match self.nodes[node].children.binary_search_by_key(&byte, |c| c.0) {
            Ok(at) => self.nodes[node].children[at].1,
            Err(at) => {
                let child = self.nodes.len();
                self.nodes.push(Node::default());
                self.nodes[node].children.insert(at, (byte, child));
                child
            }
        }
    }

    fn child(&self, node: usize, byte: u8) -> Option<usize> {
        let children = &self.nodes.get(node)?.children;
        children
            .binary_search_by_key(&byte, |c| c.0)
            .ok()
            .map(|at| children[at].1)
    }

    /// Non-overlapping matches in `text`, each the longest at the leftmost position. A control token only counts where
    /// `control_allowed` accepts its range; where it does not, shorter and later matches are still found.
    pub fn find(&self, text: &str, control_allowed: &dyn Fn(&Range<usize>) -> bool) -> Vec<Found> {
        let mut found: Vec<Found> = Vec::new();
        if self.tokens.is_empty() {
            return found;
        }
        let (mut at, mut free_from) = (0, 0);
        while at < text.len() {
            match self.longest_at(text.as_bytes(), at, control_allowed) {
                Some((end, token)) => {
                    let range = widened(text, at..end, token, free_from);
                    (at, free_from) = (range.end, range.end);
                    found.push(Found { range, id: token.id });
                }
                None => at += 1,
            }
        }
        found
    }

    fn longest_at(
        &self,
        text: &[u8],
        start: usize,
        control_allowed: &dyn Fn(&Range<usize>) -> bool,
    ) -> Option<(usize, &AddedToken)> {
        let (mut node, mut best) = (0, None);
        for (offset, &byte) in text[start..].iter().enumerate() {
            let Some(next) = self.child(node, byte) else { break };
            node = next;
            let end = start + offset + 1;
            let token = self.nodes[node].token.map(|t| &self.tokens[t]);
            if let Some(token) = token.filter(|t| !t.control || control_allowed(&(start..end))) {
                best = Some((end, token));
            }
        }
        best
    }
}

/// The range of a match with the white space that the token swallows, not reaching before `free_from`.
fn widened(text: &str, range: Range<usize>, token: &AddedToken, free_from: usize) -> Range<usize> {
    let mut range = range;
    if token.lstrip {
        range.start = text[..range.start].trim_end().len().max(free_from);
    }
    if token.rstrip {
        let rest = &text[range.end..];
        range.end += rest.len() - rest.trim_start().len();
    }
    range
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u32, content: &str, control: bool) -> AddedToken {
        AddedToken {
            id,
            content: content.into(),
            special: control,
            control,
            normalized: false,
            lstrip: false,
            rstrip: false,
        }
    }

    fn ids(matcher: &Matcher, text: &str, allow: bool) -> Vec<(Range<usize>, u32)> {
        matcher
            .find(text, &|_| allow)
            .into_iter()
            .map(|f| (f.range, f.id))
            .collect()
    }

    #[test]
    fn longest_match_at_the_leftmost_position() {
        let m = Matcher::new(
            vec![token(1, "\n", false), token(2, "\n\n", false), token(3, "<a>", true)],
            |t| t.content.clone(),
        );
        assert_eq!(ids(&m, "x\n\n\n<a>", true), [(1..3, 2), (3..4, 1), (4..7, 3)]);
        assert_eq!(ids(&m, "<a<a>", true), [(2..5, 3)]);
        assert_eq!(ids(&m, "", true), []);
    }

    #[test]
    fn a_refused_control_token_leaves_shorter_matches() {
        let m = Matcher::new(vec![token(1, "<|x", false), token(2, "<|x|>", true)], |t| {
            t.content.clone()
        });
        assert_eq!(ids(&m, "a<|x|>", true), [(1..6, 2)]);
        assert_eq!(ids(&m, "a<|x|>", false), [(1..4, 1)]);
    }

    #[test]
    fn white_space_is_swallowed_but_never_twice() {
        let mut mask = token(1, "<m>", true);
        (mask.lstrip, mask.rstrip) = (true, true);
        let m = Matcher::new(vec![mask], |t| t.content.clone());
        assert_eq!(ids(&m, "a <m> <m> b", true), [(1..6, 1), (6..10, 1)]);
    }
}
