//! What is printed: text for people, JSON for programs.
//!
//! JSON is one object a line. Fields of a file: `name`, `kind` (`file`,
//! `directory`, `symlink`), `ino`, `mode` (a number), `uid`, `gid`, `nlink`,
//! `size` (bytes), `atime_ns`, `mtime_ns`, `ctime_ns`, `birth_time_ns`
//! (since 1970, UTC), `entries` (of a directory), `target` (of a symlink).
//! `ls` without `-l` prints `name`, `kind` and `ino` only; with `-l` too, of what is in a directory that the user may
//! not search.
//! A name that is not UTF-8 has its odd bytes as `\xNN`, and `"escaped": true`.

use std::fmt::Write as _;
use std::io::Write as _;

use pando_client::{FileKind, Metadata};
use serde_json::{Map, Value, json};

use crate::failure::Failure;

/// A name as a terminal can show it: control characters and bytes that are no UTF-8 as escapes.
pub fn shown(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() { text.extend(c.escape_default()) } else { text.push(c) }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Puts a name into an object under `key`.
pub fn put_name(object: &mut Map<String, Value>, key: &str, name: &[u8]) {
    match std::str::from_utf8(name) {
        Ok(name) => {
            object.insert(key.to_owned(), name.into());
        }
        Err(_) => {
            object.insert(key.to_owned(), shown(name).into());
            object.insert("escaped".to_owned(), true.into());
        }
    }
}

/// A line on standard output.
pub fn line(text: impl AsRef<str>) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", text.as_ref()).map_err(|error| Failure::output(&error))
}

/// A JSON object on standard output.
pub fn object(object: Map<String, Value>) -> Result<(), Failure> {
    line(Value::Object(object).to_string())
}

/// `file`, `directory` or `symlink`.
pub fn kind_word(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
    }
}

/// The JSON fields of a file.
pub fn file_object(name: &[u8], metadata: &Metadata, target: Option<&[u8]>) -> Map<String, Value> {
    let attr = metadata.as_proto();
    let mut fields = Map::new();
    put_name(&mut fields, "name", name);
    let rest = json!({
        "kind": kind_word(metadata.kind()),
        "ino": attr.ino,
        "mode": attr.mode,
        "uid": attr.uid,
        "gid": attr.gid,
        "nlink": attr.nlink,
        "size": attr.size,
        "atime_ns": attr.atime,
        "mtime_ns": attr.mtime,
        "ctime_ns": attr.ctime,
        "birth_time_ns": attr.birth_time,
    });
    if let Value::Object(rest) = rest {
        fields.extend(rest);
    }
    if metadata.is_dir() {
        fields.insert("entries".to_owned(), attr.entries.into());
    }
    if let Some(target) = target {
        put_name(&mut fields, "target", target);
    }
    fields
}

fn kind_letter(kind: FileKind) -> char {
    match kind {
        FileKind::File => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
    }
}

/// Where only the kind is known: `d?????????`.
pub fn mode_unknown(kind: FileKind) -> String {
    format!("{}?????????", kind_letter(kind))
}

/// As `ls -l` shows them: `drwxr-xr-x`.
pub fn mode_text(kind: FileKind, mode: u32) -> String {
    let mut text = String::with_capacity(10);
    text.push(kind_letter(kind));
    for (shift, special, set, unset) in [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, false) => unset,
            (true, true) => set,
        });
    }
    text
}

/// UTC, `2026-11-30 11:38:59`.
pub fn time_text(nanos: i64) -> String {
    let seconds = nanos.div_euclid(1_000_000_000);
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

/// Days since 1970 to a date (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

/// `17 B`, `1.5 MiB`.
pub fn bytes_text(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut unit = "";
    for next in units {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

/// Thousandths as a whole percentage.
pub fn share_text(permille: u32) -> String {
    format!("{:.0} %", f64::from(permille) / 10.0)
}

/// Columns under a head; all but the last padded to the widest.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> Result<(), Failure> {
    let width = |column: usize| {
        rows.iter().map(|row| row[column].chars().count()).chain([head[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..head.len()).map(width).collect();
    let print = |cells: Vec<&str>| {
        let mut text = String::new();
        for (cell, width) in cells.iter().zip(&widths) {
            let _ = write!(text, "{cell:<width$}  ");
        }
        line(text.trim_end())
    };
    print(head.to_vec())?;
    rows.iter().try_for_each(|row| print(row.iter().map(String::as_str).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_are_shown_escaped() {
        assert_eq!(shown("Größe".as_bytes()), "Größe");
        assert_eq!(shown(b"a\xff\nb"), "a\\xff\\nb");
        let mut object = Map::new();
        put_name(&mut object, "name", b"\xfe");
        assert_eq!(Value::Object(object), json!({"name": "\\xfe", "escaped": true}));
    }

    #[test]
    fn times_are_dates() {
        assert_eq!(time_text(0), "1970-01-01 00:00:00");
        assert_eq!(time_text(951_782_400_000_000_000), "2000-02-29 00:00:00");
        assert_eq!(time_text(-1), "1969-12-31 23:59:59");
        assert_eq!(time_text(1_700_000_000_123_456_789), "2023-11-14 22:13:20");
    }

    #[test]
    fn modes_and_sizes_read_as_usual() {
        assert_eq!(mode_text(FileKind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode_text(FileKind::File, 0o4644), "-rwSr--r--");
        assert_eq!(
            (bytes_text(1023), bytes_text(1536), bytes_text(5 << 30)),
            ("1023 B".into(), "1.5 KiB".into(), "5.0 GiB".into())
        );
    }
}
