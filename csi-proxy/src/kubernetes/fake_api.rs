//! An API server in this process, with versions, conditions, pages and faults.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The API server answers with this code.
    Refused(u16),
    /// The request is not executed, and has no answer.
    Unsent,
    /// The request is executed, and has no answer.
    AnswerLost,
    /// The request is executed, and the answer never arrives.
    Stalled,
}

/// All clones are one API server.
#[derive(Debug, Clone, Default)]
pub(super) struct FakeApi(Arc<Mutex<State>>);

/// A collection and a name.
type Place = (String, String);

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<Place, Value>,
    version: u64,
    /// The maximum number of objects in a page; the real API server may return less than the limit too.
    page: usize,
    /// The rest of each list that can be continued.
    lists: Vec<Vec<Value>>,
    /// How many continued lists are expired.
    expired: usize,
    /// The faults of the next requests with these methods.
    faults: VecDeque<(Method, Fault)>,
    /// Collections without a definition.
    undefined: bool,
}

impl FakeApi {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(super) fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { api.serve(request).await }
        });
        Client::new(service, "default")
    }

    /// The next request with this method fails.
    pub(super) fn fail(&self, method: Method, fault: Fault) {
        self.state().faults.push_back((method, fault));
    }

    pub(super) fn clear_faults(&self) {
        self.state().faults.clear();
    }

    pub(super) fn set_page(&self, page: usize) {
        self.state().page = page;
    }

    /// The next continued lists, this many, are expired.
    pub(super) fn expire_lists(&self, lists: usize) {
        self.state().expired = lists;
    }

    /// Removes or adds the definitions of all custom resources.
    pub(super) fn set_undefined(&self, undefined: bool) {
        self.state().undefined = undefined;
    }

    /// All objects of a resource.
    pub(super) fn objects(&self, plural: &str) -> Vec<Value> {
        let state = self.state();
        let of = |place: &&Place| place.0.ends_with(&format!("/{plural}"));
        state.objects.iter().filter(|(place, _)| of(place)).map(|(_, object)| object.clone()).collect()
    }

    /// Changes an object as an operator would.
    pub(super) fn edit(&self, plural: &str, name: &str, edit: impl FnOnce(&mut Value)) {
        let mut state = self.state();
        let find =
            |(collection, found): &&Place| collection.ends_with(&format!("/{plural}")) && found == name;
        let place = state.objects.keys().find(find).unwrap().clone();
        let mut object = state.objects[&place].clone();
        edit(&mut object);
        state.put(place, object);
    }

    /// Copies an object to another name.
    pub(super) fn copy(&self, plural: &str, name: &str, to: &str) {
        let mut state = self.state();
        let find =
            |(collection, found): &&Place| collection.ends_with(&format!("/{plural}")) && found == name;
        let place = state.objects.keys().find(find).unwrap().clone();
        let mut object = state.objects[&place].clone();
        object["metadata"]["name"] = to.into();
        state.put((place.0, to.to_owned()), object);
    }

    pub(super) fn remove(&self, plural: &str) {
        self.state().objects.retain(|(collection, _), _| !collection.ends_with(&format!("/{plural}")));
    }

    async fn serve(&self, request: Request<Body>) -> io::Result<Response<Body>> {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        let fault = {
            let mut state = self.state();
            let at = state.faults.iter().position(|(method, _)| *method == parts.method);
            at.and_then(|at| state.faults.remove(at)).map(|(_, fault)| fault)
        };
        if let Some(Fault::Refused(code)) = fault {
            return Ok(failure(code, "Refused", ""));
        }
        if fault == Some(Fault::Unsent) {
            return Err(io::Error::other("the connection is lost before the request"));
        }
        let answer = self.state().execute(&parts.method, &parts.uri, &body);
        match fault {
            Some(Fault::AnswerLost) => Err(io::Error::other("the connection is lost after the request")),
            Some(Fault::Stalled) => std::future::pending().await,
            _ => Ok(answer),
        }
    }
}

