//! The one error that callers see.

use std::path::PathBuf;

use crate::cache::CacheError;
use crate::http::HttpError;
use crate::name::NameError;
use crate::package::PackageError;
use crate::select::SelectError;

/// Why a name did not become a path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// The name itself.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The name is right but nothing of it is here; [`crate::Hub::plan_download`] may help.
    #[error("{name} is not on this machine")]
    NotLocal {
        /// The name as given.
        name: String,
    },
    /// A download would be needed, and HF_HUB_OFFLINE forbids it.
    #[error("{name} is not on this machine and HF_HUB_OFFLINE is set; unset it, or give the path of a file")]
    Offline {
        /// The name as given.
        name: String,
    },
    /// The name is a path, so there is nothing to download.
    #[error("{path} is a file or folder of this machine; there is nothing to download")]
    IsLocalPath {
        /// The path.
        path: PathBuf,
    },
    /// The repository or its copy in the cache is no usable model.
    #[error("{name}: {source}")]
    Select {
        /// The name as given.
        name: String,
        /// Why.
        source: SelectError,
    },
    /// The hub.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The disk.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The Python package that stands in for the hub.
    #[error("{source}; the hub was tried first: {hub}")]
    Package {
        /// Why the package did not help.
        source: PackageError,
        /// Why the hub did not.
        hub: String,
    },
    /// A download ended early again and again. What arrived is kept, and the next run goes on from there.
    #[error("{file}: {done_bytes} of {total_bytes} bytes arrived; run this again to go on: {source}")]
    Interrupted {
        /// File name inside the repository.
        file: String,
        /// Bytes on disk.
        done_bytes: u64,
        /// Size of the file.
        total_bytes: u64,
        /// The last failure.
        source: HttpError,
    },
    /// The bytes are not those that were announced. They were deleted.
    #[error("{file}: the SHA-256 is {actual}, expected {expected}; the download was deleted")]
    WrongDigest {
        /// File name inside the repository.
        file: String,
        /// Announced or known digest.
        expected: String,
        /// Digest of what came.
        actual: String,
    },
    /// The server sent more than was announced. What came was deleted.
    #[error("{file}: more than the announced {expected_bytes} bytes arrived; the download was deleted")]
    TooLong {
        /// File name inside the repository.
        file: String,
        /// Announced size.
        expected_bytes: u64,
    },
}

impl HubError {
    /// The name is well-formed and may be downloaded.
    pub fn is_not_local(&self) -> bool {
        matches!(self, Self::NotLocal { .. })
    }

    /// The hub did not answer, as opposed to refusing; another network or time may help.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Http(error) => error.is_unreachable(),
            Self::Interrupted { source, .. } => source.is_unreachable(),
            _ => false,
        }
    }
}
