//! Weights of a file, named and placed: which rows of which tensor, in which order, and how they are stored.

use goldcrest_format::DType;

/// `y = W·x + b`.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    pub weight: Matrix,
    pub bias: Option<Vector>,
}

/// A matrix of the file, `[outputs, cols]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// The tensor's name in the file.
    pub tensor: String,
    pub dtype: DType,
    /// The rows of that tensor (its leading dimensions flattened) that form this matrix, one an output.
    pub rows: RowSelection,
    pub cols: usize,
    pub order: RowOrder,
    pub storage: Storage,
    /// Factors of the tensor's elements.
    pub scales: Option<BlockScales>,
}

impl Matrix {
    /// Number of outputs.
    pub fn outputs(&self) -> usize {
        self.rows.count
    }

    /// The tensor's row that holds output `row`.
    pub fn source_row(&self, row: usize) -> usize {
        self.rows.source(self.order.source(row))
    }
}

/// How a matrix lies in its tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum Storage {
    /// Outputs are rows.
    Rows,
    /// Outputs are columns (then [`Matrix::rows`] selects columns), and the inputs are the tensor's rows from `first_input` on.
    Columns { first_input: usize },
    /// Rows of MXFP4 as Hugging Face stores them: nibbles in the tensor, an exponent for each 32 of them in the tensor `scales`.
    Mxfp4 { scales: String },
}

/// A factor for each block of `block` rows and columns of a tensor, which may end within a block.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockScales {
    /// `[⌈rows / block[0]⌉, ⌈columns / block[1]⌉]`
    pub tensor: String,
    pub block: [usize; 2],
}

/// A vector of the file, held as f32.
#[derive(Clone, Debug, PartialEq)]
pub struct Vector {
    /// Tensors whose elements follow each other; all but a few vectors have one.
    pub tensors: Vec<String>,
    /// The elements that form it.
    pub elements: RowSelection,
    pub order: RowOrder,
    pub map: VectorMap,
}

impl Vector {
    /// All `len` elements of a tensor, as they are.
    pub fn whole(tensor: String, len: usize) -> Vector {
        Vector {
            tensors: vec![tensor],
            elements: RowSelection::all(len),
            order: RowOrder::Plain,
            map: VectorMap::Plain,
        }
    }

    pub fn len(&self) -> usize {
        self.elements.count
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The stored element that becomes element `i`.
    pub fn source(&self, i: usize) -> usize {
        self.elements.source(self.order.source(i))
    }
}

/// What happens to every element while loading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum VectorMap {
    Plain,
    /// `x + 1`: norms stored as w of `1 + w`.
    PlusOne,
    /// `−exp(x)`: decay rates stored as logarithms.
    NegativeExp,
    /// `x · factor`.
    Times(f32),
}

/// Rows `first + (r / block)·stride + r % block` for `r` in `0..count`: all, a stretch, or a part of each group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSelection {
    pub first: usize,
    pub count: usize,
    pub block: usize,
    pub stride: usize,
}

impl RowSelection {
    pub fn all(count: usize) -> RowSelection {
        RowSelection::stretch(0, count)
    }

    /// `count` rows from `first` on.
    pub fn stretch(first: usize, count: usize) -> RowSelection {
        RowSelection {
            first,
            count,
            block: count.max(1),
            stride: count.max(1),
        }
    }

    /// `block` rows from `first` on in each of `groups` groups of `stride` rows.
    pub fn grouped(groups: usize, stride: usize, first: usize, block: usize) -> RowSelection {
        RowSelection {
            first,
            count: groups * block,
            block: block.max(1),
            stride,
        }
    }

    pub fn source(self, row: usize) -> usize {
        self.first + row / self.block * self.stride + row % self.block
    }

    /// Whether rows follow each other as they do in the tensor.
    pub fn is_contiguous(self) -> bool {
        self.block >= self.count || self.block == self.stride
    }
}

/// How the file orders the rows that a rotation pairs up, or a small matrix that is used the other way. The forward pass knows halves
/// alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// As the forward pass wants them.
    Plain,
    /// Within each head of `head_dim` rows the first `rotary` hold pairs (0,1), (2,3) …, which become halves: the loader takes row
    /// [`RowOrder::source`] for each row.
    Pairs { head_dim: usize, rotary: usize },
    /// Elements of a matrix of `rows` rows and `cols` columns, wanted column by column.
    Transposed { rows: usize, cols: usize },
}

impl RowOrder {
    /// The file's row that holds row `row` of the forward pass.
    pub fn source(self, row: usize) -> usize {
        match self {
            RowOrder::Plain => row,
            RowOrder::Pairs { head_dim, rotary } => {
                let (head, i) = (row / head_dim, row % head_dim);
                let half = rotary / 2;
                let from = if i < half {
                    2 * i
                } else if i < rotary {
                    2 * (i - half) + 1
                } else {
                    i
                };
                head * head_dim + from
            }
            RowOrder::Transposed { rows, cols } => row % rows * cols + row / rows,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{RowOrder, RowSelection};

    #[test]
    fn pairs_become_halves_and_the_rest_stays() {
        let order = RowOrder::Pairs { head_dim: 6, rotary: 4 };
        let rows: Vec<usize> = (0..12).map(|row| order.source(row)).collect();
        assert_eq!(rows, [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]);
    }

    #[test]
    fn a_transposed_matrix_is_read_by_columns() {
        let order = RowOrder::Transposed { rows: 2, cols: 3 };
        let elements: Vec<usize> = (0..6).map(|i| order.source(i)).collect();
        assert_eq!(elements, [0, 3, 1, 4, 2, 5]);
    }

    #[test]
    fn a_part_of_each_group_is_selected() {
        let keys = RowSelection::grouped(2, 6, 2, 2);
        assert_eq!((0..4).map(|row| keys.source(row)).collect::<Vec<_>>(), [2, 3, 8, 9]);
        assert!(!keys.is_contiguous());
        assert!(RowSelection::stretch(5, 7).is_contiguous());
    }
}