impl State {
    fn execute(&mut self, method: &Method, uri: &http::Uri, body: &[u8]) -> Response<Body> {
        let parts: Vec<&str> = uri.path().trim_start_matches('/').split('/').collect();
        let ["apis", group, _, "namespaces", _, plural, ref name @ ..] = parts[..] else {
            panic!("{}", uri.path());
        };
        if self.undefined && group == "edge-csi.io" {
            return failure(404, "NotFound", "");
        }
        let collection = parts[..6].join("/");
        let given: Value = serde_json::from_slice(body).unwrap_or_default();
        let query = uri.query().unwrap_or_default().replace("%2F", "/").replace("%3D", "=");
        let query: BTreeMap<&str, &str> = query.split('&').filter_map(|pair| pair.split_once('=')).collect();
        match (method, name) {
            (&Method::GET, []) => {
                assert!(!query.contains_key("resourceVersion"), "the list is not consistent: {query:?}");
                self.list(&collection, &query)
            }
            (&Method::POST, []) => self.create(collection, plural, given),
            (method, [name]) => self.one(method, (collection, (*name).to_owned()), &given, &query),
            other => panic!("{other:?}"),
        }
    }

    fn create(&mut self, collection: String, plural: &str, mut given: Value) -> Response<Body> {
        let name = given["metadata"]["name"].as_str().unwrap().to_owned();
        let place = (collection, name.clone());
        if self.objects.contains_key(&place) {
            return failure(409, "AlreadyExists", &name);
        }
        assert_eq!(given["metadata"].get("resourceVersion"), None, "{given}");
        assert!(given["apiVersion"].is_string() && given["kind"].is_string(), "{plural}: {given}");
        given["metadata"]["uid"] = format!("uid-{}", self.version + 1).into();
        done(201, &self.put(place, given))
    }

    fn list(&mut self, collection: &str, query: &BTreeMap<&str, &str>) -> Response<Body> {
        let mut rest = match query.get("continue") {
            Some(_) if self.expired > 0 => {
                self.expired -= 1;
                return failure(410, "Expired", "");
            }
            Some(token) => std::mem::take(&mut self.lists[token.parse::<usize>().unwrap()]),
            None => {
                let (label, value) = query["labelSelector"].split_once('=').unwrap();
                let is_selected = |object: &&Value| object["metadata"]["labels"][label] == value;
                let all = self.objects.iter().filter(|((of, _), _)| of == collection);
                all.map(|(_, object)| object).filter(is_selected).cloned().collect()
            }
        };
        let limit: usize = query["limit"].parse().unwrap();
        let page = if self.page == 0 { limit } else { limit.min(self.page) };
        let next = rest.split_off(page.min(rest.len()));
        let mut metadata = json!({ "resourceVersion": self.version.to_string() });
        if !next.is_empty() {
            metadata["continue"] = self.lists.len().to_string().into();
            self.lists.push(next);
        }
        let kind = "List";
        done(200, &json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata, "items": rest }))
    }

    fn one(
        &mut self,
        method: &Method,
        place: Place,
        given: &Value,
        query: &BTreeMap<&str, &str>,
    ) -> Response<Body> {
        let Some(found) = self.objects.get(&place).cloned() else {
            return failure(404, "NotFound", &place.1);
        };
        let differs = |conditions: &Value, field: &str| {
            conditions[field].is_string() && conditions[field] != found["metadata"][field]
        };
        match *method {
            Method::GET => {
                assert!(!query.contains_key("resourceVersion"), "the read is not consistent: {query:?}");
                done(200, &found)
            }
            Method::PUT => {
                let metadata = &given["metadata"];
                if !metadata["resourceVersion"].is_string() {
                    return failure(422, "Invalid", &place.1);
                }
                if differs(metadata, "resourceVersion") || differs(metadata, "uid") {
                    return failure(409, "Conflict", &place.1);
                }
                let mut new = given.clone();
                new["metadata"]["uid"] = found["metadata"]["uid"].clone();
                done(200, &self.put(place, new))
            }
            Method::DELETE => {
                let conditions = &given["preconditions"];
                if differs(conditions, "resourceVersion") || differs(conditions, "uid") {
                    return failure(409, "Conflict", &place.1);
                }
                self.version += 1;
                self.objects.remove(&place);
                done(200, &found)
            }
            _ => panic!("{method}"),
        }
    }

    fn put(&mut self, place: Place, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.objects.insert(place, object.clone());
        object
    }
}

fn done(code: u16, object: &Value) -> Response<Body> {
    Response::builder().status(code).body(Body::from(object.to_string().into_bytes())).unwrap()
}

fn failure(code: u16, reason: &str, name: &str) -> Response<Body> {
    let message = format!("the fake API server answers {reason}");
    let details = json!({ "name": name });
    done(
        code,
        &json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason, "code": code,
            "details": details,
        }),
    )
}
