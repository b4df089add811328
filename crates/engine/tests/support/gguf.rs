//! Writes a GGUF file anew with its matrices stored in other types, so that a small model exists in every type.

use std::io::Write;
use std::path::{Path, PathBuf};

use goldcrest_format::gguf::{Array, Metadata, Value};
use goldcrest_format::{AtomicFile, Checkpoint, Config, DType, TensorInfo, blocks};

use super::Random;

const ALIGNMENT: usize = 32;

/// Root mean square of the weights that are made of random blocks: about that of the small models.
const RANDOM_WEIGHT_RMS: f32 = 0.06;

/// Writes `source`, a GGUF model, to `name` in this build's folder for tests, each matrix as the type that `dtype` names for its place
/// among the matrices.
pub fn reencode(source: &Checkpoint, name: &str, dtype: impl Fn(usize) -> DType) -> PathBuf {
    let mut matrices = 0..;
    let tensors = source.tensors().map(|info| {
        if info.shape.len() < 2 {
            let mut bytes = vec![0; info.bytes as usize];
            source.read(info, 0, &mut bytes).unwrap();
            return (info, info.dtype, bytes);
        }
        let dtype = dtype(matrices.next().expect("endless"));
        let mut values = vec![0.0; info.elements()];
        source.decode(info, &mut values).unwrap();
        (info, dtype, stored(dtype, &values))
    });
    let tensors: Vec<_> = tensors.collect();
    write(source, name, &tensors)
}

/// Writes `source` with its matrices decoded to F32: the same weights in another type.
pub fn decode(source: &Checkpoint, name: &str) -> PathBuf {
    reencode(source, name, |_| DType::F32)
}

/// `values` in blocks of `dtype`. Types that nothing encodes get random blocks, scaled to weights of the usual size.
fn stored(dtype: DType, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; dtype.bytes(values.len() as u64).unwrap() as usize];
    if blocks::encode(dtype, values, &mut bytes).is_err() {
        // Another seed for each matrix.
        let seed = values
            .iter()
            .take(2)
            .fold(0, |seed, x| seed << 32 | u64::from(x.to_bits()));
        random_blocks(dtype, Random(seed), &mut bytes);
    }
    bytes
}

/// Where a block's f16 scales are.
fn scale_offsets(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::Q2_K => &[80, 82],
        DType::Q3_K => &[108],
        DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::Q6_K => &[208],
        DType::IQ4_NL | DType::IQ4_XS | DType::IQ3_XXS | DType::IQ3_S => &[0],
        DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S | DType::IQ1_S => &[0],
        DType::TQ1_0 => &[52],
        DType::TQ2_0 => &[64],
        _ => panic!("{dtype} is not made of random blocks here"),
    }
}

fn random_blocks(dtype: DType, mut random: Random, bytes: &mut [u8]) {
    bytes.iter_mut().for_each(|byte| *byte = random.next() as u8);
    set_scales(dtype, bytes, 1.0);
    let block_bytes = dtype.block_bytes();
    let mut unscaled = vec![0.0; bytes.len() / block_bytes * dtype.block_elements()];
    blocks::decode(dtype, bytes, &mut unscaled).unwrap();
    let mean_square = unscaled.iter().map(|x| x * x).sum::<f32>() / unscaled.len() as f32;
    set_scales(dtype, bytes, RANDOM_WEIGHT_RMS / mean_square.sqrt());
}

fn set_scales(dtype: DType, bytes: &mut [u8], scale: f32) {
    let mut half = [0; 2];
    blocks::encode(DType::F16, &[scale], &mut half).unwrap();
    for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
        match dtype {
            // The exponent.
            DType::MXFP4 => block[0] = (scale.to_bits() >> 23) as u8,
            // Exponent and three bits of mantissa, with a bias of 7.
            DType::NVFP4 => block[..4].fill(((scale.to_bits() >> 20) - (127 - 7) * 8) as u8),
            // A nibble in the top of each of four words.
            DType::IQ1_M => {
                for (i, nibble) in [half[0] << 4, half[0], half[1] << 4, half[1]].into_iter().enumerate() {
                    block[49 + 2 * i] = block[49 + 2 * i] & 0x0f | nibble & 0xf0;
                }
            }
            _ => {
                for &offset in scale_offsets(dtype) {
                    block[offset..offset + 2].copy_from_slice(&half);
                }
            }
        }
    }
}

