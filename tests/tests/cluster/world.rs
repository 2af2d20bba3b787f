//! A node with pods, a client outside, an API server on the node's loopback, and an agent.

use std::{
    io::{Read, Write},
    net::{IpAddr, TcpStream},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
    events::v1::Event,
};
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use proxy_userspace::kernel::{PinnedMaps, Pins};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tests::{
    agent::{Agent, Line, SocketLb},
    confine::Confinement,
    control_plane::{ControlPlane, Options},
    late,
    metrics::lacks,
    probe::{Dial, Outcome, PATIENCE_MS, Proto, Serve, Worker},
    topology::stage::{PodKey, Port, Stage},
};

use crate::objects::{self, Kind, NODE, Object};

/// The first backend, called "first".
pub(crate) const FIRST: &str = "10.180.0.1";
/// The second backend, called "second".
pub(crate) const SECOND: &str = "10.180.0.2";
/// Where the service answers pods.
pub(crate) const VIP: &str = "172.30.0.41:80";
/// The same for IPv6.
pub(crate) const VIP6: &str = "[fd00:96::41]:80";

const NAMESPACE: &str = "default";

/// No answer for so long is no answer, where none is expected.
const SILENCE_MS: u64 = 3000;

/// For how long "always" is looked at.
const WHILE: Duration = Duration::from_secs(3);

/// All of it. Processes go before the namespaces they live in.
pub(crate) struct World {
    inside: Worker,
    outside: Worker,
    agent: Agent,
    pub(crate) control_plane: ControlPlane,
    pub(crate) stage: Stage,
}

impl World {
    /// Everything but the agent, with a Node object.
    pub(crate) fn build(socket_lb: SocketLb) -> Result<Self> {
        Self::configured(&Agent::small(socket_lb))
    }

    /// The same with this `ShuntConfiguration`.
    pub(crate) fn configured(shunt: &Value) -> Result<Self> {
        Self::configured_for(|_, _| Ok(shunt.clone()))
    }

    /// The same, where the configuration depends on how the API server is reached.
    pub(crate) fn configured_for(shunt: impl FnOnce(&Stage, &ControlPlane) -> Result<Value>) -> Result<Self> {
        let mut stage = Stage::build(&["192.168.0.2".parse()?, "2001:db8::1".parse()?])?;
        for address in [FIRST, SECOND, "10.0.0.2", "fd00:10::2"] {
            stage.add_pod(&key(address)?)?;
        }
        stage.add_address(&key(FIRST)?, "fd00:10::1:1".parse()?)?;
        stage.add_client("203.0.113.2".parse()?)?;
        let kube_proxy = json!({"clusterCIDR": "10.0.0.0/8,fd00:10::/32"});
        let control_plane = ControlPlane::start(&stage.node, Options::default())?;
        let agent = Agent::prepare(NODE, &kube_proxy, &shunt(&stage, &control_plane)?)?;
        let (inside, outside) = (Worker::start(Some(&agent.cgroup))?, Worker::start(None)?);
        for (name, address) in [("first", FIRST), ("second", SECOND)] {
            inside.serve(serve(name, stage.pod(&key(address)?)?.path())?)?;
        }
        let world = Self { inside, outside, agent, control_plane, stage };
        world.put(&[objects::node()])?;
        Ok(world)
    }

    /// Creates or replaces objects.
    pub(crate) fn put(&self, objects: &[Object]) -> Result<()> {
        self.control_plane.with_client(&self.stage.node, async |client| {
            for (kind, value) in objects {
                match kind {
                    Kind::Service => put(&untyped::<Service>(&client), value).await,
                    Kind::EndpointSlice => put(&untyped::<EndpointSlice>(&client), value).await,
                    Kind::Node => put_node(client.clone(), value).await,
                }
                .with_context(|| format!("write {kind:?} {}", value["metadata"]["name"]))?;
            }
            Ok(())
        })
    }

