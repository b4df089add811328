//! SHA-256 of files, in lower-case hexadecimal. The only module that names the hashing crate.

use std::io::{self, Read};

use sha2::{Digest, Sha256};

/// A running digest.
#[derive(Default)]
pub(crate) struct Digester(Sha256);

impl Digester {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Takes in all that a reader gives.
    pub(crate) fn update_from(&mut self, reader: &mut impl Read) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 20];
        loop {
            match reader.read(&mut buffer)? {
                0 => return Ok(()),
                count => self.update(buffer.get(..count).unwrap_or_default()),
            }
        }
    }

    pub(crate) fn finish(self) -> String {
        self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Whether an etag is the SHA-256 of its file, as it is for large files; small ones carry a git object id.
pub(crate) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_digest() {
        let mut digester = Digester::default();
        digester.update(b"a");
        digester.update_from(&mut &b"bc"[..]).expect("memory");
        let digest = digester.finish();
        assert_eq!(
            digest,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert!(is_sha256(&digest) && !is_sha256(&digest[1..]) && !is_sha256(&digest.to_uppercase()));
    }
}
