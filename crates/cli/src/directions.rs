//! Directions that tell two sets of prompts apart, and files of them.

use std::collections::BTreeMap;
use std::path::Path;

use goldcrest_engine::steering::{ControlVector, ControlVectorError};

use crate::files::{self, Tensor, TensorFile, WriteError};

/// How a direction is found from the residuals of positive and of negative prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// The mean of the positive ones minus that of the negative ones.
    #[default]
    Mean,
    /// The axis along which the differences of the i-th positive and the i-th negative one are largest: the eigenvector of the greatest
    /// eigenvalue of Σ d·dᵀ, at length 1, so turned that the positive ones lie higher along it.
    Pca,
}

/// Why no direction can be found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectionError {
    /// Nothing to compare.
    #[error("there are {positive} positive and {negative} negative prompts; at least one of each is needed")]
    NoPrompts {
        /// Positive ones.
        positive: usize,
        /// Negative ones.
        negative: usize,
    },
    /// The differences are of pairs.
    #[error("{positive} positive and {negative} negative prompts make no pairs, which --method pca needs")]
    NoPairs {
        /// Positive ones.
        positive: usize,
        /// Negative ones.
        negative: usize,
    },
    /// The sets cannot be told apart.
    #[error("the residuals of layer {layer} are the same for both sets of prompts: there is no direction")]
    Same {
        /// The layer that leaves them.
        layer: usize,
    },
    /// They make no vector.
    #[error(transparent)]
    Vector(#[from] ControlVectorError),
}

/// Power iterations end when the direction turns by less than this, as 1 − cos.
const PCA_PRECISION: f64 = 1e-14;
/// They end after so many in any case: two equal eigenvalues have no one axis, and any between will do.
const PCA_ITERATIONS: usize = 1_000;

/// A row of numbers for each prompt.
pub type Rows<'a> = &'a [Vec<f32>];

/// The direction of each layer, by its rows of positive and of negative prompts.
///
/// # Errors
/// [`DirectionError`].
pub fn directions(
    layers: &BTreeMap<usize, [Vec<Vec<f32>>; 2]>,
    method: Method,
) -> Result<ControlVector, DirectionError> {
    let mut directions = BTreeMap::new();
    for (&layer, [positive, negative]) in layers {
        let direction = direction(positive, negative, method)?;
        let direction = direction.ok_or(DirectionError::Same { layer })?;
        directions.insert(layer, direction.iter().map(|x| *x as f32).collect());
    }
    Ok(ControlVector::new(directions)?)
}

/// `None` if the two sets are the same.
fn direction(positive: Rows, negative: Rows, method: Method) -> Result<Option<Vec<f64>>, DirectionError> {
    if positive.is_empty() || negative.is_empty() {
        return Err(DirectionError::NoPrompts {
            positive: positive.len(),
            negative: negative.len(),
        });
    }
    let mean: Vec<f64> = difference(&mean(positive), &mean(negative));
    if method == Method::Mean {
        return Ok(Some(mean).filter(|mean| dot(mean, mean) > 0.0));
    }
    if positive.len() != negative.len() {
        return Err(DirectionError::NoPairs {
            positive: positive.len(),
            negative: negative.len(),
        });
    }
    let pairs = positive.iter().zip(negative);
    let differences: Vec<Vec<f64>> = pairs.map(|(p, n)| difference(&exact(p), &exact(n))).collect();
    Ok(principal(&differences, &mean))
}

/// The eigenvector of the greatest eigenvalue of Σ d·dᵀ, turned towards `mean`, by power iteration.
fn principal(differences: &[Vec<f64>], mean: &[f64]) -> Option<Vec<f64>> {
    // Numbers without a pattern: a start at right angles to the axis would never find it.
    let mut axis: Vec<f64> = (0..mean.len() as u64)
        .map(|i| (splitmix(i) >> 11) as f64 + 1.0)
        .collect();
    axis = unit(&axis)?;
    for _ in 0..PCA_ITERATIONS {
        let mut next = vec![0.0; axis.len()];
        for difference in differences {
            let along = dot(difference, &axis);
            next.iter_mut().zip(difference).for_each(|(sum, x)| *sum += along * x);
        }
        let next = unit(&next)?;
        let turned = 1.0 - dot(&next, &axis);
        axis = next;
        if turned < PCA_PRECISION {
            break;
        }
    }
    if dot(&axis, mean) < 0.0 {
        axis.iter_mut().for_each(|x| *x = -*x);
    }
    Some(axis)
}

