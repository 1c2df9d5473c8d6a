use std::ffi::OsStr;

use super::*;

fn names(path: &str) -> Vec<u8> {
    check(Path::new(path)).unwrap().target().path.to_vec()
}

fn errno(path: &[u8]) -> Errno {
    check(Path::new(OsStr::from_bytes(path))).unwrap_err().errno()
}

#[test]
fn slashes_at_the_start_and_doubled_mean_nothing() {
    assert_eq!(names("/a//b"), b"a/b");
    assert_eq!(names("a/b"), b"a/b");
    assert_eq!(names("/"), b"");
    assert_eq!(names("///"), b"");
    assert_eq!(names("/a/../b/."), b"a/../b/.", "the server resolves dots, because symlinks decide");
}

#[test]
fn a_slash_at_the_end_is_left_to_the_server() {
    assert_eq!(names("/a//"), b"a/");
}

#[test]
fn a_path_ends_in_a_name_in_a_directory() {
    let split = |path: &str| {
        let (dir, name) = check(Path::new(path)).unwrap().split().map_err(|error| error.errno())?;
        let (text, entry) = (|bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap(), dir.join(&name));
        Ok((text(&dir.target().path), text(&name), text(&entry.target().path), text(entry.given())))
    };
    let parts = |dir: &str, name: &str, names: &str, given: &str| {
        Ok((dir.to_owned(), name.to_owned(), names.to_owned(), given.to_owned()))
    };
    assert_eq!(split("/a/b"), parts("a/", "b", "a/b", "/a/b"));
    assert_eq!(split("/a//b//"), parts("a/", "b", "a/b", "/a//b"));
    assert_eq!(split("a"), parts("", "a", "a", "a"));
    assert_eq!(split("/a/../b"), parts("a/../", "b", "a/../b", "/a/../b"));
    assert_eq!(split("//"), Err(Errno::EBUSY));
    assert_eq!(split("/a/."), Err(Errno::EINVAL));
    assert_eq!(split("/a/../"), Err(Errno::ENOTEMPTY));
}

#[test]
fn names_need_not_be_utf8() {
    let path = check(Path::new(OsStr::from_bytes(b"/\xff\xfe"))).unwrap();
    assert_eq!(path.target().path, &b"\xff\xfe"[..]);
}

#[test]
fn what_no_server_takes_is_refused_here() {
    assert_eq!(errno(b""), Errno::ENOENT);
    assert_eq!(errno(b"/a\0b"), Errno::EINVAL);
    assert_eq!(errno(&[b'x'; 256]), Errno::ENAMETOOLONG);
    assert!(check(Path::new(&"x".repeat(255))).is_ok());
    assert_eq!(errno("a/".repeat(2100).as_bytes()), Errno::ENAMETOOLONG);
    assert!(check(Path::new(&"a/".repeat(2047))).is_ok(), "4094 bytes fit");
}
