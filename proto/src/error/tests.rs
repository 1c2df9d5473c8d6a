use super::*;

fn full() -> Error {
    Error {
        errno: Errno::ENOTEMPTY,
        message: "directory not empty".into(),
        path: Some(b"a\\b/\xff\n'x'".to_vec()),
        rank: Some(3),
        epoch: Some(9),
        retry_after: Some(Duration::from_millis(1500)),
        ..Error::new(Reason::Posix, "")
    }
}

#[test]
fn an_error_survives_both_ways_over_the_wire() {
    assert_eq!(Error::from_tonic(&full().to_tonic()), full());
    assert_eq!(Error::from_rpc_status(full().to_rpc_status()), full());
}

#[test]
fn a_transport_error_is_classed_by_its_code() {
    let error = Error::from_tonic(&tonic::Status::unavailable("connection refused"));
    assert_eq!((error.reason, error.errno), (Reason::Unavailable, Errno::EAGAIN));
    assert!(error.is_retryable());
}

#[test]
fn r7_the_transport_says_nothing_certain_about_an_outcome() {
    use Code::{Aborted, DataLoss, Internal, NotFound, ResourceExhausted, Unknown};
    for code in [Aborted, DataLoss, Internal, NotFound, ResourceExhausted, Unknown] {
        let status = tonic::Status::new(code, "h2 protocol error");
        assert!(!Error::is_from_peer(&status));
        assert_eq!(Error::from_tonic(&status).reason, Reason::Unavailable, "{code:?}");
    }
    assert_eq!(Error::from_tonic(&tonic::Status::out_of_range("too large")).reason, Reason::TooLarge);
    assert!(Error::is_from_peer(&Error::new(Reason::TooLarge, "by a peer").to_tonic()));
}

#[test]
fn an_unknown_reason_of_a_newer_peer_keeps_its_errno() {
    let mut details = ErrorDetails::new();
    details.set_error_info("MADE_UP", "pando", HashMap::from([("errno".to_owned(), "EDQUOT".to_owned())]));
    let error = Error::from_tonic(&tonic::Status::with_error_details(Code::ResourceExhausted, "quota", details));
    assert_eq!((error.reason, error.errno), (Reason::TooLarge, Errno::EDQUOT));
}

#[test]
fn broken_escapes_do_not_panic() {
    for text in ["\\", "\\x", "\\xz1", "a\\xä", "\\q"] {
        let _ = unescape(text);
    }
    assert_eq!(unescape("\\x41\\\\n"), b"A\\n");
}

#[test]
fn a_huge_path_is_cut_before_it_outgrows_the_trailers() {
    let status = Error::posix(Errno::ENAMETOOLONG).at(vec![0xff; 5_000_000]).to_tonic();
    assert!(status.details().len() < 8 << 10, "{}", status.details().len());
    assert_eq!(Error::from_tonic(&status).errno, Errno::ENAMETOOLONG);
}
