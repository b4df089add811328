//! Text and conversations → token ids, with the tokenizer and the chat template of a model.

use goldcrest_format::{Checkpoint, Config, FormatError, hf::HfError};
use goldcrest_text::{
    ChatTemplate, ControlTexts, HfFiles, Piece, RenderInput, SpecialTexts, TemplateError, Tokenizer, TokenizerError,
};
use serde_json::Value;

/// Why a prompt could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// The vocabulary cannot be used, or a text cannot be converted.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The chat template cannot be used, or refuses the conversation.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// A file of the model's folder cannot be read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Weights without a vocabulary.
    #[error("the model has no tokenizer: {0}/tokenizer.json is missing")]
    NoTokenizer(String),
    /// A conversation needs a template.
    #[error("the model has no chat template: give it plain text instead")]
    NoTemplate,
}

impl From<HfError> for PromptError {
    fn from(error: HfError) -> Self {
        PromptError::Format(error.into())
    }
}

/// A model's tokenizer and chat template.
#[derive(Debug)]
pub struct Prompts {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    control: ControlTexts,
}

impl Prompts {
    /// Reads both from a checkpoint.
    ///
    /// # Errors
    /// [`PromptError`].
    pub fn open(checkpoint: &Checkpoint) -> Result<Prompts, PromptError> {
        let template = checkpoint.chat_template().map(ChatTemplate::new).transpose()?;
        Ok(Prompts {
            template,
            ..Prompts::without_template(checkpoint)?
        })
    }

    /// Reads the tokenizer alone, for who does not want the template, usable or not.
    ///
    /// # Errors
    /// [`PromptError`].
    pub fn without_template(checkpoint: &Checkpoint) -> Result<Prompts, PromptError> {
        let tokenizer = open_tokenizer(checkpoint)?;
        let control = tokenizer.control_texts();
        Ok(Prompts {
            tokenizer,
            template: None,
            control,
        })
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The chat template; base models have none.
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    /// Ids of a text that the model continues. Control tokens in it are recognised if it is `trusted`.
    ///
    /// # Errors
    /// [`PromptError::Tokenizer`].
    pub fn text(&self, text: &str, trusted: bool) -> Result<Vec<u32>, PromptError> {
        let piece = if trusted {
            Piece::Markup(text)
        } else {
            Piece::Content(text)
        };
        Ok(self.tokenizer.encode_prompt(&[piece])?)
    }

    /// Ids of a conversation (objects with `role` and `content`) up to where the reply begins. Control tokens in messages are text.
    ///
    /// # Errors
    /// [`PromptError`].
    pub fn chat(&self, messages: &[Value]) -> Result<Vec<u32>, PromptError> {
        let template = self.template.as_ref().ok_or(PromptError::NoTemplate)?;
        let ids = self.tokenizer.special_ids();
        let text = |id: Option<u32>| id.and_then(|id| self.tokenizer.token_text(id));
        // No clock: a prompt that changes with it could not be reused.
        let input = RenderInput {
            messages,
            add_generation_prompt: true,
            special: SpecialTexts {
                bos: text(ids.bos),
                eos: text(ids.eos),
                unknown: text(ids.unknown),
                padding: text(ids.padding),
            },
            ..RenderInput::default()
        };
        let prompt = template.render_prompt(&input, &self.control)?;
        Ok(self.tokenizer.encode_prompt(&prompt.pieces())?)
    }
}

fn open_tokenizer(checkpoint: &Checkpoint) -> Result<Tokenizer, PromptError> {
    if let Config::Gguf(metadata) = checkpoint.config() {
        return Ok(Tokenizer::from_gguf(metadata)?);
    }
    let Some(folder) = checkpoint.files() else {
        return Err(PromptError::NoTokenizer(".".into()));
    };
    let missing = || PromptError::NoTokenizer(folder.path().display().to_string());
    let tokenizer = folder.tokenizer()?.ok_or_else(missing)?;
    let tokenizer_config = folder.tokenizer_config()?.map_or(Value::Null, Value::Object);
    let generation_config = Value::Object(checkpoint.generation_config().clone());
    let files = HfFiles {
        tokenizer: &tokenizer,
        tokenizer_config: &tokenizer_config,
        generation_config: &generation_config,
    };
    Ok(Tokenizer::from_hf(&files)?)
}