/// The i-th number of SplitMix64 from seed 0.
fn splitmix(i: u64) -> u64 {
    let z = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn mean(rows: Rows) -> Vec<f64> {
    let mut mean = vec![0.0; rows.first().map_or(0, Vec::len)];
    for row in rows {
        mean.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
    }
    mean.iter().map(|sum| sum / rows.len() as f64).collect()
}

fn exact(row: &[f32]) -> Vec<f64> {
    row.iter().map(|x| f64::from(*x)).collect()
}

fn difference(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn unit(x: &[f64]) -> Option<Vec<f64>> {
    let length = dot(x, x).sqrt();
    (length > 0.0).then(|| x.iter().map(|x| x / length).collect())
}

/// GGUF data begins at a multiple of this, bytes.
const GGUF_ALIGNMENT: usize = 32;
/// Ids of types in GGUF files.
const GGUF_U32: u32 = 4;
const GGUF_STRING: u32 = 8;
const GGUF_F32_TENSOR: u32 = 0;

/// Writes a control vector: as safetensors if the path ends so, else as GGUF for llama.cpp, with the architecture of the model in it.
///
/// # Errors
/// [`WriteError`].
pub fn write(vector: &ControlVector, model_hint: &str, path: &Path) -> Result<(), WriteError> {
    let tensors: Vec<(String, &[f32])> = vector
        .layers()
        .filter_map(|layer| Some((format!("direction.{layer}"), vector.direction(layer)?)))
        .collect();
    if path.extension().is_some_and(|extension| extension == "safetensors") {
        let shape = [vector.width()];
        let named: Vec<Tensor> = tensors.iter().map(|(name, _)| Tensor { name, shape: &shape }).collect();
        let mut file = TensorFile::create(path, &named, &[("model_hint", model_hint.to_owned())])?;
        for (_, direction) in &tensors {
            file.write(direction)?;
        }
        return file.finish();
    }
    files::write(path, &gguf(&tensors, model_hint))
}

fn gguf(tensors: &[(String, &[f32])], model_hint: &str) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3_u32.to_le_bytes());
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend(3_u64.to_le_bytes());
    for (key, text) in [
        ("general.architecture", "controlvector"),
        ("controlvector.model_hint", model_hint),
    ] {
        gguf_string(key, &mut bytes);
        bytes.extend(GGUF_STRING.to_le_bytes());
        gguf_string(text, &mut bytes);
    }
    gguf_string("controlvector.layer_count", &mut bytes);
    bytes.extend(GGUF_U32.to_le_bytes());
    bytes.extend((tensors.len() as u32).to_le_bytes());
    let mut offset = 0;
    for (name, direction) in tensors {
        gguf_string(name, &mut bytes);
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend((direction.len() as u64).to_le_bytes());
        bytes.extend(GGUF_F32_TENSOR.to_le_bytes());
        bytes.extend((offset as u64).to_le_bytes());
        offset += size_of_val(*direction).next_multiple_of(GGUF_ALIGNMENT);
    }
    for (_, direction) in tensors {
        bytes.resize(bytes.len().next_multiple_of(GGUF_ALIGNMENT), 0);
        bytes.extend(direction.iter().flat_map(|x| x.to_le_bytes()));
    }
    bytes.resize(bytes.len().next_multiple_of(GGUF_ALIGNMENT), 0);
    bytes
}

fn gguf_string(text: &str, bytes: &mut Vec<u8>) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} for {expected}");
        }
    }

    #[test]
    fn the_mean_of_sets_of_any_size() {
        let positive = [vec![1.0, 5.0], vec![3.0, 5.0]];
        let found = direction(&positive, &[vec![0.0, 1.0]], Method::Mean).unwrap().unwrap();
        close(&found, &[2.0, 4.0]);
        assert_eq!(direction(&positive[..1], &positive[..1], Method::Mean).unwrap(), None);
    }

    #[test]
    fn the_principal_axis_is_that_of_the_scatter_and_points_to_the_positive() {
        // Σ d·dᵀ of (3, 0), (−3, 0), (0, 1), (1, 1)·√½: by hand, with eigenvalue λ of [[18.5, 0.5], [0.5, 1.5]].
        let half = 0.5_f32.sqrt();
        let differences = [[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [half, half]];
        let lambda = (20.0 + (17.0_f64 * 17.0 + 1.0).sqrt()) / 2.0;
        let axis = [0.5, lambda - 18.5];
        let length = dot(&axis, &axis).sqrt();
        let expected = axis.map(|x| x / length);
        let positive = differences.map(|d| vec![d[0] + 1.0, d[1] + 2.0]);
        let negative = differences.map(|_| vec![1.0, 2.0]);
        let found = direction(&positive, &negative, Method::Pca).unwrap().unwrap();
        assert!((dot(&found, &expected) - 1.0).abs() < 1e-9);
        let turned = direction(&negative, &positive, Method::Pca).unwrap().unwrap();
        assert!((dot(&turned, &expected) + 1.0).abs() < 1e-9);
        assert_eq!(direction(&positive, &positive, Method::Pca).unwrap(), None);
        // Not the longest difference: two others together are more.
        let positive = [vec![3.0, 0.0], vec![0.0, 2.5], vec![0.0, 2.5]];
        let found = direction(&positive, &[0, 1, 2].map(|_| vec![0.0; 2]), Method::Pca);
        close(&found.unwrap().unwrap(), &[0.0, 1.0]);
    }

    #[test]
    fn sets_that_cannot_be_compared_are_refused() {
        let rows = [vec![1.0], vec![2.0]];
        let error = direction(&rows, &[], Method::Mean).unwrap_err();
        assert!(matches!(
            error,
            DirectionError::NoPrompts {
                positive: 2,
                negative: 0
            }
        ));
        let error = direction(&rows, &rows[..1], Method::Pca).unwrap_err();
        assert!(matches!(
            error,
            DirectionError::NoPairs {
                positive: 2,
                negative: 1
            }
        ));
        let same = BTreeMap::from([(4, [rows.to_vec(), rows.to_vec()])]);
        let error = directions(&same, Method::Mean).unwrap_err();
        assert!(matches!(error, DirectionError::Same { layer: 4 }));
    }

    #[test]
    fn files_of_both_kinds_hold_the_vector() {
        let wide: Vec<f32> = (0..50).map(|i| i as f32 - 7.5).collect();
        let vector = ControlVector::new(BTreeMap::from([
            (1, wide.clone()),
            (12, wide[..].iter().map(|x| -x).collect()),
        ]));
        let vector = vector.unwrap();
        for name in ["v.gguf", "v.safetensors"] {
            let path = std::env::temp_dir().join(format!("goldcrest-directions-{}-{name}", std::process::id()));
            write(&vector, "llama", &path).unwrap();
            let read = ControlVector::open(&path);
            std::fs::remove_file(&path).unwrap();
            assert_eq!(read.unwrap(), vector);
        }
    }
}
