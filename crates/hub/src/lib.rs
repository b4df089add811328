//! Names to local files: what the user types for a model becomes a path, downloading where needed.
//!
//! A name is a path, an alias of the [`catalogue`], or `org/name[@revision][:quant]`. Downloads land in the cache that the other
//! tools on the machine share (the layout is described in `cache`), so a model fetched by any of them is found by all.
//!
//! The order of calls lets the caller say what will happen before it happens:
//!
//! 1. [`Hub::resolve`] makes no request. It answers with a path, or with an error whose [`HubError::is_not_local`] is true.
//! 2. [`Hub::plan_download`] asks the hub and returns a [`Plan`]: source, files, sizes, licence. Nothing is written.
//! 3. [`Hub::fetch`] carries the plan out and returns the path.
//!
//! This crate and the command line are the only readers of environment variables; all of them are read once, by
//! [`Environment::from_process`].

mod cache;
pub mod catalogue;
mod digest;
mod download;
mod environment;
mod error;
mod http;
mod listing;
mod name;
pub mod package;
mod partial;
mod plan;
mod resolve;
mod select;
mod tls;
mod wheel;

pub use cache::{CacheError, CachedFile, CachedModel};
pub use environment::{Environment, Proxies};
pub use error::HubError;
pub use http::HttpError;
pub use name::{ModelName, NameError, RepositoryName};
pub use package::PackageError;
pub use plan::{Plan, PlanSource, PlannedFile};
pub use resolve::{Located, Source};
pub use select::SelectError;
pub use wheel::WheelError;

/// The client: an environment and the operations on it.
#[derive(Debug, Clone)]
pub struct Hub {
    environment: Environment,
}

impl Hub {
    /// A client for this environment. Nothing is read or requested yet.
    pub fn new(environment: Environment) -> Self {
        Self { environment }
    }

    /// The environment that the client was made with.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }
}

/// What a running download tells its caller. Byte counts include what an earlier, interrupted run left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// Another process downloads the same file; this one waits for it.
    Waiting {
        /// File name inside the repository.
        file: &'a str,
    },
    /// The user's Python package client fetches a package, which takes a while and reports nothing in between.
    Package {
        /// Name of the package.
        package: &'a str,
        /// Its version.
        version: &'a str,
    },
    /// Bytes of a file that are on disk.
    Bytes {
        /// File name inside the repository.
        file: &'a str,
        /// Bytes on disk.
        done_bytes: u64,
        /// Size of the whole file, bytes.
        total_bytes: u64,
    },
    /// The file is complete, its size and (where known) its SHA-256 are right, and it is in its place.
    Done {
        /// File name inside the repository.
        file: &'a str,
    },
}
