//! An API server that is good enough for a hub: it lists, watches, reads and changes objects of any kind, and knows nothing
//! of what they mean.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::edge::PATIENCE;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Where an object or a collection is: `resource` with the group before it, then namespace, name and subresource.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    resource: String,
    namespace: String,
    name: String,
}

impl Place {
    /// From a path; with the subresource, if there is one.
    fn parse(path: &str) -> Option<(Self, String)> {
        let mut parts = path.trim_start_matches('/').split('/');
        let group = match parts.next()? {
            "api" => format!("api/{}", parts.next()?),
            "apis" => format!("apis/{}/{}", parts.next()?, parts.next()?),
            _ => return None,
        };
        let parts: Vec<&str> = parts.collect();
        let (namespace, resource, parts) = match parts[..] {
            ["namespaces", namespace, resource, ref parts @ ..] => (namespace, resource, parts),
            [resource, ref parts @ ..] => ("", resource, parts),
            [] => return None,
        };
        let part = |at: usize| parts.get(at).map_or_else(String::new, |part| (*part).to_owned());
        let place =
            Self { resource: format!("{group}/{resource}"), namespace: namespace.to_owned(), name: part(0) };
        Some((place, part(1)))
    }

    fn holds(&self, other: &Self) -> bool {
        self.resource == other.resource && (self.namespace.is_empty() || self.namespace == other.namespace)
    }
}

