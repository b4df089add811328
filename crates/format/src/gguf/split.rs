//! A GGUF model in one file or in several (`NAME-00001-of-00003.gguf`), opened as one.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::error::Problem;
use super::metadata::Metadata;
use super::{Gguf, read};
use crate::{FormatError, Source, TensorInfo};

const COUNT_KEY: &str = "split.count";
const NUMBER_KEY: &str = "split.no";
const TENSORS_KEY: &str = "split.tensors.count";

/// A whole model: the metadata of its first file, the tensors of all; `source` indexes `sources`.
#[derive(Debug)]
pub struct Parts {
    /// The files in order.
    pub sources: Vec<Source>,
    /// Metadata of the first file, which is where the model is described.
    pub metadata: Metadata,
    /// Tensors of all files.
    pub tensors: Vec<TensorInfo>,
}

/// Opens a GGUF file, or all files of the split model that it belongs to, whichever part is named.
pub fn open(path: &Path) -> Result<Parts, FormatError> {
    let source = Source::open(path)?;
    let gguf = read_part(&source, 0)?;
    let count = split_value(&source, &gguf.metadata, COUNT_KEY)?.unwrap_or(1);
    if count <= 1 {
        return Ok(Parts {
            sources: vec![source],
            metadata: gguf.metadata,
            tensors: gguf.tensors,
        });
    }
    let Some(name) = PartName::of(path).filter(|name| name.count == count) else {
        return Err(part_error(
            &source,
            &gguf.metadata,
            COUNT_KEY,
            Problem::SplitName { count },
        ));
    };
    open_parts(&name)
}

fn open_parts(name: &PartName) -> Result<Parts, FormatError> {
    let mut all: Option<Parts> = None;
    for number in 1..=name.count {
        let source = Source::open(&name.path(number))?;
        let index = all.as_ref().map_or(0, |parts| parts.sources.len());
        let gguf = read_part(&source, index)?;
        check_part(&source, &gguf.metadata, number, name.count)?;
        match &mut all {
            Some(parts) => {
                parts.tensors.extend(gguf.tensors);
                parts.sources.push(source);
            }
            None => {
                all = Some(Parts {
                    sources: vec![source],
                    metadata: gguf.metadata,
                    tensors: gguf.tensors,
                })
            }
        }
    }
    let parts = all.ok_or_else(|| FormatError::NoWeights { path: name.path(1) })?;
    check_whole(&parts)?;
    Ok(parts)
}

fn read_part(source: &Source, number: usize) -> Result<Gguf, FormatError> {
    read(source, number).map_err(|error| FormatError::Gguf {
        path: source.path().to_owned(),
        error,
    })
}

fn split_value(source: &Source, metadata: &Metadata, key: &str) -> Result<Option<u64>, FormatError> {
    let value = metadata.optional::<u64>(key);
    value.map_err(|error| FormatError::Metadata {
        path: source.path().to_owned(),
        error,
    })
}

fn part_error(source: &Source, metadata: &Metadata, key: &str, problem: Problem) -> FormatError {
    let error = problem.at(key, metadata.offset(key).unwrap_or_default());
    FormatError::Gguf {
        path: source.path().to_owned(),
        error,
    }
}

/// `number` counts from 1 as in file names; `split.no` counts from 0.
fn check_part(source: &Source, metadata: &Metadata, number: u64, count: u64) -> Result<(), FormatError> {
    let found_count = split_value(source, metadata, COUNT_KEY)?.unwrap_or(1);
    if found_count != count {
        return Err(part_error(
            source,
            metadata,
            COUNT_KEY,
            Problem::SplitName { count: found_count },
        ));
    }
    let found = split_value(source, metadata, NUMBER_KEY)?
        .and_then(|found| found.checked_add(1))
        .unwrap_or(0);
    if found != number {
        return Err(part_error(
            source,
            metadata,
            NUMBER_KEY,
            Problem::SplitPart {
                found,
                named: number,
                count,
            },
        ));
    }
    Ok(())
}

fn check_whole(parts: &Parts) -> Result<(), FormatError> {
    let Some(first) = parts.sources.first() else {
        return Ok(());
    };
    let found = parts.tensors.len() as u64;
    if let Some(wanted) = split_value(first, &parts.metadata, TENSORS_KEY)?
        && wanted != found
    {
        return Err(part_error(
            first,
            &parts.metadata,
            TENSORS_KEY,
            Problem::SplitTensors { found, wanted },
        ));
    }
    let mut names = HashSet::with_capacity(parts.tensors.len());
    match parts.tensors.iter().find(|tensor| !names.insert(tensor.name.as_str())) {
        Some(tensor) => Err(part_error(first, &parts.metadata, &tensor.name, Problem::Duplicate)),
        None => Ok(()),
    }
}

/// True unless the name says that another part of the same model comes first.
pub(crate) fn is_first_part(path: &Path) -> bool {
    PartName::of(path).is_none_or(|name| name.number == 1)
}

/// `FOLDER/STEM-NNNNN-of-MMMMM.gguf`.
struct PartName {
    folder: PathBuf,
    stem: String,
    number: u64,
    count: u64,
}

impl PartName {
    fn of(path: &Path) -> Option<PartName> {
        let name = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = name.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| {
            let plain = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            if plain { text.parse().ok() } else { None }
        };
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        Some(PartName {
            folder,
            stem: stem.to_owned(),
            number: digits(number)?,
            count: digits(count)?,
        })
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder
            .join(format!("{}-{number:05}-of-{:05}.gguf", self.stem, self.count))
    }
}
