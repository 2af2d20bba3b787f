//! A connection whose credentials are read again when their files change: certificates are
//! renewed while an agent runs for months. Tokens of service accounts are no business of this
//! module, kube-rs reads their file by itself.

use std::{
    fs,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use http::Uri;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::time::sleep;
use tower::service_fn;
use tracing::{debug, info, warn};

use super::{ConnectError, connection::Limits, servers};

/// Time between looks at the files. Certificates are renewed days before they end.
const LOOK: Duration = Duration::from_secs(10);

/// The certificate of the API server's authority, for pods.
const POD_CA: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";

/// Where credentials come from.
#[derive(Clone, Debug)]
pub(super) struct Credentials {
    /// The pod's service account when absent.
    pub(super) kubeconfig: Option<PathBuf>,
    /// Counts in place of the kubeconfig's server; alone it is all there is to know.
    pub(super) master: Option<Uri>,
    /// Servers of the same cluster that are asked when that one fails.
    pub(super) further: Vec<Uri>,
}

/// What the credentials say, and the files that say it.
type Read = (Config, Vec<PathBuf>);

impl Credentials {
    async fn read(&self) -> Result<Read, ConnectError> {
        let (mut config, files) = match (&self.kubeconfig, &self.master) {
            (None, None) => (Config::incluster()?, vec![POD_CA.into()]),
            (None, Some(url)) => (Config::new(url.clone()), Vec::new()),
            (Some(path), _) => self.read_file(path).await?,
        };
        if let Some(master) = &self.master {
            config.cluster_url = master.clone();
        }
        Ok((config, files))
    }

    async fn client(&self) -> Result<(Client, Vec<PathBuf>), ConnectError> {
        let (config, files) = self.read().await?;
        Ok((servers::client(&config, &self.further, Limits::default())?, files))
    }

    async fn read_file(&self, path: &PathBuf) -> Result<Read, ConnectError> {
        let wrong = |source| ConnectError::Kubeconfig { path: path.clone(), source };
        let file = Kubeconfig::read_from(path).map_err(wrong)?;
        let mut files = vec![path.clone()];
        let authorities = file.clusters.iter().filter_map(|cluster| cluster.cluster.as_ref());
        files.extend(
            authorities.filter_map(|cluster| cluster.certificate_authority.clone()).map(PathBuf::from),
        );
        for user in file.auth_infos.iter().filter_map(|user| user.auth_info.as_ref()) {
            files.extend(user.client_certificate.iter().chain(&user.client_key).map(PathBuf::from));
        }
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
        Ok((config.map_err(wrong)?, files))
    }
}

/// A client that goes on with new credentials. Requests under way, watches among them, end with
/// those they began with.
pub(super) async fn client(credentials: Credentials) -> Result<Client, ConnectError> {
    client_that_looks(credentials, LOOK).await
}

async fn client_that_looks(credentials: Credentials, every: Duration) -> Result<Client, ConnectError> {
    let (client, files) = credentials.client().await?;
    let namespace = client.default_namespace().to_owned();
    let latest = Arc::new(Mutex::new(client));
    tokio::spawn(follow(credentials, files, Arc::downgrade(&latest), every));
    let service = service_fn(move |request| {
        let client = latest.lock().unwrap_or_else(PoisonError::into_inner).clone();
        async move { client.send(request).await }
    });
    Ok(Client::new(service, namespace))
}

/// Until the last client is gone.
async fn follow(
    credentials: Credentials,
    mut files: Vec<PathBuf>,
    latest: Weak<Mutex<Client>>,
    every: Duration,
) {
    let (mut known, mut failed) = (contents(&files), false);
    loop {
        sleep(every).await;
        let Some(latest) = latest.upgrade() else { return };
        if contents(&files) == known {
            continue;
        }
        // A certificate may have been replaced, and its key not yet: another look will do.
        match credentials.client().await {
            Ok((client, now)) => {
                *latest.lock().unwrap_or_else(PoisonError::into_inner) = client;
                files = now;
                (known, failed) = (contents(&files), false);
                info!("the credentials for the API server were read again");
            }
            Err(error) if failed => debug!(%error, "the credentials for the API server cannot be used"),
            Err(error) => {
                failed = true;
                warn!(%error, "the credentials for the API server have changed and cannot be used; the old ones stay");
            }
        }
    }
}

fn contents(files: &[PathBuf]) -> Vec<Option<Vec<u8>>> {
    files.iter().map(|file| fs::read(file).ok()).collect()
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
        time::timeout,
    };

    use super::*;

    /// An API server of a version, and a kubeconfig for it.
    async fn server(version: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 4096]).await;
                let empty = ["gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"];
                let fields: String = empty.map(|name| format!(r#","{name}":"""#)).concat();
                let body = format!(r#"{{"major":"1","minor":"{version}","gitVersion":"v"{fields}}}"#);
                let head =
                    format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
                let _ = stream.write_all((head + &body).as_bytes()).await;
            }
        });
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{}}}}]\n"
        )
    }

    #[tokio::test]
    async fn a_changed_kubeconfig_is_followed_and_a_broken_one_is_not() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), server("1").await).unwrap();
        let credentials =
            Credentials { kubeconfig: Some(file.path().to_owned()), master: None, further: Vec::new() };
        let client = client_that_looks(credentials, Duration::from_millis(10)).await.unwrap();
        let minor = async || client.apiserver_version().await.unwrap().minor;
        assert_eq!(minor().await, "1");
        fs::write(file.path(), "clusters: [").unwrap();
        sleep(Duration::from_millis(50)).await;
        assert_eq!(minor().await, "1");
        fs::write(file.path(), server("2").await).unwrap();
        let changed = async {
            while minor().await != "2" {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(60), changed).await.expect("the new server is asked");
    }
}
