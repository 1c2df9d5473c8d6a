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
