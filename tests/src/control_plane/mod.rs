//! A real kube-apiserver with its etcd, inside a network namespace.
//!
//! Both listen on the loopback of that namespace only, so an agent in it reaches them
//! and nothing else does. No controllers run: a test writes the EndpointSlices it needs.

mod content;
mod data;
mod detour;
mod install;
mod marker;
mod pki;
mod relay;
mod shared;

use std::{
    fs::{self, File},
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use kube::{Client, Config, config::KubeConfigOptions};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

pub use detour::{Detour, Traffic};
pub use marker::Versions;
pub use shared::{Place, SharedControlPlane, Shown};

use crate::{
    cleanup::{self, Guard},
    late,
    netns::Namespace,
    process::{Process, Spawn as _},
};

/// Long enough for a cold start on a busy machine.
const READY: Duration = Duration::from_secs(90);

/// For one question whether it is ready.
const REQUEST: Duration = Duration::from_secs(10);

/// How many lines of a log an error quotes.
const QUOTED: usize = 10;

/// The kubeconfig of a user with every right.
const KUBECONFIG: &str = "kubeconfig";

/// The kubeconfig of a user without rights of its own.
const READERS_KUBECONFIG: &str = "kubeconfig-reader";

/// Arguments without which the API server makes clients wait that ask much.
const UNLIMITED: [&str; 3] = [
    "--max-requests-inflight=0",
    "--max-mutating-requests-inflight=0",
    "--enable-priority-and-fairness=false",
];

/// Where the binaries are; `cargo xtask test cluster` sets it.
const ASSETS: &str = "KUBEBUILDER_ASSETS";

/// The directory of the binaries.
pub(crate) fn assets() -> Result<PathBuf> {
    std::env::var_os(ASSETS).map(PathBuf::from).with_context(|| {
        format!("{ASSETS} names no control plane: run `cargo xtask test cluster`, which builds one")
    })
}

/// What may differ from test to test.
#[derive(Clone, Debug)]
pub struct Options {
    /// ServiceCIDRs, one or one of each family.
    pub service_ranges: String,
    /// What etcd begins with: a directory that [`SharedControlPlane::keep_data`] has written. It
    /// is copied.
    pub data: Option<PathBuf>,
    /// Where its files go; below `/run`, if none is named.
    pub folder: Option<PathBuf>,
    /// Requests are answered as fast as they come, however many there are at a time.
    pub unlimited: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            service_ranges: "172.30.0.0/16,fd00:96::/112".into(),
            data: None,
            folder: None,
            unlimited: false,
        }
    }
}

/// A running API server; stopped on drop, the API server before etcd.
#[derive(Debug)]
pub struct ControlPlane {
    // Fields drop in order.
    api_server: Option<Process>,
    etcd: Process,
    assets: PathBuf,
    directory: PathBuf,
    ports: Ports,
    options: Options,
    _directory: Guard,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Ports {
    etcd: u16,
    etcd_peer: u16,
    api_server: u16,
}

impl ControlPlane {
    /// Starts both in `namespace` and waits until the API server is ready.
    pub fn start(namespace: &Namespace, options: Options) -> Result<Self> {
        let assets = assets()?;
        let folder = options.folder.as_deref().unwrap_or(Path::new("/run"));
        let (directory, guard) = cleanup::directory_in(folder, "control-plane")?;
        let ports = namespace.run(Ports::free)?;
        pki::write(&directory)?;
        for (name, token) in [(KUBECONFIG, pki::TOKEN), (READERS_KUBECONFIG, pki::READER_TOKEN)] {
            fs::write(directory.join(name), kubeconfig(&directory, ports.api_server, token))?;
        }
        if let Some(data) = &options.data {
            data::copy(data, &directory.join(data::DIRECTORY))?;
        }
        let etcd = start_etcd(namespace, &assets, &directory, ports)?;
        let mut control_plane =
            Self { api_server: None, etcd, assets, directory, ports, options, _directory: guard };
        control_plane.start_api_server(namespace)?;
        Ok(control_plane)
    }

    /// A kubeconfig with every right, for use inside the namespace.
    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.join(KUBECONFIG)
    }

    /// Ends the API server at once, as a crash would.
    pub fn stop_api_server(&mut self) {
        self.api_server = None;
    }

    /// Stops the API server's process, or lets it go on: its kernel still takes what is sent to it.
    pub fn hold_api_server(&self, held: bool) -> Result<()> {
        let signal = if held { Signal::SIGSTOP } else { Signal::SIGCONT };
        self.api_server.as_ref().context("the API server does not run")?.signal(signal)
    }

    /// A new way to the API server, for use inside the namespace that it is in.
    pub fn detour(&self, namespace: &Namespace) -> Result<Detour> {
        Detour::start(namespace, self.ports.api_server)
    }

    /// The same as [`ControlPlane::kubeconfig`], but by the detour.
    pub fn kubeconfig_by(&self, detour: &Detour) -> Result<PathBuf> {
        let path = self.directory.join(format!("kubeconfig-{}", detour.port()));
        fs::write(&path, kubeconfig(&self.directory, detour.port(), pki::TOKEN))?;
        Ok(path)
    }

