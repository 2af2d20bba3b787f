//! `shunt agent` on a node: started in the node's namespace, fed with manifests or by an
//! API server, and waited for.

mod log;
mod wait;

pub use log::Line;

use crate::{
    cgroup::Cgroup,
    cleanup::{self, Guard},
    confine::Confinement,
    control_plane::Shown,
    hang::Witness,
    mounts::BpfFs,
    netns::Namespace,
    process::{Process, Spawn, binary},
};
use anyhow::{Context, Result, ensure};
use log::Log;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

/// Generous: a debug build on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A node's agent, its directories, and where it attaches.
#[derive(Debug)]
pub struct Agent {
    name: String,
    /// Another program than the one that was built here.
    program: Option<PathBuf>,
    process: Option<Process>,
    /// Of what it did, should the test hang.
    witness: Option<Witness>,
    log: Log,
    /// How often the manifests have been written since the agent started.
    written: u64,
    /// In place of manifests.
    api_server: Option<Shown>,
    /// The rights that are left to it.
    confinement: Option<Confinement>,
    /// How much it says.
    log_level: String,
    /// Where the processes of the node live.
    pub cgroup: Cgroup,
    bpffs: BpfFs,
    directory: PathBuf,
    _directory: Guard,
}

/// Whose sockets are translated; as in `ShuntConfiguration`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum SocketLb {
    /// Those of the node and of its pods.
    #[default]
    All,
    /// Those of the node.
    Host,
    /// None.
    Off,
}

impl SocketLb {
    fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Host => "host",
            Self::Off => "off",
        }
    }
}

impl Agent {
    /// Prepares an agent for the node called `name`. `kube_proxy` has fields of
    /// `KubeProxyConfiguration`, `shunt` of `ShuntConfiguration`.
    pub fn prepare(name: &str, kube_proxy: &Value, shunt: &Value) -> Result<Self> {
        let (directory, guard) = cleanup::directory("agent")?;
        fs::create_dir(directory.join("manifests"))?;
        let agent = Self {
            name: name.into(),
            program: None,
            process: None,
            witness: None,
            log: Log::default(),
            written: 0,
            api_server: None,
            confinement: None,
            log_level: "debug".into(),
            cgroup: Cgroup::create(name)?,
            bpffs: BpfFs::mount(name)?,
            directory,
            _directory: guard,
        };
        agent.configure(kube_proxy, shunt)?;
        Ok(agent)
    }

    /// Settings that make a small agent which starts quickly.
    pub fn small(socket_lb: SocketLb) -> Value {
        json!({
            "socketLB": socket_lb.name(),
            "maps": {
                "frontends": 1024, "backends": 1024, "slots": 16384,
                "conntrack": 65536, "services": 1024,
            },
        })
    }

    /// Writes the configuration file, which a running agent follows.
    pub fn configure(&self, kube_proxy: &Value, shunt: &Value) -> Result<()> {
        let documents =
            [kube_proxy_document(kube_proxy)?, document("shunt.dev/v1alpha1", "ShuntConfiguration", shunt)?];
        Ok(fs::write(self.config(), documents.join("---\n"))?)
    }

    /// The configuration file.
    pub fn config(&self) -> PathBuf {
        self.directory.join("config.yaml")
    }

    /// The directory the agent reads manifests from.
    pub fn manifests(&self) -> PathBuf {
        self.directory.join("manifests")
    }

    /// The directory of its pins, in a bpf file system of its own.
    pub fn pins(&self) -> PathBuf {
        self.bpffs.path().join("shunt")
    }

    /// The pin of a map that is in use.
    pub fn map(&self, name: &str) -> PathBuf {
        self.pins().join("current/maps").join(name)
    }

    /// Feeds the agent by this API server from its next start on.
    pub fn follow(&mut self, api_server: Shown) {
        self.api_server = Some(api_server);
    }

    /// Starts the agent with no more rights than these from its next start on.
    pub fn confine(&mut self, confinement: Confinement) {
        self.confinement = Some(confinement);
    }

    /// Has the agent say this much from its next start on; as `--log-level`.
    pub fn log_at(&mut self, level: &str) {
        self.log_level = level.into();
    }

    /// Makes `objects` the whole of what the agent reads; manifests change all at once.
    pub fn write(&mut self, objects: &[Value]) -> Result<()> {
        if let Some(api_server) = &self.api_server {
            return api_server.write(objects);
        }
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        self.write_text("objects.yaml", &serde_json::to_string_pretty(&list)?)
    }

    /// Writes one file of manifests as one change.
    pub fn write_text(&mut self, name: &str, text: &str) -> Result<()> {
        let draft = self.directory.join("draft");
        fs::write(&draft, text)?;
        fs::rename(&draft, self.manifests().join(name))?;
        self.written += 1;
        Ok(())
    }

