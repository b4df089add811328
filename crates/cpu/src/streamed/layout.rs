//! Where the panels of a unit lie: in blocks of one size, which any unit can take.

use std::ops::Range;

use crate::weights::Panels;

/// Block sizes that are looked at.
const SMALLEST_BLOCK_BYTES: usize = 128 << 10;
const LARGEST_BLOCK_BYTES: usize = 2 << 20;
/// Blocks begin at lines of the cache.
const BLOCK_ALIGN: usize = 64;

/// Where one panel lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub block: usize,
    /// In the block.
    pub offset: usize,
}

/// One matrix of a unit.
#[derive(Clone, Debug)]
pub struct MatrixLayout {
    pub panels: Panels,
    /// Of every panel.
    pub places: Vec<Place>,
}

/// The matrices of a unit, in as few blocks as they fit.
#[derive(Clone, Debug)]
pub struct Layout {
    pub matrices: Vec<MatrixLayout>,
    pub blocks: usize,
}

/// Panels of one matrix, one after the other in a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub matrix: usize,
    pub panels: Range<usize>,
    /// In the block.
    pub offset: usize,
}

impl Layout {
    /// `block_bytes` has room for the largest panel.
    pub fn new(matrices: &[Panels], block_bytes: usize) -> Layout {
        let mut next = Place { block: 0, offset: 0 };
        let mut place = |bytes: usize| {
            if next.offset + bytes > block_bytes {
                next = Place {
                    block: next.block + 1,
                    offset: 0,
                };
            }
            let place = next;
            next.offset += bytes;
            place
        };
        let matrices = matrices.iter().map(|panels| MatrixLayout {
            panels: *panels,
            places: (0..panels.count()).map(|_| place(panels.panel_bytes)).collect(),
        });
        let matrices = matrices.collect();
        Layout {
            matrices,
            blocks: next.block + 1,
        }
    }

    /// What lies in a block.
    pub fn runs(&self, block: usize) -> impl Iterator<Item = Run> {
        self.matrices.iter().enumerate().filter_map(move |(matrix, layout)| {
            let start = layout.places.partition_point(|place| place.block < block);
            let end = layout.places.partition_point(|place| place.block <= block);
            (start < end).then(|| Run {
                matrix,
                panels: start..end,
                offset: layout.places[start].offset,
            })
        })
    }
}

/// The size of blocks in which all units take the least memory; `shapes` has the matrices of one unit, and how many are like it.
pub fn block_bytes(shapes: &[(Vec<Panels>, usize)]) -> usize {
    let panels = || shapes.iter().flat_map(|(matrices, _)| matrices);
    let largest_panel = panels().map(|panels| panels.panel_bytes).max().unwrap_or(0);
    let least = largest_panel.next_multiple_of(BLOCK_ALIGN);
    let unit_bytes = |matrices: &[Panels]| matrices.iter().map(|panels| panels.bytes() as usize).sum::<usize>();
    let largest_unit = shapes.iter().map(|(matrices, _)| unit_bytes(matrices)).max();
    let smallest = SMALLEST_BLOCK_BYTES.min(largest_unit.unwrap_or(0)).max(least);
    // A unit in so many blocks, with some room for what does not fit into the end of one.
    let candidates = shapes.iter().flat_map(|(matrices, _)| {
        (1..=64).flat_map(move |blocks| {
            let even = unit_bytes(matrices).div_ceil(blocks);
            [even, even + largest_panel / 2, even + largest_panel].map(|bytes| bytes.next_multiple_of(BLOCK_ALIGN))
        })
    });
    let sizes = candidates.filter(|bytes| (smallest..=LARGEST_BLOCK_BYTES).contains(bytes));
    let memory = |block: usize| -> usize {
        let blocks = shapes
            .iter()
            .map(|(matrices, count)| Layout::new(matrices, block).blocks * count);
        blocks.sum::<usize>() * block
    };
    // Of equal ones the larger, which is read in larger pieces.
    let best = sizes.min_by_key(|bytes| (memory(*bytes), usize::MAX - bytes));
    // A panel that is larger than any of them.
    best.unwrap_or(smallest)
}

#[cfg(test)]
mod tests {
    use goldcrest_kernels::PanelType;

    use super::*;

    fn panels(panel_type: PanelType, outputs: usize, k: usize) -> Panels {
        Panels::unplaced(panel_type, outputs, k)
    }

    fn shapes() -> Vec<(Vec<Panels>, usize)> {
        let (gate, down) = (panels(PanelType::Q4_K, 768, 2048), panels(PanelType::Q4_K, 2048, 768));
        vec![
            (vec![gate, gate, down], 24 * 128),
            (vec![gate, gate, panels(PanelType::Q6_K, 2048, 768)], 24 * 128),
        ]
    }

    #[test]
    fn every_panel_has_a_place_of_its_own() {
        let shapes = [
            shapes(),
            vec![(vec![panels(PanelType::F32, 17, 64)], 3)],
            vec![(vec![panels(PanelType::F32, 40, 1 << 16)], 1)],
        ];
        for shapes in shapes {
            let block = block_bytes(&shapes);
            for (matrices, _) in &shapes {
                let layout = Layout::new(matrices, block);
                let mut seen = Vec::new();
                for index in 0..layout.blocks {
                    let mut end = 0;
                    for run in layout.runs(index) {
                        assert_eq!(run.offset, end, "no gap within a block");
                        let matrix = &layout.matrices[run.matrix];
                        for panel in run.panels {
                            assert_eq!(
                                matrix.places[panel],
                                Place {
                                    block: index,
                                    offset: end
                                }
                            );
                            end += matrix.panels.panel_bytes;
                            seen.push((run.matrix, panel));
                        }
                    }
                    assert!(end > 0 && end <= block);
                }
                let all = matrices
                    .iter()
                    .enumerate()
                    .flat_map(|(i, panels)| (0..panels.count()).map(move |panel| (i, panel)));
                assert!(seen.into_iter().eq(all));
            }
        }
    }

    #[test]
    fn little_memory_is_lost_between_two_shapes() {
        let shapes = shapes();
        let block = block_bytes(&shapes);
        let count = |(matrices, count): &(Vec<Panels>, usize)| (Layout::new(matrices, block), *count);
        let layouts: Vec<(Layout, usize)> = shapes.iter().map(count).collect();
        let taken: usize = layouts
            .iter()
            .map(|(layout, count)| layout.blocks * block * count)
            .sum();
        let needed: u64 = layouts
            .iter()
            .map(|(layout, count)| {
                layout.matrices.iter().map(|matrix| matrix.panels.bytes()).sum::<u64>() * *count as u64
            })
            .sum();
        assert!(
            (taken as f64) < 1.03 * needed as f64,
            "{taken} bytes for {needed} in blocks of {block}"
        );
    }
}