    /// Starts it where it was before, with the objects that it had, and waits until it is ready.
    pub fn start_api_server(&mut self, namespace: &Namespace) -> Result<()> {
        let mut command = Command::new(self.assets.join("kube-apiserver"));
        command.args(self.api_server_arguments()).current_dir(&self.directory).netns(namespace)?;
        log_to(&mut command, &self.log("kube-apiserver"))?;
        let process = self.api_server.insert(command.spawn_owned()?);
        let kubeconfig = self.directory.join(KUBECONFIG);
        let log = self.directory.join("kube-apiserver.log");
        late::poll(READY, || {
            if let Some(status) = process.child().try_wait()? {
                bail!("kube-apiserver ended with {status}:\n{}", last_lines(&log));
            }
            let ready = namespace.run(|| block_on(is_ready(&kubeconfig)));
            ready.map_err(|error| {
                let (why, said) = (late::unmarked(&error), last_lines(&log));
                late!("kube-apiserver is not ready in {READY:?}: {why}:\n{said}").into()
            })
        })
    }

    /// Runs `work` with a client, on a thread inside the namespace.
    pub fn with_client<T: Send>(
        &self,
        namespace: &Namespace,
        work: impl AsyncFnOnce(Client) -> Result<T> + Send,
    ) -> Result<T> {
        namespace.run(|| block_on(async { work(client(&self.kubeconfig()).await?).await }))
    }

    fn api_server_arguments(&self) -> Vec<String> {
        let Ports { etcd, api_server, .. } = self.ports;
        let mut arguments = vec![
            format!("--etcd-servers=http://127.0.0.1:{etcd}"),
            format!("--secure-port={api_server}"),
            format!("--service-cluster-ip-range={}", self.options.service_ranges),
        ];
        let fixed = [
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--tls-cert-file=server.crt",
            "--tls-private-key-file=server.key",
            "--token-auth-file=tokens.csv",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-account-key-file=service-account.pub",
            "--service-account-signing-key-file=service-account.key",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
            "--endpoint-reconciler-type=none",
            "--disable-admission-plugins=ServiceAccount",
        ];
        arguments.extend(fixed.map(String::from));
        if self.options.unlimited {
            arguments.extend(UNLIMITED.map(String::from));
        }
        arguments
    }

    fn log(&self, name: &str) -> PathBuf {
        self.directory.join(name).with_extension("log")
    }
}

impl Ports {
    /// Free ones of the namespace that the calling thread is in.
    fn free() -> Result<Self> {
        let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0"));
        let mut ports = [0; 3];
        for (port, listener) in ports.iter_mut().zip(&listeners) {
            let Ok(listener) = listener else { bail!("the loopback device of the namespace is down") };
            *port = listener.local_addr()?.port();
        }
        let [etcd, etcd_peer, api_server] = ports;
        Ok(Self { etcd, etcd_peer, api_server })
    }
}

fn start_etcd(namespace: &Namespace, assets: &Path, directory: &Path, ports: Ports) -> Result<Process> {
    let (clients, peers) =
        (format!("http://127.0.0.1:{}", ports.etcd), format!("http://127.0.0.1:{}", ports.etcd_peer));
    let mut command = Command::new(assets.join("etcd"));
    command.current_dir(directory).args(["--unsafe-no-fsync", "--log-level=warn"]);
    command.arg("--data-dir").arg(data::DIRECTORY);
    command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
    command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
    command.arg(format!("--initial-cluster=default={peers}"));
    log_to(&mut command, &directory.join("etcd.log"))?;
    command.netns(namespace)?.spawn_owned()
}

fn log_to(command: &mut Command, path: &Path) -> Result<()> {
    let log = File::options().create(true).append(true).open(path)?;
    command.stdout(log.try_clone()?).stderr(log);
    Ok(())
}

fn last_lines(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(QUOTED)..].join("\n")
}

fn kubeconfig(directory: &Path, port: u16, token: &str) -> String {
    let authority = directory.join("ca.crt");
    format!(
        "apiVersion: v1
kind: Config
clusters: [{{name: test, cluster: {{server: 'https://127.0.0.1:{port}', certificate-authority: '{}'}}}}]
users: [{{name: user, user: {{token: {token}}}}}]
contexts: [{{name: test, context: {{cluster: test, user: user}}}}]
current-context: test
",
        authority.display()
    )
}

/// One runtime per call, on the calling thread: its sockets must be made in the namespace
/// that this thread is in.
fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

async fn client(kubeconfig: &Path) -> Result<Client> {
    let kubeconfig = kube::config::Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

async fn is_ready(kubeconfig: &Path) -> Result<()> {
    let client = client(kubeconfig).await?;
    let request = client.request_text(http::Request::get("/readyz").body(Vec::new())?);
    let answer = tokio::time::timeout(REQUEST, request).await??;
    ensure!(answer == "ok", "readyz: {answer}");
    Ok(())
}
