//! Real files in a temporary folder, read by a real source.

use std::{fs, io::Write, path::Path};

use tempfile::TempDir;
use tokio::time::timeout;

use super::{super::convert::Kind, *};
use crate::model::{Change, ObjectName};

const DEADLINE: Duration = Duration::from_secs(20);

fn service(name: &str, port: u16) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n\
         spec: {{clusterIP: 10.96.0.{port}, ports: [{{port: {port}}}]}}\n"
    )
}

struct Source {
    dir: TempDir,
    batches: Batches,
    metrics: Arc<WatchMetrics>,
    revision: u64,
    _tasks: Tasks,
}

impl Source {
    fn start(files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let metrics = Arc::new(WatchMetrics::default());
        let mut tasks = Tasks::default();
        let batches = super::start(dir.path().to_owned(), "n1".into(), metrics.clone(), &mut tasks).unwrap();
        Self { dir, batches, metrics, revision: 0, _tasks: tasks }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// The next batch, in short.
    async fn next(&mut self) -> Vec<String> {
        let batch = timeout(DEADLINE, self.batches.recv()).await.expect("a batch in time").unwrap();
        assert_eq!((batch.initial, batch.revision), (self.revision == 0, self.revision + 1));
        self.revision = batch.revision;
        batch.changes.iter().map(brief).collect()
    }

    /// The next batch that changes something.
    async fn next_change(&mut self) -> Vec<String> {
        loop {
            let changes = self.next().await;
            if !changes.is_empty() {
                return changes;
            }
        }
    }
}

fn brief(change: &Change) -> String {
    match change {
        Change::Service(s) => format!("+{}:{}", s.name, s.ports[0].port),
        Change::ServiceGone(name) => format!("-{name}"),
        Change::Node(n) => format!("+node {}", n.name),
        other => format!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_at_once_and_then_what_changes() {
    let two = service("a", 1) + "---\n" + &service("b", 2);
    let mut source = Source::start(&[("x.yaml", &two), ("y.txt", "not: [ours"), (".z.yaml", "not: [ours")]);
    assert_eq!(source.next().await, ["+default/a:1", "+default/b:2"]);
    source.write("x.yaml", &(service("a", 1) + "---\n" + &service("b", 3)));
    assert_eq!(source.next_change().await, ["+default/b:3"]);
    source.write("new.yml", &service("c", 4));
    assert_eq!(source.next_change().await, ["+default/c:4"]);
    fs::remove_file(source.path("x.yaml")).unwrap();
    assert_eq!(source.next_change().await, ["-default/a", "-default/b"]);
    assert_eq!(source.metrics.files_failed(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_look_prompted_by_a_write_is_answered() {
    let mut source = Source::start(&[("x.yaml", &service("a", 1))]);
    source.next().await;
    source.write("x.yaml", &(service("a", 1) + "# a remark\n"));
    assert!(source.next().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_file_keeps_its_objects_and_stops_nobody() {
    let mut source = Source::start(&[("x.yaml", &service("a", 1)), ("bad.yaml", "a: [")]);
    assert_eq!(source.next().await, ["+default/a:1"]);
    assert_eq!(source.metrics.files_failed(), 1);
    for broken in ["apiVersion: v1\nki", &(service("a", 1) + "---\nkind: ["), "just words"] {
        source.write("x.yaml", broken);
        assert!(source.next().await.is_empty(), "{broken}");
    }
    assert_eq!(source.metrics.files_failed(), 4);
    source.write("bad.yaml", &service("b", 2));
    assert_eq!(source.next_change().await, ["+default/b:2"]);
    source.write("x.yaml", &service("a", 3));
    assert_eq!(source.next_change().await, ["+default/a:3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_written_file_deletes_nothing() {
    let mut source = Source::start(&[("x.yaml", &(service("a", 1) + "---\n" + &service("b", 2)))]);
    source.next().await;
    let mut file = fs::File::create(source.path("x.yaml")).unwrap();
    file.write_all(service("a", 5).as_bytes()).unwrap();
    file.flush().unwrap();
    // Whatever is read meanwhile, `b` is not gone: the file is still open.
    assert!(source.next().await.is_empty());
    file.write_all(format!("---\n{}", service("b", 6)).as_bytes()).unwrap();
    drop(file);
    assert_eq!(source.next_change().await, ["+default/a:5", "+default/b:6"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_object_keeps_its_last_state_and_the_rest_goes_on() {
    let mut source = Source::start(&[("x.yaml", &(service("a", 1) + "---\n" + &service("b", 2)))]);
    source.next().await;
    source.write("x.yaml", &(service("a", 0) + "---\n" + &service("b", 3)));
    assert_eq!(source.next_change().await, ["+default/b:3"]);
    assert_eq!((source.metrics.rejected(Kind::Service), source.metrics.rejected_total()), (1, 1));
    source.write("x.yaml", &service("b", 3));
    assert_eq!(source.next_change().await, ["-default/a"], "removed, not merely refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_file_by_name_counts() {
    let mut source = Source::start(&[("1.yaml", &service("a", 1)), ("2.yaml", &service("a", 2))]);
    assert_eq!(source.next().await, ["+default/a:2"]);
    fs::remove_file(source.path("2.yaml")).unwrap();
    assert_eq!(source.next_change().await, ["+default/a:1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_renamed_into_place_and_links_are_followed() {
    let mut source = Source::start(&[]);
    assert!(source.next().await.is_empty());
    source.write("x.tmp", &service("a", 1));
    fs::rename(source.path("x.tmp"), source.path("x.yaml")).unwrap();
    assert_eq!(source.next_change().await, ["+default/a:1"]);
    for version in ["v1", "v2"] {
        fs::create_dir(source.path(version)).unwrap();
    }
    source.write("v1/l.yaml", &service("l", 1));
    source.write("v2/l.yaml", &service("l", 2));
    let link = |target: &str, name: &Path| std::os::unix::fs::symlink(target, name).unwrap();
    link("v1", &source.path("..data"));
    link("..data/l.yaml", &source.path("l.yaml"));
    assert_eq!(source.next_change().await, ["+default/l:1"]);
    link("v2", &source.path("..next"));
    fs::rename(source.path("..next"), source.path("..data")).unwrap();
    assert_eq!(source.next_change().await, ["+default/l:2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_folder_changes_nothing_until_it_is_back() {
    let mut folder = {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("x.yaml"), service("a", 1)).unwrap();
        let mut folder = Folder::new(dir.path().to_owned(), "n1".into(), Arc::default());
        assert_eq!(folder.read(&HashSet::new(), &HashSet::new()).len(), 1);
        dir.close().unwrap();
        folder
    };
    assert!(folder.read(&HashSet::new(), &HashSet::new()).is_empty());
    assert!(!folder.is_readable());
}

#[test]
fn lists_of_all_shapes() {
    let named = |text: &str, format| {
        let found = parse(text, format).unwrap();
        found.into_iter().map(|f| f.key.to_string()).collect::<Vec<_>>()
    };
    let indented = |text: String| text.replace('\n', "\n  ");
    let list = format!(
        "apiVersion: v1\nkind: List\nitems:\n- {}\n- {{apiVersion: v1, kind: ConfigMap, metadata: {{name: c}}}}\n",
        indented(service("a", 1))
    );
    assert_eq!(named(&list, Format::Yaml), ["Service default/a"]);
    let typed = r#"{"apiVersion": "v1", "kind": "ServiceList", "items": [
        {"metadata": {"name": "b", "namespace": "ns"}, "spec": {"clusterIP": "10.96.0.2", "ports": [{"port": 1}]}}]}
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}"#;
    assert_eq!(named(typed, Format::Json), ["Service ns/b", "Node n1"]);
    assert!(named("# nothing\n---\n---\n", Format::Yaml).is_empty());
    assert!(matches!(parse("---\n---\n- 1\n", Format::Yaml), Err(FileError::NotAnObject { document: 2 })));
    assert_eq!(ObjectName::new("ns", "b").to_string(), "ns/b");
}
