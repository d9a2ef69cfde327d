//! A minimal client of the API server over `kubectl proxy`, which handles TLS and tokens.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use edge_csi_tests::wait;
use serde_json::Value;

use crate::error::E2eError;

/// Time limit for one response.
const ANSWER: Duration = Duration::from_secs(60);

/// Time between two reads of an object.
const PAUSE: Duration = Duration::from_millis(100);

/// The longest excerpt of an object in an error message, in characters.
const SHOWN: usize = 1500;

/// The API server at one address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Api {
    address: SocketAddr,
}

impl Api {
    pub(crate) const fn new(address: SocketAddr) -> Self {
        Self { address }
    }

    /// Returns true if the server responds and reports that it is ready.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.ask("GET", "/readyz", "", ""), Ok((200, _)))
    }

    /// Creates an object in `collection`.
    pub(crate) fn create(&self, collection: &str, object: &Value) -> Result<(), E2eError> {
        self.change("POST", collection, "application/json", &object.to_string())
    }

    /// Posts a query object, such as a review, and returns the object in the response.
    pub(crate) fn ask_with(&self, collection: &str, object: &Value) -> Result<Value, E2eError> {
        match self.ask("POST", collection, "application/json", &object.to_string())? {
            (200..=202, text) => serde_json::from_str(&text).map_err(|cause| E2eError::Api {
                asked: format!("POST {collection}"),
                cause: io::Error::new(io::ErrorKind::InvalidData, cause),
            }),
            (status, said) => Err(refused("POST", collection, status, &said)),
        }
    }

    /// Creates an object given as YAML.
    pub(crate) fn create_yaml(&self, collection: &str, object: &str) -> Result<(), E2eError> {
        self.change("POST", collection, "application/yaml", object)
    }

    /// Merges `patch` into the object at `path`.
    pub(crate) fn merge(&self, path: &str, patch: &Value) -> Result<(), E2eError> {
        self.change("PATCH", path, "application/merge-patch+json", &patch.to_string())
    }

    /// Deletes the object at `path`, if it exists.
    pub(crate) fn delete(&self, path: &str) -> Result<(), E2eError> {
        match self.ask("DELETE", path, "", "")? {
            (200 | 202 | 404, _) => Ok(()),
            (status, said) => Err(refused("DELETE", path, status, &said)),
        }
    }

    /// Returns the object at `path`, if it exists.
    pub(crate) fn read(&self, path: &str) -> Result<Option<Value>, E2eError> {
        match self.ask("GET", path, "", "")? {
            (200, text) => serde_json::from_str(&text).map(Some).map_err(|cause| E2eError::Api {
                asked: format!("GET {path}"),
                cause: io::Error::new(io::ErrorKind::InvalidData, cause),
            }),
            (404, _) => Ok(None),
            (status, said) => Err(refused("GET", path, status, &said)),
        }
    }

    /// Returns all objects of a collection.
    pub(crate) fn list(&self, collection: &str) -> Result<Vec<Value>, E2eError> {
        let mut list = self.read(collection)?.unwrap_or_default();
        match list["items"].take() {
            Value::Array(items) => Ok(items),
            _ => Ok(Vec::new()),
        }
    }

    /// Waits until `reached` returns a value for the object at `path`, and returns that value.
    pub(crate) fn until<T>(
        &self,
        path: &str,
        waited_for: &str,
        bound: Duration,
        reached: impl Fn(&Value) -> Option<T>,
    ) -> Result<T, E2eError> {
        let mut last = "nothing was read".to_owned();
        let found = wait::poll_every(PAUSE, bound, || match self.read(path) {
            Ok(Some(object)) => {
                let found = reached(&object);
                last = brief(&object);
                found
            }
            Ok(None) => {
                last = "object not found".to_owned();
                None
            }
            Err(error) => {
                last = error.to_string();
                None
            }
        });
        let waited_for = format!("{path}: {waited_for}");
        found.ok_or(E2eError::Timeout { waited_for, bound, last })
    }

    /// Waits until no object exists at `path`.
    pub(crate) fn until_removed(&self, path: &str, bound: Duration) -> Result<(), E2eError> {
        let mut last = String::new();
        let removed = wait::poll_every(PAUSE, bound, || match self.read(path) {
            Ok(None) => Some(()),
            Ok(Some(object)) => {
                last = brief(&object);
                None
            }
            Err(error) => {
                last = error.to_string();
                None
            }
        });
        removed.ok_or_else(|| E2eError::Timeout { waited_for: format!("{path} removed"), bound, last })
    }

    /// Reads the events of a collection until `reached` returns a value for an event that is no deletion, and returns that value.
    /// The first events are of the existing objects.
    pub(crate) fn watch<T>(
        &self,
        collection: &str,
        waited_for: &str,
        bound: Duration,
        mut reached: impl FnMut(&Value) -> Option<T>,
    ) -> Result<T, E2eError> {
        // From what the server has in memory: without a version it refuses a watch while that is older than its storage.
        let (end, path) = (Instant::now() + bound, format!("{collection}?watch=true&resourceVersion=0"));
        let failed = |cause| E2eError::Api { asked: format!("GET {path}"), cause };
        let open = || self.send("GET", &path, "", "").map(BufReader::new).map_err(failed);
        let (mut events, mut last) = (open()?, "no event".to_owned());
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let waited_for = format!("{path}: {waited_for}");
                let last = last.chars().take(SHOWN).collect();
                return Err(E2eError::Timeout { waited_for, bound, last });
            }
            let mut line = String::new();
            match events.get_ref().set_read_timeout(Some(left)).and_then(|()| events.read_line(&mut line)) {
                // The server ends the watch of a client that is slower than the events.
                Ok(0) => events = open()?,
                Ok(_) => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                }
                Err(error) => return Err(failed(error)),
            }
            // The lines of the response's head are no objects.
            let Ok(event @ Value::Object(_)) = serde_json::from_str::<Value>(&line) else { continue };
            match event["type"].as_str() {
                Some("ADDED" | "MODIFIED") => {
                    if let Some(found) = reached(&event["object"]) {
                        return Ok(found);
                    }
                }
                Some("ERROR") => return Err(refused("GET", &path, 200, &event["object"].to_string())),
                _ => {}
            }
            last = line;
        }
    }

    fn change(&self, method: &str, path: &str, kind: &str, body: &str) -> Result<(), E2eError> {
        match self.ask(method, path, kind, body)? {
            (200..=202, _) => Ok(()),
            (status, said) => Err(refused(method, path, status, &said)),
        }
    }

    /// Sends one request, and returns the status and the body of the response.
    fn ask(&self, method: &str, path: &str, kind: &str, body: &str) -> Result<(u16, String), E2eError> {
        self.exchange(method, path, kind, body)
            .map_err(|cause| E2eError::Api { asked: format!("{method} {path}"), cause })
    }

    fn exchange(&self, method: &str, path: &str, kind: &str, body: &str) -> io::Result<(u16, String)> {
        let mut answer = String::new();
        self.send(method, path, kind, body)?.read_to_string(&mut answer)?;
        parse(&answer).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn send(&self, method: &str, path: &str, kind: &str, body: &str) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect_timeout(&self.address, ANSWER)?;
        stream.set_read_timeout(Some(ANSWER))?;
        // An HTTP/1.0 response ends with its connection and is not chunked.
        let head = format!(
            "{method} {path} HTTP/1.0\r\nHost: localhost\r\nAccept: application/json\r\nContent-Type: {kind}\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body.as_bytes())?;
        Ok(stream)
    }
}

/// Parses the status and the body of a response.
fn parse(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

fn refused(method: &str, path: &str, status: u16, said: &str) -> E2eError {
    let said = serde_json::from_str::<Value>(said)
        .ok()
        .and_then(|status| status["message"].as_str().map(ToOwned::to_owned))
        .unwrap_or_else(|| said.chars().take(SHOWN).collect());
    E2eError::Refused { asked: format!("{method} {path}"), status, said }
}

/// Formats an object without its `managedFields`, cut to [`SHOWN`] characters.
fn brief(object: &Value) -> String {
    let mut object = object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    object.to_string().chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_and_body_are_read_from_an_answer() {
        let answer = "HTTP/1.0 201 Created\r\nContent-Type: application/json\r\n\r\n{\"a\":1}";
        assert_eq!(parse(answer), Some((201, "{\"a\":1}".to_owned())));
        assert_eq!(parse("HTTP/1.0"), None);
    }

    #[test]
    fn a_refusal_says_what_the_server_said() {
        let error = refused("POST", "/api", 409, r#"{"message":"it is there already"}"#);
        assert_eq!(error.to_string(), "POST /api: the API server answered 409: it is there already");
    }
}
