//! What people give as addresses.

use pando_proto::{Error, Reason};

/// Whether a text is `HOST:PORT`, with a port that one can connect to.
pub fn is_address(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-_:[]%".contains(c);
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    !host.is_empty() && host.chars().all(plain) && port.parse::<u16>().is_ok_and(|port| port != 0)
}

/// Looks at the addresses of mons before anything is done with them. `source` is where they stood, as `--mons`.
///
/// Errors: `INVALID_REQUEST`, which names the first that is no `HOST:PORT`; or there is none at all.
pub fn check_mons(source: &str, mons: &[String]) -> Result<(), Error> {
    let refused = |what: &str| {
        let text = format!("{source} takes HOST:PORT, several of them separated by commas: {what}");
        Err(Error::new(Reason::InvalidRequest, text))
    };
    match mons.iter().find(|mon| !is_address(mon)) {
        Some(wrong) => refused(&format!("`{}` is none", wrong.escape_debug())),
        None if mons.is_empty() => refused("none is given"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_host_and_port_is_named() {
        for good in ["127.0.0.1:7100", "a-b.example:1", "[::1]:7100", "[fe80::1%eth0]:7100", "mon_1:65535"] {
            assert!(is_address(good), "{good}");
        }
        for bad in ["", "a", "a:", ":1", "a:0", "a:99999", "a/b:1", "http://a:1", "x y:1", "a:-1", "\u{1b}:1"] {
            let error = check_mons("--mons", &["a:1".to_owned(), bad.to_owned()]).unwrap_err();
            let told = format!("--mons takes HOST:PORT, several of them separated by commas: `{}`", bad.escape_debug());
            assert!(error.reason == Reason::InvalidRequest && error.message.starts_with(&told), "{error}");
        }
        assert!(check_mons("mons", &[]).unwrap_err().message.contains("none is given"));
    }
}
