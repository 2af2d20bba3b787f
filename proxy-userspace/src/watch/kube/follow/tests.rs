use std::{convert::Infallible, sync::Mutex};

use futures::stream;
use http::{Request, Response};
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, client::Body, core::PartialObjectMeta};
use tokio::time::Instant;
use tower::service_fn;

use super::*;
use crate::watch::{
    api::{Service, ServiceCidr},
    kube::observed::observed,
};

/// What a server says to a request: a status, and lines, each after a pause. Then it is silent.
struct Answer(u16, Vec<(u64, String)>);

fn lines(lines: &[&str]) -> Answer {
    Answer(200, lines.iter().map(|line| (0, (*line).to_owned())).collect())
}

/// An answer after which the watch ends as it does every few minutes.
const END: &str = "";

fn object(name: &str) -> String {
    format!(
        r#"{{"type": "ADDED", "object": {{"metadata": {{"name": "{name}", "namespace": "ns", "resourceVersion": "7"}},
           "spec": {{"clusterIP": "None"}}}}}}"#
    )
    .replace('\n', "")
}

const LISTED: &str = r#"{"type": "BOOKMARK", "object": {"apiVersion": "v1", "kind": "Service", "metadata": {"resourceVersion": "9", "annotations": {"k8s.io/initial-events-end": "true"}}}}"#;
const BOOKMARK: &str = r#"{"type": "BOOKMARK", "object": {"apiVersion": "v1", "kind": "Service", "metadata": {"resourceVersion": "10"}}}"#;
const GONE: &str = r#"{"type": "ERROR", "object": {"kind": "Status", "status": "Failure", "message": "too old", "reason": "Expired", "code": 410}}"#;
const INVALID: &str =
    r#"{"kind": "Status", "status": "Failure", "message": "forbidden", "reason": "Invalid", "code": 422}"#;
const LIST: &str =
    r#"{"kind": "ServiceList", "apiVersion": "v1", "metadata": {"resourceVersion": "8"}, "items": []}"#;

/// Follows objects of a server that answers one request after the other so.
struct Followed {
    kind: Kind,
    metrics: Arc<WatchMetrics>,
    signals: mpsc::Receiver<Timed>,
    asked: Arc<Mutex<Vec<&'static str>>>,
    started: Instant,
}

/// What a request asks for.
fn asks_for(query: &str) -> &'static str {
    match (query.contains("sendInitialEvents=true"), query.contains("watch=true")) {
        (true, _) => "stream",
        (_, true) => "watch",
        _ => "list",
    }
}

fn respond(
    answer: Answer,
) -> Response<StreamBody<impl stream::Stream<Item = Result<Frame<Bytes>, Infallible>>>> {
    let Answer(status, parts) = answer;
    let frames = stream::unfold(parts.into_iter(), |mut parts| async move {
        let Some((pause, line)) = parts.next() else { return std::future::pending().await };
        sleep(Duration::from_secs(pause)).await;
        (line != END).then(|| (Ok(Frame::data(Bytes::from(line + "\n"))), parts))
    });
    Response::builder().status(status).body(StreamBody::new(frames)).expect("a response")
}

fn refusal(status: u16) -> Answer {
    Answer(status, vec![(0, INVALID.replace("422", &status.to_string())), (0, END.into())])
}

fn follows(answers: Vec<Answer>) -> Followed {
    follows_kind::<Service>(answers)
}

fn follows_kind<K>(answers: Vec<Answer>) -> Followed
where
    K: Convert + Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let metrics = Arc::new(WatchMetrics::default());
    let (sender, signals) = mpsc::channel(1_000);
    let (asked, answers) = (Arc::new(Mutex::default()), Mutex::new(answers.into_iter()));
    let noted: Arc<Mutex<Vec<_>>> = Arc::clone(&asked);
    let service = service_fn(move |request: Request<Body>| {
        noted.lock().unwrap().push(asks_for(request.uri().query().unwrap_or_default()));
        let answer = answers.lock().unwrap().next();
        async move {
            match answer {
                Some(answer) => Ok::<_, Infallible>(respond(answer)),
                None => std::future::pending().await,
            }
        }
    });
    let client = observed(&Client::new(service, "default"), K::KIND, &metrics);
    let config = watcher::Config::default();
    let how = Follow { config, signals: sender, metrics: Arc::clone(&metrics) };
    tokio::spawn(follow(Api::<Lenient<K>>::all(client), how));
    Followed { kind: K::KIND, metrics, signals, asked, started: Instant::now() }
}

impl Followed {
    /// Waits for the end of a list; how many objects came until then.
    async fn listed(&mut self) -> usize {
        let mut objects = 0;
        loop {
            match self.signals.recv().await.expect("follows for ever").1 {
                Signal::ListBegins(_) => objects = 0,
                Signal::Object(..) => objects += 1,
                Signal::ListEnds(_) => return objects,
                Signal::Gone(..) | Signal::Lacking(_) | Signal::Denied(_) => panic!("none is said here"),
            }
        }
    }

