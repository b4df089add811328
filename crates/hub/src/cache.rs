//! The cache on disk, shared with the other tools of the machine:
//!
//! ```text
//! models--org--name/refs/<revision>             text: the commit the name stood for when last asked
//! models--org--name/blobs/<etag>                a file's bytes; large files' etag is their SHA-256
//! models--org--name/blobs/<etag>.incomplete     the beginning of one
//! models--org--name/snapshots/<commit>/<file>   a relative symbolic link to the blob
//! models--org--name/.no_exist/<commit>/<file>   empty: the commit has no such file
//! .locks/models--org--name/<etag>.lock          held while the blob is written
//! ```
//!
//! Files appear by renaming, so a reader never sees a half-written one.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::environment::Environment;

/// Why the cache could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// There is no room.
    #[error("{path}: the disk is full; make room, or set HF_HUB_CACHE to a folder on another disk, and run this again")]
    DiskFull {
        /// What was being written.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{path}: {action} failed: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl CacheError {
    /// For `map_err`.
    pub(crate) fn at<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Self + use<'a> {
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull { path: path.to_owned() },
            _ => Self::Io {
                action,
                path: path.to_owned(),
                source,
            },
        }
    }
}

/// A model that is in the cache: one commit of one repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedModel {
    /// `org/name`.
    pub repository: String,
    /// Commit.
    pub commit: String,
    /// Branches and tags that stood for the commit when last asked.
    pub revisions: Vec<String>,
    /// Folder with the files.
    pub path: PathBuf,
    /// The files, by name.
    pub files: Vec<CachedFile>,
}

/// A file of a cached model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedFile {
    /// Name inside the repository, with slashes.
    pub name: String,
    /// Size, bytes.
    pub bytes: u64,
}

impl CachedModel {
    /// Size of all files, bytes. Commits of one repository may share files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// One repository's part of the cache.
pub(crate) struct RepositoryCache {
    root: PathBuf,
    locks: PathBuf,
    symlinks: bool,
}

/// Held while a blob is written; the file stays, as other tools leave it.
pub(crate) struct Lock {
    _file: File,
}

impl RepositoryCache {
    /// `repository` is `org/name` of checked words.
    pub(crate) fn new(environment: &Environment, repository: &str) -> Self {
        let folder = format!("models--{}", repository.replace('/', "--"));
        Self {
            root: environment.cache.join(&folder),
            locks: environment.cache.join(".locks").join(&folder),
            symlinks: !environment.symlinks_disabled,
        }
    }

    /// The commit that a revision stood for when last asked.
    pub(crate) fn commit(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let text = fs::read_to_string(self.root.join("refs").join(revision)).ok()?;
        Some(text.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.root.join("snapshots").join(commit)
    }

    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.root.join("blobs").join(etag)
    }

    pub(crate) fn partial(&self, etag: &str) -> PathBuf {
        self.root.join("blobs").join(format!("{etag}.incomplete"))
    }

    /// Path of a file in a snapshot, if it is there with this size.
    pub(crate) fn present(&self, commit: &str, name: &str, bytes: u64) -> Option<PathBuf> {
        Some(self.snapshot(commit).join(name)).filter(|path| has_size(path, bytes))
    }