fn write(source: &Checkpoint, name: &str, tensors: &[(&TensorInfo, DType, Vec<u8>)]) -> PathBuf {
    let Config::Gguf(metadata) = source.config() else {
        panic!("{name}: the source is no GGUF file")
    };
    let mut file = Vec::new();
    file.extend(b"GGUF");
    file.extend(3_u32.to_le_bytes());
    file.extend((tensors.len() as u64).to_le_bytes());
    write_metadata(metadata, &mut file);
    let mut offset = 0_usize;
    for (info, dtype, bytes) in tensors {
        write_string(&info.name, &mut file);
        file.extend((info.shape.len() as u32).to_le_bytes());
        // Innermost first.
        file.extend(info.shape.iter().rev().flat_map(|&size| (size as u64).to_le_bytes()));
        file.extend(ggml_id(*dtype).to_le_bytes());
        file.extend((offset as u64).to_le_bytes());
        offset += bytes.len().next_multiple_of(ALIGNMENT);
    }
    for (_, _, bytes) in tensors {
        file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
        file.extend(bytes);
    }
    file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // Tests that run side by side write the same file and read it.
    let mut out = AtomicFile::create(&path).unwrap();
    out.write_all(&file).unwrap();
    out.finish().unwrap();
    path
}

fn ggml_id(dtype: DType) -> u32 {
    (0..64)
        .find(|&id| DType::from_ggml_id(id) == Ok(dtype))
        .expect("a type of GGUF files")
}

fn write_metadata(metadata: &Metadata, file: &mut Vec<u8>) {
    file.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata.iter() {
        write_string(key, file);
        let start = file.len();
        file.extend([0; 4]);
        let type_id = write_value(value, file);
        file[start..start + 4].copy_from_slice(&type_id.to_le_bytes());
    }
}

fn write_string(text: &str, file: &mut Vec<u8>) {
    file.extend((text.len() as u64).to_le_bytes());
    file.extend(text.as_bytes());
}

/// Writes a value and returns the id of its type.
fn write_value(value: &Value, file: &mut Vec<u8>) -> u32 {
    match value {
        Value::U32(value) => file.extend(value.to_le_bytes()),
        Value::I32(value) => file.extend(value.to_le_bytes()),
        Value::F32(value) => file.extend(value.to_le_bytes()),
        Value::Bool(value) => file.push((*value).into()),
        Value::Str(text) => write_string(text, file),
        Value::Array(array) => write_array(array, file),
        _ => panic!("no model of the tests holds {}", value.describe()),
    }
    match value {
        Value::U32(_) => 4,
        Value::I32(_) => 5,
        Value::F32(_) => 6,
        Value::Bool(_) => 7,
        Value::Str(_) => 8,
        _ => 9,
    }
}

fn write_array(array: &Array, file: &mut Vec<u8>) {
    let mut head = |type_id: u32| {
        file.extend(type_id.to_le_bytes());
        file.extend((array.len() as u64).to_le_bytes());
    };
    match array {
        Array::U32(values) => {
            head(4);
            file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        Array::I32(values) => {
            head(5);
            file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        Array::F32(values) => {
            head(6);
            file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        Array::Bool(values) => {
            head(7);
            file.extend(values.iter().map(|&value| u8::from(value)));
        }
        Array::Str(strings) => {
            head(8);
            strings.iter().for_each(|text| write_string(text, file));
        }
        _ => panic!(
            "no model of the tests holds an array like {:?}",
            Value::Array(array.clone()).describe()
        ),
    }
}
