//! The chat on a terminal.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use goldcrest::files::write;
use goldcrest::generate::Finish;
use goldcrest_engine::sample::Xtc;
use rustyline::config::{Behavior, Config};
use rustyline::error::ReadlineError;
use rustyline::{DefaultEditor, Editor};
use serde_json::{Value, json};

use crate::commands::Outcome;
use crate::output::{error_line, is_closed_pipe, note, tell};
use crate::reply::{Settings, Speaker, message};

/// Opens and closes a message of several lines.
const QUOTES: &str = "\"\"\"";

const HELP: &str = "\
  \"\"\"              begins and ends a message of several lines
  /clear           forget the conversation
  /set             show the settings
  /set NAME VALUE  change one (none unsets those that can be unset)
  /save FILE       write the conversation as JSON
  /bye             leave, as Ctrl-D does
  Ctrl-C           end a reply, or drop what is being typed";

/// What somebody typed.
#[derive(Debug, PartialEq, Eq)]
enum Input {
    Nothing,
    Message(String),
    Help,
    Clear,
    ShowSettings,
    Set(String, String),
    Save(PathBuf),
    Leave,
    /// A mistake, with what to say about it.
    Wrong(String),
}

impl Input {
    fn parse(text: &str) -> Input {
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Input::Nothing;
        }
        if let Some(quoted) = trimmed.strip_prefix(QUOTES) {
            return Input::Message(
                quoted
                    .strip_suffix(QUOTES)
                    .unwrap_or(quoted)
                    .trim_matches('\n')
                    .to_owned(),
            );
        }
        if !trimmed.starts_with('/') {
            return Input::Message(text.to_owned());
        }
        let (command, rest) = trimmed.split_once(char::is_whitespace).unwrap_or((trimmed, ""));
        let rest = rest.trim();
        match (command, rest) {
            ("/help" | "/?", "") => Input::Help,
            ("/clear", "") => Input::Clear,
            ("/bye" | "/exit" | "/quit", "") => Input::Leave,
            ("/set", "") => Input::ShowSettings,
            ("/set", _) => match rest.split_once(char::is_whitespace) {
                Some((name, value)) => Input::Set(name.to_owned(), value.trim().to_owned()),
                None => Input::Wrong(format!("/set {rest} needs a value")),
            },
            ("/save", "") => Input::Wrong("/save needs the name of a file".to_owned()),
            ("/save", file) => Input::Save(file.into()),
            _ => Input::Wrong(format!("{trimmed} is no command; /help lists them")),
        }
    }

    /// Whether a message of several lines is still open.
    fn is_open(text: &str) -> bool {
        let trimmed = text.trim();
        trimmed.strip_prefix(QUOTES).is_some_and(|rest| !rest.ends_with(QUOTES))
    }
}

/// XTC as it is set until told otherwise: never.
const NO_XTC: Xtc = Xtc {
    probability: 0.0,
    threshold: Xtc::DEFAULT_THRESHOLD,
};

impl Settings {
    /// Changes a setting, by the name of its option.
    fn set(&mut self, name: &str, value: &str, vocabulary: usize) -> Result<(), String> {
        let mut changed = self.clone();
        let sampling = &mut changed.sampling;
        match name {
            "system" => changed.system = Some(value.to_owned()).filter(|text| text != "none"),
            "max-tokens" if value == "none" => changed.max_tokens = None,
            "max-tokens" => changed.max_tokens = Some(number(name, value)?),
            "temp" => sampling.temperature = number(name, value)?,
            "top-k" => sampling.top_k = number(name, value)?,
            "top-p" => sampling.top_p = number(name, value)?,
            "min-p" => sampling.min_p = number(name, value)?,
            "typical-p" => sampling.typical_p = number(name, value)?,
            "xtc-probability" => sampling.xtc.get_or_insert(NO_XTC).probability = number(name, value)?,
            "xtc-threshold" => sampling.xtc.get_or_insert(NO_XTC).threshold = number(name, value)?,
            "repeat-penalty" => sampling.repetition_penalty = number(name, value)?,
            "presence-penalty" => sampling.presence_penalty = number(name, value)?,
            "frequency-penalty" => sampling.frequency_penalty = number(name, value)?,
            "seed" => sampling.seed = number(name, value)?,
            _ => return Err(format!("{name} is no setting; /set lists them")),
        }
        changed
            .sampling
            .validate(vocabulary)
            .map_err(|error| error.to_string())?;
        *self = changed;
        Ok(())
    }

