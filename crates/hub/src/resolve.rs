//! From a name to what is on this machine, without any request.

use std::path::PathBuf;

use crate::cache::{self, CachedModel, RepositoryCache, file_names};
use crate::error::HubError;
use crate::name::{ModelName, RepositoryName};
use crate::select::select;
use crate::{Environment, Hub};

/// A model on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// A GGUF file (of a set, the first), or a folder with safetensors.
    pub path: PathBuf,
    /// How it was found.
    pub source: Source,
}

/// How a model was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The name is its path.
    Path,
    /// It is in the cache.
    Cache {
        /// `org/name`.
        repository: String,
        /// Commit.
        commit: String,
    },
}

impl Hub {
    /// Finds a model on this machine. Never makes a request: a branch stands for the commit it stood for when last asked.
    ///
    /// What is not here is [`HubError::NotLocal`], or [`HubError::Offline`] where a download is forbidden as well.
    pub fn resolve(&self, name: &str) -> Result<Located, HubError> {
        let environment = self.environment();
        let found = match ModelName::parse(name)? {
            ModelName::Path(path) => {
                return Ok(Located {
                    path,
                    source: Source::Path,
                });
            }
            ModelName::Alias(alias) => {
                let path = RepositoryCache::new(environment, alias.repository).present(
                    alias.commit,
                    alias.file.name,
                    alias.file.bytes,
                );
                path.map(|path| Located::in_cache(path, alias.repository, alias.commit))
            }
            ModelName::Repository(repository) => find_repository(environment, &repository)?,
        };
        let name = name.to_owned();
        found.ok_or(if environment.offline {
            HubError::Offline { name }
        } else {
            HubError::NotLocal { name }
        })
    }

    /// All models in the cache, by repository and commit, whichever tool put them there.
    pub fn list(&self) -> Result<Vec<CachedModel>, HubError> {
        Ok(cache::list(&self.environment().cache)?)
    }
}

impl Located {
    pub(crate) fn in_cache(path: PathBuf, repository: &str, commit: &str) -> Self {
        Self {
            path,
            source: Source::Cache {
                repository: repository.to_owned(),
                commit: commit.to_owned(),
            },
        }
    }
}

/// A snapshot that lacks a part of the model counts as absent: a download completes it.
fn find_repository(environment: &Environment, wanted: &RepositoryName) -> Result<Option<Located>, HubError> {
    let cache = RepositoryCache::new(environment, &wanted.repository);
    let Some(commit) = cache.commit(&wanted.revision) else {
        return Ok(None);
    };
    let snapshot = cache.snapshot(&commit);
    let names = file_names(&snapshot)?;
    let Ok(selection) = select(&names, wanted.quant.as_deref()) else {
        return Ok(None);
    };
    let path = selection
        .entry
        .map_or_else(|| snapshot.clone(), |entry| snapshot.join(entry));
    Ok(Some(Located::in_cache(path, &wanted.repository, &commit)))
}