#[derive(Debug, Clone)]
struct Change {
    version: u64,
    kind: &'static str,
    place: Place,
    object: Value,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<Place, Value>,
    changes: Vec<Change>,
    version: u64,
    /// Watches from before this version get 410 Expired.
    oldest: u64,
    /// Watches that began in an earlier round end.
    round: u64,
    /// The number of watches of each resource so far.
    watches: BTreeMap<String, u64>,
    /// Watches of a resource up to this number get nothing more.
    stalled: BTreeMap<&'static str, u64>,
    requests: Vec<String>,
    refusals: Vec<Refusal>,
    /// Requests that wait, by method and path, and words of the body.
    held: Option<(String, &'static str)>,
    /// Whether one of them has come.
    holds: bool,
    signer: Option<Signer>,
}

/// Returns the certificate in PEM for an approved request.
type Signer = Box<dyn Fn() -> String + Send>;

/// Requests that are answered with a failure.
struct Refusal {
    /// Method and path.
    request: String,
    /// What the body has in it.
    words: &'static str,
    code: u16,
}

/// A running server; it ends with the runtime.
#[derive(Clone)]
pub(super) struct FakeApi {
    state: Arc<Mutex<State>>,
    change: Arc<watch::Sender<()>>,
    pub(super) address: std::net::SocketAddr,
}

impl FakeApi {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = State { version: 1, ..State::default() };
        let api =
            Self { state: Arc::new(Mutex::new(state)), change: Arc::new(watch::channel(()).0), address };
        let served = api.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let api = served.clone();
                tokio::spawn(async move {
                    let service = service_fn(move |request| {
                        let api = api.clone();
                        async move { Ok::<_, Infallible>(api.answer(request).await) }
                    });
                    let connection = hyper::server::conn::http1::Builder::new();
                    let _ = connection.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        api
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Ends all watches; a watch that resumes from an old version gets 410 Expired, and has to list.
    pub(super) fn expire_watches(&self) {
        let mut state = self.state();
        state.round += 1;
        state.version += 1;
        state.oldest = state.version;
        drop(state);
        self.change.send_replace(());
    }

    /// The watches of a resource that have begun get nothing more, and do not end. Later ones do. Waits for the first: a hub is
    /// ready before it watches.
    pub(super) async fn stall_watches(&self, resource: &'static str) {
        let stalled = async {
            loop {
                let begun = self.state().watches.get(resource).copied();
                if let Some(begun) = begun {
                    self.state().stalled.insert(resource, begun);
                    break;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, stalled).await.unwrap();
    }

    /// From now on a request, by its method and path, waits if its body has these words.
    pub(super) fn hold(&self, request: String, words: &'static str) {
        self.state().held = Some((request, words));
    }

    /// Waits until a request is held.
    pub(super) async fn holds(&self) {
        let held = async {
            while !self.state().holds {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, held).await.unwrap();
    }

    /// The held requests go on.
    pub(super) fn release(&self) {
        let mut state = self.state();
        (state.held, state.holds) = (None, false);
        drop(state);
        self.change.send_replace(());
    }

    /// Methods and paths of what was asked so far, without lists and watches.
    pub(super) fn requests(&self) -> Vec<String> {
        self.state().requests.clone()
    }

    /// From now on a request, by its method and path, fails if its body has these words. A list and a watch have no body.
    pub(super) fn refuse(&self, request: String, words: &'static str, code: u16) {
        self.state().refusals.push(Refusal { request, words, code });
    }

    /// From now on approved certificate requests are signed.
    pub(super) fn signs(&self, signer: impl Fn() -> String + Send + 'static) {
        self.state().signer = Some(Box::new(signer));
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let Some((place, part)) = Place::parse(uri.path()) else { return failure(404, "NotFound") };
        let query: BTreeMap<&str, &str> =
            uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('=')).collect();
        let asked = format!("{method} {}", uri.path());
        if method == Method::GET && place.name.is_empty() {
            if let Some(code) = self.state().refusal(&asked, b"") {
                return failure(code, "Refused");
            }
            return match query.get("watch") {
                Some(_) => self.watch(place, query.get("resourceVersion").unwrap().parse().unwrap()),
                None => self.list(&place),
            };
        }
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let refusal = self.state().refusal(&asked, &body);
        self.state().requests.push(asked.clone());
        let mut change = self.change.subscribe();
        while self.state().hold(&asked, &body) {
            change.changed().await.unwrap();
        }
        if let Some(code) = refusal {
            return failure(code, "Refused");
        }
        let answer = self.one(&method, place, &part, &body);
        self.change.send_replace(());
        answer
    }

    fn list(&self, place: &Place) -> Response<Body> {
        let state = self.state();
        let items = state.objects.iter().filter(|(at, _)| place.holds(at)).map(|(_, object)| object.clone());
        let items: Vec<Value> = items.collect();
        let version = state.version.to_string();
        done(
            200,
            &json!({ "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": version }, "items": items }),
        )
    }

    fn watch(&self, place: Place, since: u64) -> Response<Body> {
        let (round, number) = {
            let mut state = self.state();
            let round = state.round;
            let watches = state.watches.entry(place.resource.clone()).or_default();
            *watches += 1;
            (round, *watches)
        };
        let start = (self.clone(), self.change.subscribe(), Some(since));
        let lines = stream::unfold(start, move |(api, mut change, sent)| {
            let place = place.clone();
            async move {
                let mut sent = sent?;
                loop {
                    change.borrow_and_update();
                    match api.changes_of(&place, (round, number), &mut sent) {
                        WatchBatch::Ended => return None,
                        WatchBatch::TooOld(line) => return Some((line, (api, change, None))),
                        WatchBatch::Lines(lines) if !lines.is_empty() => {
                            return Some((lines, (api, change, Some(sent))));
                        }
                        WatchBatch::Lines(_) => {}
                    }
                    change.changed().await.ok()?;
                }
            }
        });
        let body = StreamBody::new(lines.map(|lines| Ok(Frame::data(Bytes::from(lines)))));
        Response::new(BodyExt::boxed_unsync(body))
    }

    /// The events for a watch, in lines.
    fn changes_of(&self, place: &Place, (round, number): (u64, u64), sent: &mut u64) -> WatchBatch {
        let state = self.state();
        if state.stalled.get(&place.resource[..]).is_some_and(|last| number <= *last) {
            return WatchBatch::Lines(String::new());
        }
        if *sent < state.oldest && state.round == round {
            let expired = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "too old resource version", "reason": "Expired", "code": 410,
            });
            return WatchBatch::TooOld(format!("{}\n", json!({ "type": "ERROR", "object": expired })));
        }
        if state.round != round {
            return WatchBatch::Ended;
        }
        let new = state.changes.iter().filter(|change| change.version > *sent && place.holds(&change.place));
        let lines =
            new.map(|change| format!("{}\n", json!({ "type": change.kind, "object": change.object })));
        let lines = lines.collect();
        *sent = state.version;
        WatchBatch::Lines(lines)
    }

    /// Anything that is about one object.
    fn one(&self, method: &Method, mut place: Place, part: &str, body: &[u8]) -> Response<Body> {
        let mut state = self.state();
        let given: Value = serde_json::from_slice(body).unwrap_or_default();
        if part == "token" {
            let audiences = given["spec"]["audiences"].to_string();
            let token = format!(
                "token of {} for {audiences} bound to {}",
                place.name, given["spec"]["boundObjectRef"]["uid"]
            );
            let status = json!({ "token": token, "expirationTimestamp": "2030-01-01T00:00:00Z" });
            return done(201, &json!({ "kind": "TokenRequest", "spec": given["spec"], "status": status }));
        }
        if *method == Method::POST {
            place.name = given["metadata"]["name"].as_str().unwrap().to_owned();
            if state.objects.contains_key(&place) {
                return failure(409, "AlreadyExists");
            }
            let mut new = given;
            let uid = format!("uid-{}", state.version + 1);
            new["metadata"]["uid"] = uid.into();
            return done(201, &state.put(place, "ADDED", new));
        }
        let Some(found) = state.objects.get(&place).cloned() else { return failure(404, "NotFound") };
        match *method {
            Method::GET => done(200, &found),
            Method::DELETE => {
                let old = state.put(place.clone(), "DELETED", found);
                state.objects.remove(&place);
                done(200, &old)
            }
            Method::PATCH => {
                let differs = |field: &str| {
                    let wanted = &given["metadata"][field];
                    !wanted.is_null() && *wanted != found["metadata"][field]
                };
                if differs("uid") || differs("resourceVersion") {
                    return failure(409, "Conflict");
                }
                // Only a subresource changes the status, and nothing else.
                let mut patch = given;
                match part {
                    "status" => patch = json!({ "status": patch["status"] }),
                    "approval" => {
                        patch = json!({ "status": { "conditions": patch["status"]["conditions"] } });
                        if let Some(signer) = &state.signer {
                            patch["status"]["certificate"] = STANDARD.encode(signer()).into();
                        }
                    }
                    _ => drop(patch.as_object_mut().unwrap().remove("status")),
                }
                let mut new = found.clone();
                merge(&mut new, &patch);
                if new == found { done(200, &found) } else { done(200, &state.put(place, "MODIFIED", new)) }
            }
            _ => failure(405, "MethodNotAllowed"),
        }
    }
}

enum WatchBatch {
    Lines(String),
    TooOld(String),
    Ended,
}

impl State {
    /// The code of the failure of a request, if it is to fail.
    fn refusal(&self, asked: &str, body: &[u8]) -> Option<u16> {
        let body = String::from_utf8_lossy(body);
        let mut refusals = self.refusals.iter();
        let refusal = refusals.find(|refusal| refusal.request == asked && body.contains(refusal.words));
        refusal.map(|refusal| refusal.code)
    }

