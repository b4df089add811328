//! Archives made here, byte by byte as APPNOTE describes them.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

pub(crate) struct Member<'a> {
    name: &'a str,
    method: u16,
    packed: Vec<u8>,
    bytes: usize,
}

impl<'a> Member<'a> {
    pub(crate) fn stored(name: &'a str, content: &[u8]) -> Self {
        Self {
            name,
            method: 0,
            packed: content.to_vec(),
            bytes: content.len(),
        }
    }

    pub(crate) fn deflated(name: &'a str, content: &[u8]) -> Self {
        let packed = miniz_oxide::deflate::compress_to_vec(content, 6);
        Self {
            name,
            method: 8,
            packed,
            bytes: content.len(),
        }
    }

    /// The fields that both kinds of header share, up to the lengths of name and extra field.
    fn fields(&self) -> Vec<u8> {
        let mut fields = [20u16, 0, self.method, 0, 0].map(u16::to_le_bytes).concat();
        fields.extend(
            [0, self.packed.len() as u32, self.bytes as u32]
                .map(u32::to_le_bytes)
                .concat(),
        );
        fields.extend([self.name.len() as u16, 0].map(u16::to_le_bytes).concat());
        fields
    }
}

pub(crate) fn archive(members: &[Member<'_>]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for member in members {
        directory.extend(b"PK\x01\x02\x14\x00");
        directory.extend(member.fields());
        directory.extend([0; 10]);
        directory.extend((file.len() as u32).to_le_bytes());
        directory.extend(member.name.as_bytes());
        file.extend(b"PK\x03\x04");
        file.extend(member.fields());
        file.extend(member.name.as_bytes());
        file.extend(&member.packed);
    }
    let start = file.len() as u32;
    let count = members.len() as u16;
    file.extend(&directory);
    file.extend(b"PK\x05\x06");
    file.extend([0, 0, count, count].map(u16::to_le_bytes).concat());
    file.extend([directory.len() as u32, start].map(u32::to_le_bytes).concat());
    file.extend(0u16.to_le_bytes());
    file
}

fn take(archive: &[u8], member: &str, bytes: usize) -> Result<Vec<u8>, WheelError> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let path: PathBuf = std::env::temp_dir().join(format!("goldcrest-wheel-{}-{number}", std::process::id()));
    fs::write(&path, archive).expect("temporary file");
    let mut content = Vec::new();
    let result = extract(&path, member, bytes as u64, &mut |bytes| {
        content.extend(bytes);
        Ok(())
    });
    fs::remove_file(&path).expect("clean up");
    result.map(|()| content)
}

/// Longer than both buffers, and neither constant nor random.
fn long_content() -> Vec<u8> {
    (0..700_000u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> (24 + i % 5)) as u8)
        .collect()
}

#[test]
fn stored_and_deflated_members() {
    let (long, short) = (long_content(), b"short".as_slice());
    let members = [
        Member::stored("a/long", &long),
        Member::deflated("b/long", &long),
        Member::deflated("c", short),
        Member::stored("empty", b""),
        Member::deflated("void", b""),
    ];
    let file = archive(&members);
    for (name, content) in [
        ("a/long", &long[..]),
        ("b/long", &long),
        ("c", short),
        ("empty", b""),
        ("void", b""),
    ] {
        assert!(take(&file, name, content.len()).expect(name) == content, "{name}");
    }
    assert!(matches!(take(&file, "d", 1), Err(WheelError::NoMember { .. })));
    assert!(matches!(take(&file, "c", 4), Err(WheelError::Malformed { .. })));
}

#[test]
fn every_prefix_is_an_error() {
    let file = archive(&[Member::deflated("m", b"some words, some words, some words")]);
    assert!(take(&file, "m", 34).is_ok());
    for length in 0..file.len() {
        let error = take(&file[..length], "m", 34).expect_err("cut off");
        assert!(matches!(error, WheelError::Malformed { .. }), "{length}: {error}");
    }
}

#[test]
fn no_changed_byte_makes_it_panic_or_grow() {
    let content = b"some words, some words, some words";
    let file = archive(&[Member::deflated("m", content), Member::stored("n", content)]);
    for at in 0..file.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut changed = file.clone();
            changed[at] ^= flip;
            for name in ["m", "n"] {
                assert!(take(&changed, name, content.len()).map_or(0, |content| content.len()) <= content.len());
            }
        }
    }
}