    fn as_text(&self) -> String {
        let sampling = &self.sampling;
        let max_tokens = self.max_tokens.map_or("none".to_owned(), |most| most.to_string());
        let Xtc { probability, threshold } = sampling.xtc.unwrap_or(NO_XTC);
        let rows: [(&str, String); 13] = [
            ("system", self.system.clone().unwrap_or_else(|| "none".to_owned())),
            ("max-tokens", max_tokens),
            ("temp", sampling.temperature.to_string()),
            ("top-k", sampling.top_k.to_string()),
            ("top-p", sampling.top_p.to_string()),
            ("min-p", sampling.min_p.to_string()),
            ("typical-p", sampling.typical_p.to_string()),
            ("xtc-probability", probability.to_string()),
            ("xtc-threshold", threshold.to_string()),
            ("repeat-penalty", sampling.repetition_penalty.to_string()),
            ("presence-penalty", sampling.presence_penalty.to_string()),
            ("frequency-penalty", sampling.frequency_penalty.to_string()),
            ("seed", sampling.seed.to_string()),
        ];
        rows.iter().fold(String::new(), |mut text, (name, value)| {
            let separator = if text.is_empty() { "" } else { "\n" };
            // Writing to a string does not fail.
            let _ = write!(text, "{separator}  {name:17} {value}");
            text
        })
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{value:?} is no value for {name}"))
}

/// A conversation and who replies in it.
struct Chat<'a> {
    speaker: &'a mut Speaker,
    model: &'a str,
    /// Turns, without the system message.
    messages: Vec<Value>,
}

/// Chats until the user leaves.
pub fn run(speaker: &mut Speaker, model: &str) -> anyhow::Result<Outcome> {
    let mut lines = Lines::new()?;
    let mut chat = Chat {
        speaker,
        model,
        messages: Vec::new(),
    };
    tell("/help lists the commands, Ctrl-D leaves");
    while let Some(text) = lines.next()? {
        match Input::parse(&text) {
            Input::Nothing => {}
            Input::Message(text) => chat.turn(&text)?,
            Input::Help => tell(HELP),
            Input::Clear => chat.messages.clear(),
            Input::ShowSettings => tell(chat.speaker.settings.as_text()),
            Input::Set(name, value) => chat.set(&name, &value),
            Input::Save(path) => match chat.save(&path) {
                Ok(()) => tell(format_args!("written to {}", path.display())),
                Err(error) => tell(format_args!("error: {}", error_line(&error))),
            },
            Input::Leave => break,
            Input::Wrong(message) => tell(format_args!("error: {message}")),
        }
    }
    Ok(Outcome::Done)
}

impl Chat<'_> {
    /// One message and its reply. What fails is told and leaves the conversation as it was.
    fn turn(&mut self, text: &str) -> anyhow::Result<()> {
        self.messages.push(message("user", text));
        let prompt = self.speaker.prompt(&self.messages).map_err(anyhow::Error::from);
        match prompt.and_then(|prompt| self.speaker.reply(&prompt)) {
            Ok(reply) if reply.text.is_empty() && reply.finish == Finish::Cancelled => {
                self.messages.pop();
            }
            Ok(reply) => self.messages.push(message("assistant", &reply.text)),
            Err(error) if is_closed_pipe(&error) => return Err(error),
            Err(error) => {
                self.messages.pop();
                tell(format_args!("error: {}", error_line(&error)));
            }
        }
        Ok(())
    }

    fn set(&mut self, name: &str, value: &str) {
        if name == "system" && !self.speaker.chats() {
            return tell("error: the model has no chat template, so there is no place for a system message");
        }
        let vocabulary = self.speaker.vocabulary();
        if let Err(message) = self.speaker.settings.set(name, value, vocabulary) {
            tell(format_args!("error: {message}"));
        }
    }

    fn save(&self, path: &Path) -> anyhow::Result<()> {
        let system = self
            .speaker
            .settings
            .system
            .as_ref()
            .map(|text| message("system", text));
        let messages: Vec<Value> = system.into_iter().chain(self.messages.iter().cloned()).collect();
        let text = format!("{:#}\n", json!({ "model": self.model, "messages": messages }));
        Ok(write(path, text.as_bytes())?)
    }
}

/// Lines from the terminal, with a history.
struct Lines {
    editor: DefaultEditor,
    history: Option<PathBuf>,
}

impl Lines {
    fn new() -> anyhow::Result<Lines> {
        // The terminal itself, so that standard output can go to a file.
        let config = Config::builder().behavior(Behavior::PreferTerm).build();
        let mut editor: DefaultEditor = Editor::with_config(config)?;
        let history = history_file();
        if let Some(path) = history.as_ref().filter(|path| path.exists())
            && let Err(error) = editor.load_history(path)
        {
            note(format_args!(
                "the history in {} cannot be read: {error}",
                path.display()
            ));
        }
        Ok(Lines { editor, history })
    }

