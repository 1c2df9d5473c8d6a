//! What a file may be called.

/// Longest name of a directory entry, in bytes (NAME_MAX).
pub const MAX_NAME_BYTES: usize = 255;

/// Whether a directory entry can have this name: 1 to [`MAX_NAME_BYTES`] bytes without `/` and NUL, and neither `.` nor
/// `..` (POSIX, "filename").
pub fn is_file_name(name: &[u8]) -> bool {
    let fits = !name.is_empty() && name.len() <= MAX_NAME_BYTES;
    fits && !name.contains(&b'/') && !name.contains(&0) && name != b"." && name != b".."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_told_from_what_is_none() {
        let longest = vec![b'x'; MAX_NAME_BYTES];
        for name in [&b"a"[..], b"...", b".a", b"a b", b"\n", b"\xff\xfe", &longest] {
            assert!(is_file_name(name), "{}", name.escape_ascii());
        }
        let too_long = vec![b'x'; MAX_NAME_BYTES + 1];
        for name in [&b""[..], b".", b"..", b"/", b"a/b", b"a\0", &too_long] {
            assert!(!is_file_name(name), "{}", name.escape_ascii());
        }
    }
}
