//! What the user types for a model, taken apart.

use std::fmt;
use std::path::PathBuf;

use crate::catalogue::{self, Alias};

/// A name, by kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelName {
    /// A file or folder on this machine.
    Path(PathBuf),
    /// An entry of the catalogue.
    Alias(&'static Alias),
    /// A repository of the hub.
    Repository(RepositoryName),
}

/// `org/name[@revision][:quant]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepositoryName {
    /// `org/name`.
    pub repository: String,
    /// Branch, tag or commit; `main` where none is given.
    pub revision: String,
    /// Quantisation to take among a repository's GGUF files, such as `Q4_K_M`.
    pub quant: Option<String>,
}

/// Why a name cannot be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It can only be a path, and there is nothing.
    #[error("{path}: no such file or folder")]
    PathMissing {
        /// The path as given.
        path: PathBuf,
    },
    /// Neither a path, nor an alias, nor a repository's name.
    #[error("{name:?} is no file, no alias ({aliases}) and no org/name[@revision][:quant]: {reason}")]
    Malformed {
        /// The name as given.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
        /// Known aliases.
        aliases: String,
    },
}

impl ModelName {
    /// Takes a name apart. What exists on disk is a path, whatever else it may look like.
    pub fn parse(name: &str) -> Result<Self, NameError> {
        let path = PathBuf::from(name);
        if !name.is_empty() && path.exists() {
            return Ok(Self::Path(path));
        }
        if let Some(alias) = catalogue::find(name) {
            return Ok(Self::Alias(alias));
        }
        if looks_like_path(name) {
            return Err(NameError::PathMissing { path });
        }
        RepositoryName::parse(name)
            .map(Self::Repository)
            .map_err(|reason| NameError::Malformed {
                name: name.to_owned(),
                reason,
                aliases: catalogue::ALIASES
                    .iter()
                    .map(|alias| alias.name)
                    .collect::<Vec<_>>()
                    .join(", "),
            })
    }
}

impl RepositoryName {
    fn parse(name: &str) -> Result<Self, &'static str> {
        let (rest, quant) = match name.rsplit_once(':') {
            Some((rest, quant)) => (rest, Some(quant)),
            None => (name, None),
        };
        let (repository, revision) = rest.split_once('@').unwrap_or((rest, "main"));
        let (org, model) = repository.split_once('/').ok_or("there is no slash")?;
        if !is_word(org) || !is_word(model) {
            return Err("org and name hold letters, digits, '-', '_' and '.' only, and do not begin with '-' or '.'");
        }
        if !revision.split('/').all(is_word) {
            return Err("the revision after '@' is no branch, tag or commit");
        }
        if quant.is_some_and(|quant| !is_word(quant)) {
            return Err("the quantisation after ':' is no word such as Q4_K_M");
        }
        Ok(Self {
            repository: repository.to_owned(),
            revision: revision.to_owned(),
            quant: quant.map(str::to_owned),
        })
    }
}

impl fmt::Display for RepositoryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repository)?;
        if self.revision != "main" {
            write!(f, "@{}", self.revision)?;
        }
        match &self.quant {
            Some(quant) => write!(f, ":{quant}"),
            None => Ok(()),
        }
    }
}

/// Part of a folder name in the cache and of an address, so nothing that could leave either.
pub(crate) fn is_word(word: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !word.is_empty()
        && word.len() <= 96
        && word.chars().all(allowed)
        && !word.starts_with(['-', '.'])
        && !word.contains("..")
}

fn looks_like_path(name: &str) -> bool {
    let marked = name.starts_with(['/', '~', '.']) || name.contains('\\') || name.ends_with('/');
    let slashes = name.split(['@', ':']).next().unwrap_or_default().matches('/').count();
    let is_model_file = [".gguf", ".safetensors"]
        .iter()
        .any(|ending| name.to_ascii_lowercase().ends_with(ending));
    marked || slashes > 1 || is_model_file
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository(name: &str) -> RepositoryName {
        match ModelName::parse(name) {
            Ok(ModelName::Repository(parsed)) => parsed,
            other => panic!("{name}: {other:?}"),
        }
    }

    #[test]
    fn repositories_with_and_without_parts() {
        for (name, revision, quant) in [
            ("org/model", "main", None),
            ("org/model:Q4_K_M", "main", Some("Q4_K_M")),
            ("org/model@v1.0", "v1.0", None),
            ("org/model@refs/pr/3:IQ2_XXS", "refs/pr/3", Some("IQ2_XXS")),
        ] {
            let parsed = repository(name);
            assert_eq!(
                (
                    parsed.repository.as_str(),
                    parsed.revision.as_str(),
                    parsed.quant.as_deref()
                ),
                ("org/model", revision, quant)
            );
            assert_eq!(parsed.to_string(), name);
        }
    }

    #[test]
    fn hostile_and_broken_names_are_refused() {
        for name in [
            "",
            "model",
            "org/",
            "org/mo del",
            "-org/model",
            "org/model:",
            "org/model@",
            "org/model@../../x",
            "org/a..b",
            "o@r/g:x",
        ] {
            assert!(ModelName::parse(name).is_err(), "{name:?}");
        }
        for name in [
            "../org/model",
            "a/b/c",
            "./x",
            "~/m",
            "model.gguf",
            "org/model.gguf",
            "a\\b",
        ] {
            assert!(
                matches!(ModelName::parse(name), Err(NameError::PathMissing { .. })),
                "{name:?}"
            );
        }
    }

    #[test]
    fn existing_paths_and_aliases() {
        assert!(matches!(ModelName::parse("Cargo.toml"), Ok(ModelName::Path(_))));
        assert!(matches!(ModelName::parse("smollm2"), Ok(ModelName::Alias(alias)) if alias.name == "smollm2"));
    }
}
