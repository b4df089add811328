//! Files that appear whole or not at all.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const BUFFER_BYTES: usize = 1 << 20;

/// A file in the making. It takes its name, and the place of a file of that name, in [`AtomicFile::finish`]; until then it lies beside it
/// under a name of its own, and is removed when dropped.
#[derive(Debug)]
pub struct AtomicFile {
    file: BufWriter<File>,
    temporary: PathBuf,
    path: PathBuf,
    finished: bool,
}

impl AtomicFile {
    /// Begins a file in the folder where it will be.
    ///
    /// # Errors
    /// The system's; also if `path` is a folder or has no file name.
    pub fn create(path: &Path) -> io::Result<AtomicFile> {
        /// Files of this process.
        static FILES: AtomicU64 = AtomicU64::new(0);
        if path.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
        let (temporary, file) = loop {
            let mut name = name.to_owned();
            let number = FILES.fetch_add(1, Ordering::Relaxed);
            name.push(format!(".{}-{number}.incomplete", std::process::id()));
            let temporary = path.with_file_name(name);
            match File::create_new(&temporary) {
                // Left by a process of this number that was killed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                file => break (temporary, file?),
            }
        };
        Ok(AtomicFile {
            file: BufWriter::with_capacity(BUFFER_BYTES, file),
            temporary,
            path: path.to_owned(),
            finished: false,
        })
    }

    /// Puts the file in its place once it is safe on disk.
    ///
    /// # Errors
    /// The system's. Nothing is left behind, and what was at the path is as it was.
    pub fn finish(mut self) -> io::Result<()> {
        self.file.flush()?;
        self.file.get_ref().sync_all()?;
        fs::rename(&self.temporary, &self.path)?;
        self.finished = true;
        Ok(())
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if !self.finished {
            // Best effort: the error that led here is the one to tell.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}
