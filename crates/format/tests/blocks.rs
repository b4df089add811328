//! Decoding and encoding against the published `gguf` package, bit for bit (`fixtures/make_blocks.py`).

use std::fs;
use std::path::Path;

use goldcrest_format::blocks::{BlockError, decode, encode};
use goldcrest_format::{DType, DTypeError};

fn fixture(folder: &str, dtype: DType) -> (Vec<u8>, Vec<f32>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(folder);
    let blocks = fs::read(path.join(format!("{dtype}.blocks"))).unwrap();
    let values = fs::read(path.join(format!("{dtype}.values"))).unwrap();
    (
        blocks,
        values
            .as_chunks()
            .0
            .iter()
            .map(|&bytes| f32::from_le_bytes(bytes))
            .collect(),
    )
}

fn is_float(dtype: DType) -> bool {
    let mut out = vec![0.0; dtype.block_elements()];
    match decode(dtype, &vec![0; dtype.block_bytes()], &mut out) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error, BlockError::NotFloat { dtype });
            false
        }
    }
}

#[test]
fn every_float_type_decodes_as_published() {
    let floats: Vec<DType> = DType::ALL.into_iter().filter(|&dtype| is_float(dtype)).collect();
    assert_eq!(floats.len(), 31);
    for dtype in floats {
        let (blocks, wanted) = fixture("blocks", dtype);
        let mut found = vec![f32::NAN; wanted.len()];
        decode(dtype, &blocks, &mut found).unwrap();
        assert!(
            wanted.iter().any(|&value| value != 0.0),
            "{dtype}: a fixture of zeros proves nothing"
        );
        for (i, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            assert_eq!(
                found.to_bits(),
                wanted.to_bits(),
                "{dtype} element {i}: {found} instead of {wanted}"
            );
        }
    }
}

#[test]
fn simple_types_encode_as_published() {
    use DType::*;
    for dtype in [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0] {
        let (wanted, values) = fixture("encode", dtype);
        let mut found = vec![0xA5; wanted.len()];
        encode(dtype, &values, &mut found).unwrap();
        assert_eq!(found, wanted, "{dtype}");
    }
}

#[test]
fn lengths_that_do_not_belong_together_are_refused() {
    let mut out = [0.0; 64];
    let short = BlockError::Length {
        dtype: DType::Q8_0,
        elements: 64,
        wanted: 68,
        found: 34,
    };
    assert_eq!(decode(DType::Q8_0, &[0; 34], &mut out), Err(short));
    let partial = DTypeError::PartialBlock {
        dtype: DType::Q4_K,
        elements: 64,
        block: 256,
    };
    assert_eq!(decode(DType::Q4_K, &[0; 36], &mut out), Err(partial.into()));
    assert_eq!(
        encode(DType::Q6_K, &[0.0; 256], &mut [0; 210]),
        Err(BlockError::NoEncoder { dtype: DType::Q6_K })
    );
}

#[test]
fn float8_specials() {
    let mut out = [0.0; 2];
    decode(DType::F8_E4M3, &[0x7F, 0xFF], &mut out).unwrap();
    assert!(out.iter().all(|value| value.is_nan()));
    decode(DType::F8_E5M2, &[0x7C, 0xFC], &mut out).unwrap();
    assert_eq!(out, [f32::INFINITY, f32::NEG_INFINITY]);
    decode(DType::F8_E8M0, &[0xFF, 0x00], &mut out).unwrap();
    assert!(out[0].is_nan());
    assert_eq!(out[1].to_bits(), 0x0040_0000);
}
