use std::collections::BTreeSet;

use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use super::*;
use crate::net::TcpNet;

const DEADLINE: Duration = Duration::from_secs(30);

/// One question to the reflection of a server with the standard routes of `package`.
async fn ask(package: &str, question: MessageRequest) -> Result<MessageResponse, tonic::Status> {
    let asking = async {
        let net: Arc<dyn Net> = Arc::new(TcpNet);
        let listener = bind(&net, (std::net::Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
        let (address, shutdown) = (listener.local.to_string(), Shutdown::default());
        let serving = tokio::spawn(serve(listener, standard_routes(package).await, shutdown.clone()));
        let mut client = ServerReflectionClient::new(crate::channel(&net, &address).unwrap());
        let request = ServerReflectionRequest { host: String::new(), message_request: Some(question) };
        let questions = futures_util::stream::iter([request]);
        let mut answers = client.server_reflection_info(questions).await.unwrap().into_inner();
        let answer = answers.message().await;
        shutdown.stop();
        serving.await.unwrap().unwrap();
        Ok(answer?.expect("an answer").message_response.expect("what was asked"))
    };
    tokio::time::timeout(DEADLINE, asking).await.expect("an answer in time")
}

async fn listed(package: &str) -> BTreeSet<String> {
    match ask(package, MessageRequest::ListServices(String::new())).await.unwrap() {
        MessageResponse::ListServicesResponse(list) => list.service.into_iter().map(|service| service.name).collect(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_daemon_lists_its_own_services_and_no_others() {
    let everywhere = ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"];
    for (package, own) in [
        ("pando.mon.v1", &["ClusterService", "AdminService", "RaftService"][..]),
        ("pando.mds.v1", &["NamespaceService", "SessionService"]),
        ("pando.osd.v1", &["RecordService", "ObjectService", "ReplicationService"]),
    ] {
        let mut listed = listed(package).await;
        for name in own.iter().map(|name| format!("{package}.{name}")).chain(everywhere.map(str::to_owned)) {
            assert!(listed.remove(&name), "{name} is missing: {listed:?}");
        }
        listed.retain(|name| !name.starts_with(package));
        assert_eq!(listed, BTreeSet::new(), "services of others");
    }
}

#[tokio::test]
async fn messages_of_other_packages_stay_known_and_their_services_do_not() {
    let symbol = |name: &str| MessageRequest::FileContainingSymbol(name.to_owned());
    let found = ask("pando.mds.v1", symbol("pando.mon.v1.ClusterMap")).await;
    assert!(matches!(found, Ok(MessageResponse::FileDescriptorResponse(_))), "{found:?}");
    let found = ask("pando.mds.v1", symbol("pando.mds.v1.NamespaceService")).await;
    assert!(matches!(found, Ok(MessageResponse::FileDescriptorResponse(_))), "{found:?}");
    let missing = ask("pando.mds.v1", symbol("pando.mon.v1.AdminService")).await;
    assert_eq!(missing.unwrap_err().code(), tonic::Code::NotFound);
}

/// An HTTP/2 frame (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The HEADERS that open a call of the health service: fields as HPACK literals (RFC 7541, section 6.2.2).
fn open_call(stream: u32) -> Vec<u8> {
    const END_HEADERS: u8 = 4;
    let literal = |name: &str, value: &str| {
        let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
        [vec![0], text(name), text(value)].concat()
    };
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/grpc.health.v1.Health/Check"),
        (":authority", "test"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    frame(1, END_HEADERS, stream, &fields.map(|(name, value)| literal(name, value)).concat())
}

#[tokio::test]
async fn r7_a_client_that_drops_many_calls_at_once_keeps_its_connection() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    const DROPPED: u32 = 1000;
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const RST_STREAM: u8 = 3;
    const SETTINGS: u8 = 4;
    const GOAWAY: u8 = 7;
    const END_STREAM: u8 = 1;
    let net: Arc<dyn Net> = Arc::new(TcpNet);
    let listener = bind(&net, (std::net::Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
    let mut stream = tokio::net::TcpStream::connect(listener.local).await.unwrap();
    let mut sent = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(SETTINGS, 0, 0, &[])].concat();
    for stream in (0..DROPPED).map(|call| call * 2 + 1) {
        sent.extend(open_call(stream));
        // CANCEL
        sent.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
    }
    let last = DROPPED * 2 + 1;
    sent.extend(open_call(last));
    sent.extend(frame(DATA, END_STREAM, last, &[0; 5]));
    // All of it is there before the server looks.
    stream.write_all(&sent).await.unwrap();
    let shutdown = Shutdown::default();
    tokio::spawn(serve(listener, standard_routes("pando.mon.v1").await, shutdown.clone()));
    let answered = async {
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await.unwrap();
            let [a, b, c, kind, _, id @ ..] = head;
            let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
            stream.read_exact(&mut payload).await.unwrap();
            assert_ne!(kind, GOAWAY, "{payload:?}");
            if kind == HEADERS && u32::from_be_bytes(id) == last {
                return;
            }
        }
    };
    tokio::time::timeout(DEADLINE, answered).await.expect("an answer in time");
    shutdown.stop();
}
