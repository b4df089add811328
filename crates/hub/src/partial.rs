//! A file that is being written, `<name>.incomplete`, which a later run can go on with.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::cache::{CacheError, create_parent};
use crate::digest::Digester;

/// An open partial file, with the digest of what it holds.
pub(crate) struct Partial {
    path: PathBuf,
    file: File,
    digester: Digester,
    bytes: u64,
}

impl Partial {
    /// Opens or creates a partial file and reads what an earlier run left, of which `keep` says how many bytes are of use.
    pub(crate) fn open(path: &Path, keep: impl FnOnce(u64) -> u64) -> Result<Self, CacheError> {
        create_parent(path)?;
        let mut file = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(path)
            .map_err(CacheError::at("opening", path))?;
        let left = file.metadata().map_err(CacheError::at("reading", path))?.len();
        let bytes = keep(left).min(left);
        if bytes < left {
            file.set_len(bytes).map_err(CacheError::at("shortening", path))?;
        }
        let mut digester = Digester::default();
        digester
            .update_from(&mut (&file).take(bytes))
            .map_err(CacheError::at("reading", path))?;
        file.seek(SeekFrom::Start(bytes))
            .map_err(CacheError::at("reading", path))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            digester,
            bytes,
        })
    }

    /// Bytes it holds.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), CacheError> {
        self.file
            .write_all(bytes)
            .map_err(CacheError::at("writing", &self.path))?;
        self.digester.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Forgets what it holds.
    pub(crate) fn restart(&mut self) -> Result<(), CacheError> {
        self.file.set_len(0).map_err(CacheError::at("shortening", &self.path))?;
        self.file
            .seek(SeekFrom::Start(0))
            .map_err(CacheError::at("shortening", &self.path))?;
        self.digester = Digester::default();
        self.bytes = 0;
        Ok(())
    }

    /// Gives the file its name if its SHA-256 is the expected one (or none is known); otherwise deletes it and returns the digest.
    pub(crate) fn finish(self, expected: Option<&str>, destination: &Path) -> Result<Result<(), String>, CacheError> {
        let digest = self.digester.finish();
        if expected.is_some_and(|expected| expected != digest) {
            drop(self.file);
            fs::remove_file(&self.path).map_err(CacheError::at("deleting", &self.path))?;
            return Ok(Err(digest));
        }
        self.file.sync_all().map_err(CacheError::at("writing", &self.path))?;
        drop(self.file);
        fs::rename(&self.path, destination).map_err(CacheError::at("renaming to", destination))?;
        Ok(Ok(()))
    }

    /// Deletes the file; for when its content is known to be wrong.
    pub(crate) fn discard(self) -> Result<(), CacheError> {
        drop(self.file);
        fs::remove_file(&self.path).map_err(CacheError::at("deleting", &self.path))
    }

    /// After a failure: what arrived stays for the next run, an empty file does not.
    pub(crate) fn keep_if_useful(self) -> Result<(), CacheError> {
        if self.bytes == 0 { self.discard() } else { Ok(()) }
    }
}
