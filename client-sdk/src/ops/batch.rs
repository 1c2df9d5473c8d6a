//! Many paths in one call: their requests travel together in few frames.

use std::path::Path;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};

use crate::{Client, Metadata, Result};

/// Calls of a batch that are under way at once.
const PARALLEL: usize = 256;

impl Client {
    /// Contents of many files, in the order of the paths, each with its own result.
    ///
    /// ```
    /// # use pando_local_cluster::{LocalCluster, Options};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let options = Options { osds: 1, replicas: 1, ..Options::default() };
    /// # let cluster = LocalCluster::start(options.memory()).await?;
    /// # let client = pando_client::Client::connect(&cluster.mon_addresses()).await?;
    /// client.write("/a", "first").await?;
    /// let bodies = client.read_many(["/a", "/b"]).await;
    /// assert_eq!(bodies[0].as_ref().unwrap(), "first");
    /// assert_eq!(bodies[1].as_ref().unwrap_err().errno(), pando_client::Errno::ENOENT);
    /// # cluster.shutdown().await;
    /// # Ok(()) }
    /// ```
    pub async fn read_many<P: AsRef<Path>>(&self, paths: impl IntoIterator<Item = P>) -> Vec<Result<Bytes>> {
        collect(futures_util::stream::iter(paths.into_iter().map(|path| self.read(path))).buffered(PARALLEL)).await
    }

    /// Attributes of many paths, symlinks followed, in the order of the paths.
    pub async fn stat_many<P: AsRef<Path>>(&self, paths: impl IntoIterator<Item = P>) -> Vec<Result<Metadata>> {
        collect(futures_util::stream::iter(paths.into_iter().map(|path| self.metadata(path))).buffered(PARALLEL)).await
    }

    /// Writes many whole files, as [`write_bytes`](Self::write_bytes); the results are in the order of the files,
    /// the effects in any order.
    pub async fn write_many<P: AsRef<Path>>(&self, files: impl IntoIterator<Item = (P, Bytes)>) -> Vec<Result<()>> {
        let writes = files.into_iter().map(|(path, contents)| self.write_bytes(path, contents));
        collect(futures_util::stream::iter(writes).buffered(PARALLEL)).await
    }
}

async fn collect<T>(stream: impl Stream<Item = T>) -> Vec<T> {
    stream.collect().await
}
