//! What is measured: one test for each combination of what was typed.

use std::fmt;

use crate::args::BenchArgs;

/// One test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    pub work: Work,
    /// Tokens of context before.
    pub depth: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// This many tokens in one chunk.
    Prompt(usize),
    /// One token after the other, each for all sequences.
    Reply { tokens: usize, sequences: usize },
}

/// Why there is nothing that could be measured.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaseError {
    #[error("there is nothing to measure: --prompt and --reply have no number but 0")]
    Nothing,
    #[error(
        "{case} needs {positions} positions, and the model was trained for {context}: choose less of --depth, --prompt or --reply"
    )]
    ContextExceeded {
        case: Case,
        positions: usize,
        context: usize,
    },
}

impl Case {
    /// Every combination: prompts, then replies.
    pub fn all(args: &BenchArgs, context: usize) -> Result<Vec<Case>, CaseError> {
        let prompts = args.prompt.iter().filter(|tokens| **tokens > 0);
        let mut works: Vec<Work> = prompts.map(|tokens| Work::Prompt(*tokens)).collect();
        for &sequences in &args.batch {
            let replies = args.reply.iter().filter(|tokens| **tokens > 0);
            works.extend(replies.map(|&tokens| Work::Reply { tokens, sequences }));
        }
        let depths = |work| args.depth.iter().map(move |&depth| Case { work, depth });
        let cases: Vec<Case> = works.into_iter().flat_map(depths).collect();
        let too_long = cases.iter().find(|case| case.positions() > context);
        match too_long {
            Some(&case) => Err(CaseError::ContextExceeded {
                case,
                positions: case.positions(),
                context,
            }),
            None if cases.is_empty() => Err(CaseError::Nothing),
            None => Ok(cases),
        }
    }

    /// Sequences side by side.
    pub fn sequences(&self) -> usize {
        match self.work {
            Work::Prompt(_) => 1,
            Work::Reply { sequences, .. } => sequences,
        }
    }

    /// Measured tokens of each sequence.
    pub fn tokens(&self) -> usize {
        match self.work {
            Work::Prompt(tokens) | Work::Reply { tokens, .. } => tokens,
        }
    }

    /// Length of each sequence at the end.
    pub fn positions(&self) -> usize {
        self.depth.saturating_add(self.tokens())
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.work {
            Work::Prompt(tokens) => write!(f, "pp{tokens}")?,
            Work::Reply { tokens, sequences: 1 } => write!(f, "tg{tokens}")?,
            Work::Reply { tokens, sequences } => write!(f, "tg{tokens}x{sequences}")?,
        }
        match self.depth {
            0 => Ok(()),
            depth => write!(f, "@d{depth}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Arguments, Command};

    fn cases(words: &str, context: usize) -> Result<Vec<String>, CaseError> {
        let words = ["goldcrest", "bench", "model"]
            .into_iter()
            .chain(words.split_whitespace());
        let Command::Bench(args) = Arguments::try_parse_from(words).unwrap().command else {
            unreachable!("the word is bench");
        };
        Ok(Case::all(&args, context)?.iter().map(Case::to_string).collect())
    }

    #[test]
    fn every_combination_has_its_name() {
        assert_eq!(cases("", 512).unwrap(), ["pp512", "tg128"]);
        assert_eq!(cases("-p 0 -n 128 -d 0,4096", 8192).unwrap(), ["tg128", "tg128@d4096"]);
        assert_eq!(
            cases("-p 16,0,32 -n 4,8 -d 0,9 -b 1,8", 64).unwrap(),
            [
                "pp16", "pp16@d9", "pp32", "pp32@d9", "tg4", "tg4@d9", "tg8", "tg8@d9", "tg4x8", "tg4x8@d9", "tg8x8",
                "tg8x8@d9"
            ]
        );
    }

    #[test]
    fn impossible_tests_are_refused_by_name() {
        assert_eq!(cases("-p 0 -n 0", 512), Err(CaseError::Nothing));
        let case = Case {
            work: Work::Prompt(500),
            depth: 13,
        };
        let refused = |depth| CaseError::ContextExceeded {
            case: Case { depth, ..case },
            positions: 500_usize.saturating_add(depth),
            context: 512,
        };
        assert!(cases("-p 500 -d 12", 512).is_ok());
        assert_eq!(cases("-p 500 -d 12,13", 512), Err(refused(13)));
        assert_eq!(
            cases(&format!("-p 500 -d {}", usize::MAX), 512),
            Err(refused(usize::MAX))
        );
        assert!(refused(13).to_string().starts_with("pp500@d13 needs 513 positions"));
    }
}