    /// The next message or command, `None` at the end.
    fn next(&mut self) -> anyhow::Result<Option<String>> {
        let mut text = String::new();
        loop {
            match self.editor.readline(if text.is_empty() { ">>> " } else { "... " }) {
                Ok(line) => text.push_str(&line),
                Err(ReadlineError::Interrupted) => {
                    text.clear();
                    continue;
                }
                Err(ReadlineError::Eof) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            if !Input::is_open(&text) {
                self.remember(&text);
                return Ok(Some(text));
            }
            text.push('\n');
        }
    }

    /// Failures are told once: a chat without a history is better than none.
    fn remember(&mut self, text: &str) {
        let Some(path) = &self.history else { return };
        let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        let added = self.editor.add_history_entry(text);
        let saved = added
            .and_then(|_| Ok(folder?))
            .and_then(|()| self.editor.append_history(path));
        if let Err(error) = saved {
            note(format_args!(
                "the history in {} cannot be written: {error}",
                path.display()
            ));
            self.history = None;
        }
    }
}

/// `goldcrest/history` in the folder for state (XDG base directories); `None` where that is unknown.
fn history_file() -> Option<PathBuf> {
    let absolute = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(state.join("goldcrest/history"))
}

#[cfg(test)]
mod tests {
    use goldcrest_engine::sample::SamplingParams;

    use super::*;

    #[test]
    fn commands_are_told_from_messages() {
        let message = |text: &str| Input::Message(text.to_owned());
        assert_eq!(Input::parse("  \n"), Input::Nothing);
        assert_eq!(Input::parse(" hello /bye"), message(" hello /bye"));
        assert_eq!(Input::parse("/bye "), Input::Leave);
        assert_eq!(Input::parse("/set"), Input::ShowSettings);
        assert_eq!(
            Input::parse("/set system be  brief"),
            Input::Set("system".into(), "be  brief".into())
        );
        assert_eq!(Input::parse("/save a b.json"), Input::Save("a b.json".into()));
        assert_eq!(Input::parse("\"\"\"\none\n\n /two\n\"\"\""), message("one\n\n /two"));
        assert_eq!(Input::parse("\"\"\"/bye\"\"\""), message("/bye"));
        for wrong in ["/", "/byebye", "/clear all", "/save", "/set temp"] {
            assert!(matches!(Input::parse(wrong), Input::Wrong(_)), "{wrong}");
        }
    }

    #[test]
    fn quotes_hold_a_message_open() {
        for open in ["\"\"\"", " \"\"\"one", "\"\"\"\none \"\"", "\"\"\" a \"\"\" b"] {
            assert!(Input::is_open(open), "{open}");
        }
        for closed in [
            "",
            "a",
            "a \"\"\"",
            "\"\"\"one\"\"\"",
            "\"\"\"\none\n\"\"\" ",
            "\"\"\"\"\"\"",
        ] {
            assert!(!Input::is_open(closed), "{closed}");
        }
    }

    #[test]
    fn settings_are_checked_and_changed_by_name() {
        let mut settings = Settings {
            sampling: SamplingParams::greedy(),
            stop: Vec::new(),
            max_tokens: None,
            system: None,
        };
        for (name, value) in [
            ("temp", "0.5"),
            ("top-k", "7"),
            ("typical-p", "0.75"),
            ("xtc-probability", "0.25"),
            ("xtc-threshold", "0.125"),
            ("max-tokens", "9"),
            ("system", "be brief"),
        ] {
            settings.set(name, value, 10).unwrap();
            assert!(
                settings
                    .as_text()
                    .lines()
                    .any(|line| line.contains(name) && line.ends_with(value))
            );
        }
        settings.set("max-tokens", "none", 10).unwrap();
        settings.set("system", "none", 10).unwrap();
        assert_eq!((settings.max_tokens, &settings.system), (None, &None));
        assert_eq!((settings.sampling.temperature, settings.sampling.top_k), (0.5, 7));
        for (name, value) in [
            ("temp", "warm"),
            ("temp", "-1"),
            ("top-p", "2"),
            ("xtc-threshold", "2"),
            ("tmp", "1"),
            ("seed", "-1"),
        ] {
            assert!(settings.set(name, value, 10).is_err(), "{name} {value}");
        }
        assert_eq!(settings.sampling.temperature, 0.5);
    }
}