    /// The next signal, in short.
    async fn next(&mut self) -> &'static str {
        match self.signals.recv().await.expect("follows for ever").1 {
            Signal::ListBegins(_) => "begins",
            Signal::Object(..) => "object",
            Signal::Gone(..) => "gone",
            Signal::ListEnds(_) => "ends",
            Signal::Lacking(_) => "lacking",
            Signal::Denied(_) => "denied",
        }
    }

    fn asked(&self) -> Vec<&'static str> {
        self.asked.lock().unwrap().clone()
    }

    fn seconds(&self) -> u64 {
        self.started.elapsed().as_secs()
    }

    /// Waits until the metric says so; the seconds since the start.
    async fn shows(&self, up: bool) -> u64 {
        while self.metrics.follows(self.kind) != up {
            assert!(self.seconds() < 600, "never {up}; asked {:?}", self.asked());
            sleep(Duration::from_millis(100)).await;
        }
        self.seconds()
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_takes_as_long_as_it_takes() {
    let objects = (0..20).map(|number| (20, object(&format!("a{number}"))));
    let mut followed = follows(vec![Answer(200, objects.chain([(20, LISTED.into())]).collect())]);
    assert_eq!(followed.listed().await, 20);
    assert_eq!((followed.seconds(), followed.metrics.watch_errors()), (420, 0));
    assert_eq!(followed.asked(), ["stream"]);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_stops_is_begun_anew_and_still_streams() {
    let (one, two) = (object("a"), object("b"));
    let mut followed = follows(vec![lines(&[&one]), lines(&[&one, &two, LISTED])]);
    assert_eq!(followed.listed().await, 2);
    assert!((30..=35).contains(&followed.seconds()), "{}", followed.seconds());
    assert_eq!((followed.asked(), followed.metrics.watch_errors()), (vec!["stream", "stream"], 1));
}

#[tokio::test(start_paused = true)]
async fn what_one_list_is_refused_the_next_asks_for_again() {
    let refused = || Answer(422, vec![(0, INVALID.into()), (0, END.into())]);
    let plain = Answer(200, vec![(0, LIST.into()), (0, END.into())]);
    let mut followed = follows(vec![refused(), plain, lines(&[GONE]), lines(&[&object("a"), LISTED])]);
    assert_eq!(followed.listed().await, 0);
    assert_eq!(followed.listed().await, 1);
    assert_eq!(followed.asked(), ["stream", "list", "watch", "stream"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_heard_shows_whether_a_watch_is_up() {
    let bookmarks = vec![(0, LISTED.into()), (10, BOOKMARK.into()), (10, END.into())];
    let mut followed = follows(vec![Answer(200, bookmarks), refusal(500), Answer(200, Vec::new())]);
    assert!(!followed.metrics.follows(Kind::Service), "nothing was said yet");
    followed.listed().await;
    assert_eq!(followed.shows(true).await, 0);
    // As after an error.
    followed.metrics.set_following(Kind::Service, false);
    assert_eq!(followed.shows(true).await, 10, "a bookmark came");
    assert_eq!(followed.shows(false).await, 20, "it was asked for anew, and refused");
    let back = followed.shows(true).await;
    assert!((20..=22).contains(&back), "resumed after {back} s, with nothing to report");
    assert_eq!(followed.asked(), ["stream", "watch", "watch"]);
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_not_shown_is_asked_for_again_soon() {
    let answers = vec![refusal(403), refusal(403), refusal(403), lines(&[LISTED])];
    let mut followed = follows_kind::<ServiceCidr>(answers);
    for longest in [0, 2, 6] {
        assert_eq!(followed.next().await, "denied");
        assert!(followed.seconds() <= longest, "{} s", followed.seconds());
        assert!(!followed.metrics.follows(Kind::ServiceCidr));
    }
    assert_eq!((followed.next().await, followed.next().await), ("begins", "ends"));
    assert!((7..=14).contains(&followed.seconds()), "{} s", followed.seconds());
    assert!(followed.metrics.follows(Kind::ServiceCidr));
    assert_eq!(followed.metrics.watch_errors(), 3);
}

#[tokio::test(start_paused = true)]
async fn only_of_a_recent_kind_does_not_found_mean_that_there_is_none() {
    let mut recent = follows_kind::<ServiceCidr>(vec![refusal(404), lines(&[LISTED])]);
    assert_eq!(recent.next().await, "lacking");
    assert_eq!((recent.next().await, recent.next().await), ("begins", "ends"));
    assert!(recent.seconds() >= 300);
    assert_eq!(recent.metrics.watch_errors(), 0);
    let mut pods = follows_kind::<PartialObjectMeta<Pod>>(vec![refusal(404), lines(&[LISTED])]);
    assert_eq!((pods.next().await, pods.next().await), ("begins", "ends"));
    assert_eq!(pods.metrics.watch_errors(), 1);
}

#[test]
fn refusals_in_a_row_are_asked_about_less_and_less() {
    let seconds = [1, 2, 3, 9, 10, u32::MAX].map(|refusals| after_refusals(refusals).as_secs());
    assert_eq!(seconds, [1, 2, 4, 256, 300, 300]);
}

#[test]
fn pauses_differ_from_agent_to_agent() {
    let [one, other] = [(); 2].map(|()| pauses().take(20).collect::<Vec<_>>());
    assert_ne!(one, other);
    assert!(one.iter().all(|pause| *pause >= PAUSES.0 && *pause <= 2 * PAUSES.1), "{one:?}");
    let spread = [(); 100].map(|()| spread(LACKING_RETRY));
    assert!(spread.iter().all(|pause| (LACKING_RETRY..=2 * LACKING_RETRY).contains(pause)));
    assert!(spread.iter().any(|pause| *pause != spread[0]));
}
