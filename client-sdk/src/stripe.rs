//! Which bytes of a file lie in which object.

/// A run of bytes inside one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Number of the object in the file.
    pub index: u64,
    /// First byte in the object.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Bytes of the request before this piece.
    pub at: u64,
}

/// Cuts `[offset, offset + length)` at the borders of objects. `object_size` must not be 0, nor the end overflow.
pub(crate) fn pieces(offset: u64, length: u64, object_size: u64) -> impl Iterator<Item = Piece> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= length {
            return None;
        }
        let position = offset + at;
        let inside = position % object_size;
        let piece = Piece {
            index: position / object_size,
            offset: inside,
            length: (object_size - inside).min(length - at),
            at,
        };
        at += piece.length;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_run_is_cut_at_each_border() {
        let all: Vec<_> = pieces(7, 10, 5).collect();
        let piece = |index, offset, length, at| Piece { index, offset, length, at };
        assert_eq!(all, [piece(1, 2, 3, 0), piece(2, 0, 5, 3), piece(3, 0, 2, 8)]);
        assert_eq!(pieces(7, 0, 5).count(), 0);
    }

    proptest! {
        #[test]
        fn each_byte_lies_where_division_says(offset in 0u64..5000, length in 0u64..3000, size in 1u64..700) {
            let mut found = Vec::new();
            for piece in pieces(offset, length, size) {
                prop_assert!(piece.length > 0 && piece.offset + piece.length <= size);
                prop_assert_eq!(piece.at, found.len() as u64);
                found.extend((0..piece.length).map(|byte| (piece.index, piece.offset + byte)));
            }
            let naive: Vec<_> = (offset..offset + length).map(|byte| (byte / size, byte % size)).collect();
            prop_assert_eq!(found, naive);
        }
    }
}
