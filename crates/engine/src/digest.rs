//! SHA-256. The only module of this crate that names the hashing crate.

use std::fmt;

use sha2::{Digest, Sha256};

/// What [`Digester`] gives.
pub(crate) type Bytes32 = [u8; 32];

/// A running digest. Text can be written to it.
#[derive(Default)]
pub(crate) struct Digester(Sha256);

impl Digester {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> Bytes32 {
        self.0.finalize().into()
    }
}

impl fmt::Write for Digester {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.update(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    #[test]
    fn known_digest() {
        let mut digester = Digester::default();
        digester.update(b"a");
        write!(digester, "b{:x}", 12).unwrap();
        let start = [0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea];
        assert_eq!(digester.finish()[..8], start);
    }
}
