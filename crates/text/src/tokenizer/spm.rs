//! SentencePiece BPE: adjacent pieces are joined, best score first, until no join is a known piece.
//!
//! Source of the algorithm: T. Kudo and J. Richardson, "SentencePiece" (2018), and the published behaviour of its `bpe` model type:
//! ties go to the leftmost pair, a character without a piece becomes the byte pieces `<0xNN>` of its UTF-8 form (or the unknown
//! token where the vocabulary has none), and pieces marked unused are taken apart again.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

/// A vocabulary of scored pieces.
#[derive(Debug)]
pub(crate) struct ScoredPieces {
    pieces: HashMap<Box<str>, Piece>,
    byte_ids: [Option<u32>; 256],
    unknown: Option<u32>,
    add_space_prefix: bool,
    remove_extra_whitespaces: bool,
}

/// A piece that joins may produce. Scores are finite.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub id: u32,
    /// Length of a user-defined piece, 0 for others: those go before all others, the longest first.
    pub user_characters: usize,
    pub score: f32,
    pub unused: bool,
}

/// Text treatment before the joins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpmRules {
    /// A text gets a space in front.
    pub add_space_prefix: bool,
    /// Spaces at the ends are dropped and runs of spaces become one.
    pub remove_extra_whitespaces: bool,
}

/// A piece of the text while joining: byte range, neighbours in the list, empty once joined into its left neighbour.
struct Symbol {
    start: usize,
    end: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// A possible join of a symbol with its right neighbour. `len` tells whether either has changed since.
struct Join {
    user_characters: usize,
    score: f32,
    left: usize,
    right: usize,
    len: usize,
}

impl PartialEq for Join {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Join {}

impl PartialOrd for Join {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Join {
    fn cmp(&self, other: &Self) -> Ordering {
        self.user_characters
            .cmp(&other.user_characters)
            .then(self.score.total_cmp(&other.score))
            .then(other.left.cmp(&self.left))
    }
}

impl ScoredPieces {
    /// `pieces` may be joined or stand alone, `byte_ids` are the byte pieces, `unknown` stands for what has neither.
    pub fn new(
        pieces: HashMap<Box<str>, Piece>,
        byte_ids: [Option<u32>; 256],
        unknown: Option<u32>,
        rules: SpmRules,
    ) -> Self {
        let SpmRules {
            add_space_prefix,
            remove_extra_whitespaces,
        } = rules;
        ScoredPieces {
            pieces,
            byte_ids,
            unknown,
            add_space_prefix,
            remove_extra_whitespaces,
        }
    }

    /// Appends the ids of `text` to `ids`.
    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        let text = self.normalized(text);
        let mut symbols = characters(&text);
        let mut queue = BinaryHeap::new();
        // How an unused piece was joined, to take it apart again: end of its left half by byte range.
        let mut halves: HashMap<(usize, usize), usize> = HashMap::new();
        for left in 0..symbols.len() {
            self.propose(&text, &symbols, Some(left), &mut queue, &mut halves);
        }
        while let Some(join) = queue.pop() {
            let (left, right) = (&symbols[join.left], &symbols[join.right]);
            if left.start == left.end || right.start == right.end || right.end - left.start != join.len {
                continue;
            }
            let (end, next) = (right.end, right.next);
            symbols[join.right].start = end;
            symbols[join.left].end = end;
            symbols[join.left].next = next;
            if let Some(next) = next {
                symbols[next].previous = Some(join.left);
            }
            self.propose(&text, &symbols, symbols[join.left].previous, &mut queue, &mut halves);
            self.propose(&text, &symbols, Some(join.left), &mut queue, &mut halves);
        }
        for symbol in symbols.iter().filter(|s| s.start < s.end) {
            self.emit(&text, (symbol.start, symbol.end), &halves, ids);
        }
    }

    fn normalized(&self, text: &str) -> String {
        let mut result = String::with_capacity(text.len() + 8);
        let body = if self.remove_extra_whitespaces {
            text.trim_matches(' ')
        } else {
            text
        };
        if body.is_empty() {
            return result;
        }
        if self.add_space_prefix {
            result.push('▁');
        }
        let mut after_space = false;
        for c in body.chars() {
            if c != ' ' {
                result.push(c);
            } else if !(after_space && self.remove_extra_whitespaces) {
                result.push('▁');
            }
            after_space = c == ' ';
        }
        result
    }

    fn propose(
        &self,
        text: &str,
        symbols: &[Symbol],
        left: Option<usize>,
        queue: &mut BinaryHeap<Join>,
        halves: &mut HashMap<(usize, usize), usize>,
    ) {
        let Some(left) = left else { return };
        let Some(right) = symbols[left].next else { return };
        let (start, end) = (symbols[left].start, symbols[right].end);
        let Some(piece) = self.pieces.get(&text[start..end]) else {
            return;
        };
        queue.push(Join {
            user_characters: piece.user_characters,
            score: piece.score,
            left,
            right,
            len: end - start,
        });
        if piece.unused {
            halves.insert((start, end), symbols[left].end);
        }
    }

    fn emit(&self, text: &str, range: (usize, usize), halves: &HashMap<(usize, usize), usize>, ids: &mut Vec<u32>) {
        let mut pending = vec![range];
        while let Some((start, end)) = pending.pop() {
            let piece = self.pieces.get(&text[start..end]);
            let half = halves.get(&(start, end)).filter(|_| piece.is_some_and(|p| p.unused));
            match (half, piece) {
                (Some(&middle), _) => pending.extend([(middle, end), (start, middle)]),
                (None, Some(piece)) => ids.push(piece.id),
                (None, None) => self.emit_bytes(&text.as_bytes()[start..end], ids),
            }
        }
    }

    fn emit_bytes(&self, bytes: &[u8], ids: &mut Vec<u32>) {
        let byte_ids: Option<Vec<u32>> = bytes.iter().map(|&b| self.byte_ids[usize::from(b)]).collect();
        match byte_ids {
            Some(byte_ids) => ids.extend(byte_ids),
            // One unknown token stands for a run of unknown characters.
            None => ids.extend(self.unknown.filter(|unknown| ids.last() != Some(unknown))),
        }
    }
}

fn characters(text: &str) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
    for (start, c) in text.char_indices() {
        let index = symbols.len();
        let previous = index.checked_sub(1);
        symbols.push(Symbol {
            start,
            end: start + c.len_utf8(),
            previous,
            next: Some(index + 1),
        });
    }
    if let Some(last) = symbols.last_mut() {
        last.next = None;
    }
    symbols
}