    /// Gives the service a condition whose time is null, which is what a controller writes that leaves it out.
    pub(crate) fn put_condition_without_time(&self) -> Result<()> {
        let condition = json!({"type": "Odd", "status": "True", "reason": "None", "message": "", "lastTransitionTime": null});
        let patch = Patch::Merge(json!({"status": {"conditions": [condition]}}));
        self.control_plane.with_client(&self.stage.node, async |client| {
            let services = untyped::<Service>(&client);
            let patched = services.patch_status(objects::NAME, &PatchParams::default(), &patch).await?;
            let time = &patched.data["status"]["conditions"][0]["lastTransitionTime"];
            ensure!(time.is_null(), "the API server made {time} of null");
            Ok(())
        })
    }

    /// The node's taints, `KEY:EFFECT`.
    pub(crate) fn taints(&self) -> Result<Vec<String>> {
        let node = self
            .control_plane
            .with_client(&self.stage.node, async |client| Ok(Api::<Node>::all(client).get(NODE).await?))?;
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        Ok(taints.iter().map(|taint| format!("{}:{}", taint.key, taint.effect)).collect())
    }

    /// Before long the node has these taints and no others.
    pub(crate) fn soon_has_taints(&self, wanted: &[&str]) -> Result<()> {
        self.soon(|| {
            let found = self.taints()?;
            ensure!(found == wanted, late!("the node has the taints {found:?}, wanted {wanted:?}"));
            Ok(())
        })
    }

    /// Deletes an object.
    pub(crate) fn delete(&self, kind: Kind, name: &str) -> Result<()> {
        self.control_plane.with_client(&self.stage.node, async |client| {
            let params = DeleteParams::default();
            match kind {
                Kind::Service => {
                    drop(Api::<Service>::namespaced(client, NAMESPACE).delete(name, &params).await?)
                }
                Kind::EndpointSlice => {
                    drop(Api::<EndpointSlice>::namespaced(client, NAMESPACE).delete(name, &params).await?);
                }
                Kind::Node => drop(Api::<Node>::all(client).delete(name, &params).await?),
            }
            Ok(())
        })
    }

    pub(crate) fn start_agent(&mut self) -> Result<()> {
        self.agent.start_with_api_server(&self.stage.node, &self.control_plane.kubeconfig())
    }

    /// The same by another kubeconfig.
    pub(crate) fn start_agent_by(&mut self, kubeconfig: &Path) -> Result<()> {
        self.agent.start_with_api_server(&self.stage.node, kubeconfig)
    }

    /// The same as a service account.
    pub(crate) fn start_agent_as(&mut self, namespace: &str, account: &str) -> Result<()> {
        let kubeconfig = self.control_plane.service_account(&self.stage.node, namespace, account)?;
        self.agent.start_with_api_server(&self.stage.node, &kubeconfig)
    }

    /// Leaves the agent no more rights on the node than these.
    pub(crate) fn confine_agent(&mut self, confinement: Confinement) {
        self.agent.confine(confinement);
    }

    /// Applies manifests.
    pub(crate) fn install(&self, objects: &[Value]) -> Result<()> {
        self.control_plane.apply(&self.stage.node, objects, false)
    }

    /// All that the agent has logged.
    pub(crate) fn agent_log(&self) -> Vec<Line> {
        self.agent.lines()
    }

    /// Every edge has its programs.
    pub(crate) fn wait_in_sync(&self) -> Result<()> {
        self.agent.wait_in_sync()
    }

    pub(crate) fn stop_agent(&mut self) -> Result<()> {
        self.agent.stop()
    }

    pub(crate) fn restart_agent(&mut self) -> Result<()> {
        self.stop_agent()?;
        self.start_agent()
    }

    pub(crate) fn stop_api_server(&mut self) {
        self.control_plane.stop_api_server();
    }

    pub(crate) fn start_api_server(&mut self) -> Result<()> {
        self.control_plane.start_api_server(&self.stage.node)
    }

    /// One connection reaches this server, and the answer comes from where it went.
    pub(crate) fn reaches(&self, server: &str, proto: Proto, from: &str, to: &str) -> Result<()> {
        let way = format!("{proto} {from} → {to}");
        let answer = self.dial(proto, from, to, PATIENCE_MS)?.answer(&way)?;
        ensure!(answer.server == server, "{way}: {answer}");
        ensure!(answer.peer == to.parse()?, "{way}: answered from {}", answer.peer);
        Ok(())
    }