    fn hold(&mut self, asked: &str, body: &[u8]) -> bool {
        let held = self.held.as_ref().is_some_and(|(request, words)| {
            request == asked && String::from_utf8_lossy(body).contains(words)
        });
        self.holds |= held;
        held
    }

    fn put(&mut self, place: Place, kind: &'static str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        if !place.namespace.is_empty() {
            object["metadata"]["namespace"] = place.namespace.clone().into();
        }
        self.changes.push(Change {
            version: self.version,
            kind,
            place: place.clone(),
            object: object.clone(),
        });
        self.objects.insert(place, object.clone());
        object
    }
}

/// RFC 7386.
fn merge(object: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (key, value) in patch {
        let fields = object.as_object_mut().unwrap();
        if value.is_null() {
            fields.remove(key);
        } else {
            merge(fields.entry(key).or_insert(Value::Null), value);
        }
    }
}

fn done(code: u16, object: &Value) -> Response<Body> {
    let body = http_body_util::Full::new(Bytes::from(object.to_string())).boxed_unsync();
    Response::builder()
        .status(StatusCode::from_u16(code).unwrap())
        .header("content-type", "application/json")
        .body(body)
        .unwrap()
}

fn failure(code: u16, reason: &str) -> Response<Body> {
    let message = format!("the fake API server says {reason}");
    done(
        code,
        &json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason, "code": code }),
    )
}
