//! Any bytes as blocks of any type: whole blocks decode, each alone as in a row; anything else is refused.
#![no_main]

use goldcrest_format::DType;
use goldcrest_format::blocks::{BlockError, decode, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&selector, bytes)) = input.split_first() else { return };
    let dtype = DType::ALL[usize::from(selector) % DType::ALL.len()];
    let (block_bytes, block_elements) = (dtype.block_bytes(), dtype.block_elements());
    let mut values = vec![0.0; bytes.len() / block_bytes * block_elements];
    match decode(dtype, bytes, &mut values) {
        Ok(()) => {
            assert_eq!(bytes.len() % block_bytes, 0);
            let mut alone = vec![0.0; block_elements];
            for (block, row) in bytes.chunks(block_bytes).zip(values.chunks(block_elements)) {
                decode(dtype, block, &mut alone).expect("one whole block");
                assert!(row.iter().zip(&alone).all(|(a, b)| a.to_bits() == b.to_bits()), "{dtype}");
            }
            let mut encoded = vec![0; bytes.len()];
            let result = encode(dtype, &values, &mut encoded);
            assert!(matches!(result, Ok(()) | Err(BlockError::NoEncoder { .. })), "{result:?}");
        }
        Err(BlockError::Length { .. }) => assert_ne!(bytes.len() % block_bytes, 0),
        Err(error) => assert_eq!(error, BlockError::NotFloat { dtype }),
    }
});