    /// The same, before long.
    pub(crate) fn soon_reaches(&self, server: &str, proto: Proto, from: &str, to: &str) -> Result<()> {
        self.soon(|| self.reaches(server, proto, from, to))
    }

    /// The same, in so long at most.
    pub(crate) fn reaches_within(&self, limit: Duration, server: &str, from: &str, to: &str) -> Result<()> {
        late::until(limit, || self.reaches(server, Proto::Tcp, from, to))
            .with_context(|| format!("the agent:\n{}", self.agent.last_words()))
    }

    /// Before long there is an Event of this reason about an object of this kind and name, with its UID; what it says.
    pub(crate) fn soon_tells(&self, (kind, name): (Kind, &str), reason: &str) -> Result<String> {
        let kind = format!("{kind:?}");
        let told = || {
            self.control_plane.with_client(&self.stage.node, async |client| {
                let events = Api::<Event>::namespaced(client, NAMESPACE).list(&ListParams::default()).await?;
                let about = |event: &Event| {
                    let regarding = event.regarding.as_ref();
                    regarding.is_some_and(|o| {
                        (o.kind.as_deref(), o.name.as_deref()) == (Some(&kind), Some(name)) && o.uid.is_some()
                    })
                };
                let fits = |event: &Event| event.reason.as_deref() == Some(reason) && about(event);
                let event = events.items.into_iter().find(fits);
                event.and_then(|event| event.note).with_context(|| late!("no event {reason}"))
            })
        };
        self.soon(told)
    }

    /// Every one of many connections over a while reaches this server. Where nothing has changed, an
    /// answer that does not come is not only late.
    pub(crate) fn always_reaches(&self, server: &str, from: &str, to: &str) -> Result<()> {
        let end = Instant::now() + WHILE;
        while Instant::now() < end {
            match self.dial(Proto::Tcp, from, to, PATIENCE_MS)? {
                Outcome::Answered(answer) if answer.server == server => {}
                other => bail!("{from} → {to}: {other}"),
            }
        }
        Ok(())
    }

    /// Before long this server answers, and until then any server does.
    pub(crate) fn never_unanswered_until(&self, server: &str, from: &str, to: &str) -> Result<()> {
        let deadline = Instant::now() + late::SOON;
        while Instant::now() < deadline {
            match self.dial(Proto::Tcp, from, to, PATIENCE_MS)? {
                Outcome::Answered(answer) if answer.server == server => return Ok(()),
                Outcome::Answered(_) => {}
                other => bail!("{from} → {to}: {other}; the agent:\n{}", self.agent.last_words()),
            }
        }
        bail!("{from} → {to} still does not reach {server}; the agent:\n{}", self.agent.last_words())
    }

    /// Waits for a line of `/metrics`.
    pub(crate) fn soon_shows(&self, line: &str) -> Result<()> {
        self.soon(|| self.shows(line))
    }

    /// The same, for at most so long.
    pub(crate) fn shows_within(&self, limit: Duration, line: &str) -> Result<()> {
        late::until(limit, || self.shows(line))
            .with_context(|| format!("the agent:\n{}", self.agent.last_words()))
    }

    fn shows(&self, line: &str) -> Result<()> {
        let text = self.metrics()?;
        ensure!(text.lines().any(|other| other == line), lacks(&text, line));
        Ok(())
    }

    /// `/metrics`.
    pub(crate) fn metrics(&self) -> Result<String> {
        self.stage.node.run(|| {
            let mut stream = TcpStream::connect("127.0.0.1:10249")?;
            stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        })
    }

    /// Before long the client is told at once that nobody is there.
    pub(crate) fn soon_refuses(&self, proto: Proto, from: &str, to: &str) -> Result<()> {
        self.soon(|| match self.dial(proto, from, to, PATIENCE_MS)? {
            Outcome::Refused => Ok(()),
            Outcome::TimedOut => bail!(late!("{proto} {from} → {to}: not refused yet")),
            other => bail!("{proto} {from} → {to}: {other}, expected: a refusal"),
        })
    }

