//! Which cluster a caller means.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use tonic::metadata::{Binary, MetadataValue};
use tonic::service::Interceptor;
use tonic::{Request, Status};

use crate::CLUSTER_HEADER;

/// The id of the cluster that this process belongs to, once it knows it; told with each call. Whoever answers at the
/// address of a mon or OSD may be one of another cluster by now.
#[derive(Clone, Default)]
pub struct ClusterStamp(Arc<OnceLock<MetadataValue<Binary>>>);

impl ClusterStamp {
    /// From now on daemons of other clusters refuse what this process asks.
    pub fn bind(&self, cluster: &[u8; 16]) {
        if *cluster != [0; 16] {
            self.0.get_or_init(|| MetadataValue::from_bytes(cluster));
        }
    }

    /// The cluster that a request names; empty if none.
    pub fn of(request: &Request<()>) -> Bytes {
        request.metadata().get_bin(CLUSTER_HEADER).and_then(|value| value.to_bytes().ok()).unwrap_or_default()
    }
}

impl Interceptor for ClusterStamp {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(cluster) = self.0.get() {
            request.metadata_mut().insert_bin(CLUSTER_HEADER, cluster.clone());
        }
        Ok(request)
    }
}