    /// Records what a branch or tag stands for. A commit needs no record.
    pub(crate) fn write_ref(&self, revision: &str, commit: &str) -> Result<(), CacheError> {
        if is_commit(revision) || self.commit(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.root.join("refs").join(revision);
        create_parent(&path)?;
        let fresh = self.root.join(format!(".ref-{}.incomplete", own_name()));
        fs::write(&fresh, commit).map_err(CacheError::at("writing", &fresh))?;
        fs::rename(&fresh, &path).map_err(CacheError::at("renaming to", &path))
    }

    /// Records that a commit has no such file.
    pub(crate) fn mark_absent(&self, commit: &str, name: &str) -> Result<(), CacheError> {
        let path = self.root.join(".no_exist").join(commit).join(name);
        create_parent(&path)?;
        fs::write(&path, []).map_err(CacheError::at("writing", &path))
    }

    /// Waits for whoever writes the blob, after telling the caller.
    pub(crate) fn lock(&self, etag: &str, waiting: impl FnOnce()) -> Result<Lock, CacheError> {
        let path = self.locks.join(format!("{etag}.lock"));
        create_parent(&path)?;
        let file = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(CacheError::at("opening", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                waiting();
                file.lock().map_err(CacheError::at("locking", &path))?;
            }
            // Some network file systems have no locks; renaming keeps readers safe there too.
            Err(TryLockError::Error(_)) => {}
        }
        Ok(Lock { _file: file })
    }

    /// Makes a complete blob visible in a snapshot: by a relative link, or by moving it there where links are off or impossible.
    pub(crate) fn place(&self, commit: &str, name: &str, etag: &str) -> Result<PathBuf, CacheError> {
        let pointer = self.snapshot(commit).join(name);
        let blob = self.blob(etag);
        create_parent(&pointer)?;
        let up = "../".repeat(2 + name.matches('/').count());
        let target = PathBuf::from(format!("{up}blobs/{etag}"));
        if self.symlinks && link(&target, &pointer).is_ok() {
            return Ok(pointer);
        }
        fs::rename(&blob, &pointer).map_err(CacheError::at("moving to", &pointer))?;
        Ok(pointer)
    }
}

/// A name that nothing else has, in this process or beside it.
fn own_name() -> String {
    static NAMES: AtomicU64 = AtomicU64::new(0);
    format!("{}-{}", std::process::id(), NAMES.fetch_add(1, Ordering::Relaxed))
}

/// Replaces whatever is at `pointer`, such as a link to an older blob.
#[cfg(unix)]
fn link(target: &Path, pointer: &Path) -> io::Result<()> {
    if fs::read_link(pointer).is_ok_and(|old| old == target) {
        return Ok(());
    }
    let mut fresh = pointer.as_os_str().to_owned();
    fresh.push(format!(".{}.incomplete", own_name()));
    std::os::unix::fs::symlink(target, &fresh)?;
    fs::rename(&fresh, pointer)
}

#[cfg(not(unix))]
fn link(_target: &Path, _pointer: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// All models of a cache folder: commits that hold a weight file, by repository and commit. A cache that is not there is empty.
pub(crate) fn list(cache: &Path) -> Result<Vec<CachedModel>, CacheError> {
    let mut models = Vec::new();
    for (name, root) in entries(cache)? {
        let Some(repository) = name.strip_prefix("models--").map(|name| name.replace("--", "/")) else {
            continue;
        };
        let mut refs = Vec::new();
        walk(&root.join("refs"), "", &mut |name, path| {
            refs.push((name, fs::read_to_string(path).unwrap_or_default()))
        })?;
        for (commit, path) in entries(&root.join("snapshots"))? {
            let mut files = Vec::new();
            walk(&path, "", &mut |name, path| {
                // A link whose blob was deleted is no file.
                if let Ok(metadata) = fs::metadata(path) {
                    files.push(CachedFile {
                        name,
                        bytes: metadata.len(),
                    });
                }
            })?;
            if files.iter().any(|file| crate::select::is_weights(&file.name)) {
                let revisions = refs
                    .iter()
                    .filter(|(_, target)| target.trim() == commit)
                    .map(|(name, _)| name.clone())
                    .collect();
                models.push(CachedModel {
                    repository: repository.clone(),
                    commit,
                    revisions,
                    path,
                    files,
                });
            }
        }
    }
    Ok(models)
}

/// Names of all files under a folder, with slashes, in order; empty where the folder is not there.
pub(crate) fn file_names(folder: &Path) -> Result<Vec<String>, CacheError> {
    let mut names = Vec::new();
    walk(folder, "", &mut |name, path| {
        if path.exists() {
            names.push(name);
        }
    })?;
    Ok(names)
}

fn walk(folder: &Path, prefix: &str, visit: &mut dyn FnMut(String, &Path)) -> Result<(), CacheError> {
    for (name, path) in entries(folder)? {
        let name = format!("{prefix}{name}");
        // Links are to files only, so a loop is impossible.
        if fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir()) {
            walk(&path, &format!("{name}/"), visit)?;
        } else {
            visit(name, &path);
        }
    }
    Ok(())
}

fn entries(folder: &Path) -> Result<Vec<(String, PathBuf)>, CacheError> {
    let read = match fs::read_dir(folder) {
        Ok(read) => read,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(CacheError::at("reading", folder)(error)),
    };
    let mut found = Vec::new();
    for entry in read {
        let entry = entry.map_err(CacheError::at("reading", folder))?;
        if let Ok(name) = entry.file_name().into_string() {
            found.push((name, entry.path()));
        }
    }
    found.sort();
    Ok(found)
}

pub(crate) fn has_size(path: &Path, bytes: u64) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == bytes)
}

pub(crate) fn create_parent(path: &Path) -> Result<(), CacheError> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).map_err(CacheError::at("creating", parent))
}

pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|c| c.is_ascii_hexdigit())
}