    /// Starts this program from its next start on; none is the one that was built here.
    pub fn run_program(&mut self, program: Option<PathBuf>) {
        self.program = program;
    }

    /// Starts the agent on its manifests, or on the API server it was told to follow.
    pub fn start(&mut self, node: &Namespace) -> Result<()> {
        if let Some(api_server) = &self.api_server {
            let kubeconfig = api_server.kubeconfig();
            return self.start_with_api_server(node, &kubeconfig);
        }
        let manifests = self.manifests();
        self.launch(node, "--manifests", &manifests)
    }

    /// Starts the agent on the API server that the kubeconfig names.
    pub fn start_with_api_server(&mut self, node: &Namespace, kubeconfig: &Path) -> Result<()> {
        self.launch(node, "--kubeconfig", kubeconfig)
    }

    /// In the node's namespace; not in its cgroup, whose processes are the ones served.
    fn launch(&mut self, node: &Namespace, option: &str, source: &Path) -> Result<()> {
        ensure!(self.process.is_none(), "the agent of {} runs", self.name);
        let mut command = Command::new(self.program.clone().map_or_else(|| binary("shunt"), Ok)?);
        command.arg("agent").arg(option).arg(source);
        command.args(["--hostname-override", &self.name]);
        command.arg("--bpffs").arg(self.pins()).arg("--cgroup").arg(self.cgroup.path());
        command.arg("--config").arg(self.config());
        command.args(["--log-format", "json", "--log-level", &self.log_level]);
        command.netns(node)?.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        if let Some(confinement) = &self.confinement {
            confinement.confine(&mut command, self.bpffs.path())?;
        }
        let process = command.spawn_owned()?;
        let stderr = process.child().stderr.take().context("pipe")?;
        self.log = Log::follow(stderr);
        self.witness = Some(witness(&self.name, &self.log, self.pins())?);
        self.process = Some(process);
        self.written = 1;
        Ok(())
    }

    /// Stops it as a supervisor would, and waits until it has ended.
    pub fn stop(&mut self) -> Result<()> {
        let process = self.process.take().context("the agent does not run")?;
        process.signal(Signal::SIGTERM)?;
        let status = process.wait(LIMIT).with_context(|| {
            format!("the agent of {} was told to stop; its last words:\n{}", self.name, self.log.tail())
        })?;
        ensure!(status.success(), "the agent of {} ended with {status}:\n{}", self.name, self.log.tail());
        Ok(())
    }

    /// Ends it by a signal that leaves it no time.
    pub fn kill(&mut self, signal: Signal) -> Result<()> {
        let process = self.process.take().context("the agent does not run")?;
        process.signal(signal)?;
        process.wait(LIMIT).map(drop)
    }

    /// Its process, which is also its main thread.
    pub fn process_id(&self) -> Result<u32> {
        Ok(self.process.as_ref().context("the agent does not run")?.id())
    }

    /// Whether it was started and not stopped.
    pub fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// All of its log so far.
    pub fn lines(&self) -> Vec<Line> {
        self.log.lines()
    }

    /// The last lines of its log.
    pub fn last_words(&self) -> String {
        self.log.tail()
    }

    /// Runs another subcommand of `shunt` on this node's maps.
    pub fn shunt(&self, node: &Namespace, arguments: &[&str]) -> Result<String> {
        let program = binary("shunt")?;
        let bpffs = self.pins().to_string_lossy().into_owned();
        let mut all = arguments.to_vec();
        all.extend(["--bpffs", &bpffs]);
        node.output(&program.to_string_lossy(), &all)
    }
}

/// Tells the last words of an agent and what is in its maps.
fn witness(name: &str, log: &Log, pins: PathBuf) -> Result<Witness> {
    let (name, log, program) = (name.to_owned(), log.clone(), binary("shunt")?);
    Ok(Witness::register(move || {
        eprintln!("the agent of {name} has logged:\n{}", log.tail());
        for what in ["service", "backend", "conn", "affinity", "drop"] {
            let mut list = Command::new(&program);
            let listed = list.args([what, "list", "--bpffs"]).arg(&pins).output();
            let text = listed.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
            eprintln!("shunt {what} list on {name}:\n{}", String::from_utf8_lossy(&text));
        }
    }))
}

/// The document with these fields, as files spell it.
pub fn kube_proxy_document(fields: &Value) -> Result<String> {
    document("kubeproxy.config.k8s.io/v1alpha1", "KubeProxyConfiguration", fields)
}

fn document(version: &str, kind: &str, fields: &Value) -> Result<String> {
    let mut document = json!({"apiVersion": version, "kind": kind});
    if let (Some(document), Some(fields)) = (document.as_object_mut(), fields.as_object()) {
        document.extend(fields.clone());
    }
    Ok(serde_norway::to_string(&document)?)
}