    /// Before long there is no answer of any kind, because it is dropped for this reason.
    pub(crate) fn soon_dropped(&self, reason: &str, proto: Proto, from: &str, to: &str) -> Result<()> {
        self.soon(|| {
            let before = self.drops(reason)?;
            match self.dial(proto, from, to, SILENCE_MS)? {
                Outcome::TimedOut => {}
                other => bail!("{proto} {from} → {to}: {other}, expected: no answer"),
            }
            ensure!(self.drops(reason)? > before, "{proto} {from} → {to}: not dropped as {reason}");
            Ok(())
        })
    }

    /// How often something was dropped for this reason.
    fn drops(&self, reason: &str) -> Result<u64> {
        let drops = PinnedMaps::open(Pins::new(self.agent.pins()))?.drops()?;
        Ok(drops.iter().filter(|(other, _)| other.name() == reason).map(|(_, count)| count).sum())
    }

    /// Tries while the agent runs. From a write to the API server until traffic follows it may take
    /// a while: the watch of an agent that found the server gone may pause for half a minute.
    fn soon<T>(&self, check: impl Fn() -> Result<T>) -> Result<T> {
        let attempt = || {
            self.agent.ensure_alive()?;
            check()
        };
        late::soon(attempt).with_context(|| format!("the agent:\n{}", self.agent.last_words()))
    }

    /// So many connections that end with the world.
    pub(crate) fn stay_open(&self, count: u32, from: &str, to: &str) -> Result<()> {
        for number in 0..count {
            let name = format!("{from} → {to} #{number}");
            self.dial_and_keep(Proto::Tcp, from, to, PATIENCE_MS, Some(name.clone()))?.answer(&name)?;
        }
        Ok(())
    }

    /// One attempt, for so many milliseconds.
    fn dial(&self, proto: Proto, from: &str, to: &str, timeout_ms: u64) -> Result<Outcome> {
        self.dial_and_keep(proto, from, to, timeout_ms, None)
    }

    fn dial_and_keep(
        &self,
        proto: Proto,
        from: &str,
        to: &str,
        timeout_ms: u64,
        keep: Option<String>,
    ) -> Result<Outcome> {
        let client = self.stage.pod(&key(from)?).ok();
        let dial = Dial {
            netns: client.unwrap_or(&self.stage.client).path(),
            proto,
            from: Some(from.parse()?),
            source_port: None,
            to: to.parse()?,
            count: 1,
            timeout_ms,
            gap_ms: 0,
            keep,
        };
        let worker = if client.is_some() { &self.inside } else { &self.outside };
        worker.dial(&dial)?.into_iter().next().context("no outcome")
    }
}

fn key(address: &str) -> Result<PodKey> {
    Ok(PodKey { address: address.parse::<IpAddr>()?, port: Port::Bridge })
}

fn serve(name: &str, netns: std::path::PathBuf) -> Result<Serve> {
    let (v4, v6) = ("0.0.0.0:8080".parse()?, "[::]:8080".parse()?);
    let sockets = [Proto::Tcp, Proto::Udp].into_iter().flat_map(|proto| [(proto, v4), (proto, v6)]).collect();
    Ok(Serve { netns, name: name.into(), sockets })
}

/// Of which the client reads nothing but what it is: a server may have taken what types do not.
fn untyped<K>(client: &Client) -> Api<DynamicObject>
where
    K: Resource<DynamicType = ()>,
{
    Api::namespaced_with(client.clone(), NAMESPACE, &ApiResource::erase::<K>(&()))
}

async fn put<K>(api: &Api<K>, value: &Value) -> Result<()>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let name = value["metadata"]["name"].as_str().context("no name")?;
    api.patch(name, &PatchParams::apply("tests").force(), &Patch::Apply(value)).await?;
    Ok(())
}

/// The addresses of a node belong to its status, which is written apart; and not by
/// server-side apply, for which two addresses of one type are the same.
async fn put_node(client: Client, value: &Value) -> Result<()> {
    let api = Api::<Node>::all(client);
    let mut node = value.clone();
    let status = node["status"].take();
    put(&api, &node).await?;
    let name = value["metadata"]["name"].as_str().context("no name")?;
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(json!({"status": status}))).await?;
    Ok(())
}
