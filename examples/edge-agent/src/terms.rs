//! `edge-agent terms` and `edge-agent forget-term DRIVER`: the recorded terms of the drivers' proxies.
//!
//! A caller with the certificate of a driver can raise the driver's term. Once that certificate is denied, an operator
//! lets the agent forget the term.

use std::path::Path;

use csi_proto::DriverName;
use csi_proxy::Dispatcher;
use edge_transport::advanced::BoundSocket;

use super::inspect::lock_records;
use super::store::{AgentStore, TermTable};
use edge_csi_common::process::{Fatal, chain};
use edge_csi_common::state_socket;

/// The socket in the state directory. A request is a line, `terms` or `forget-term DRIVER`.
pub(super) const SOCKET: &str = "terms.sock";

/// A request about the terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    /// List the terms.
    List,
    /// Forget the term of a driver.
    Forget(DriverName),
}

impl Request {
    fn line(&self) -> String {
        match self {
            Self::List => "terms".to_owned(),
            Self::Forget(driver) => format!("forget-term {driver}"),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("terms", "") => Some(Self::List),
            ("forget-term", driver) => DriverName::new(driver).ok().map(Self::Forget),
            _ => None,
        }
    }
}

/// Sends the request to the running agent, or else executes it in the state directory. Returns the text to print.
pub(super) async fn ask(directory: &Path, request: &Request) -> Result<String, Fatal> {
    let text = match state_socket::command(&directory.join(SOCKET), &request.line(), "the agent")? {
        Some(text) => text,
        None => on_disk(directory, request).await?,
    };
    Ok(text + "\n")
}

/// Executes the request in a state directory that no agent uses.
async fn on_disk(directory: &Path, request: &Request) -> Result<String, Fatal> {
    let in_use =
        || format!("the agent that uses {} does not answer; repeat the command", directory.display());
    let _lock = lock_records(directory, "terms", in_use)?;
    let terms = AgentStore::open_intact(directory).map_err(Fatal::runtime)?.terms;
    let dispatcher = Dispatcher::new().with_terms(terms.clone());
    execute(request, &dispatcher, &terms).await.map_err(Fatal::Runtime)
}

/// Executes a request with the dispatcher that uses these terms. Returns the text to print, or why it failed.
async fn execute(request: &Request, dispatcher: &Dispatcher, terms: &TermTable) -> Result<String, String> {
    match request {
        Request::List => {
            let known = terms.load().await.map_err(|error| chain(&error))?;
            let width = known.keys().map(|driver| driver.as_str().len()).max().unwrap_or(0).max(6);
            let rows = known.iter().map(|(driver, term)| format!("\n{:width$}  {term}", driver.as_str()));
            Ok(format!("{:width$}  TERM{}", "DRIVER", rows.collect::<String>()))
        }
        Request::Forget(driver) => {
            dispatcher.forget_term(driver).await.map_err(|error| chain(&error))?;
            tracing::warn!(%driver, "an operator had this agent forget the term of the driver's proxy");
            Ok(format!("the term of driver {driver} is forgotten: the next call sets it"))
        }
    }
}

/// Answers requests until the future is dropped.
pub(super) async fn serve(socket: BoundSocket, dispatcher: Dispatcher, terms: TermTable) {
    let execute = move |line: String| {
        let (dispatcher, terms) = (dispatcher.clone(), terms.clone());
        async move {
            match Request::parse(&line) {
                Some(request) => execute(&request, &dispatcher, &terms).await,
                None => Err(
                    "expected one line: terms, or forget-term DRIVER; the agent may be of another version"
                        .to_owned(),
                ),
            }
        }
    };
    state_socket::serve_commands(socket, execute).await;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing test panics")]

    use csi_proxy::Term;

    use super::*;

    fn driver(name: &str) -> DriverName {
        DriverName::new(name).unwrap()
    }

    async fn printed(directory: &Path, request: Request) -> String {
        // Blocks while it waits for the answer.
        let directory = directory.to_owned();
        let asked = tokio::task::spawn_blocking(move || {
            tokio::runtime::Handle::current().block_on(ask(&directory, &request))
        });
        asked.await.unwrap().unwrap()
    }

    #[test]
    fn request_round_trips_and_other_lines_are_refused() {
        for request in [Request::List, Request::Forget(driver("a.example"))] {
            assert_eq!(Request::parse(&request.line()), Some(request));
        }
        for line in ["", "terms all", "forget-term", "forget-term no name!", "volumes"] {
            assert_eq!(Request::parse(line), None, "{line}");
        }
    }

    #[tokio::test]
    async fn terms_are_listed_and_forgotten_with_and_without_an_agent() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let missing = ask(path, &Request::List).await.unwrap_err();
        assert!(missing.to_string().contains("no records of terms"), "{missing}");
        let terms = AgentStore::open(path).unwrap().terms;
        for name in ["a.example", "b.example", "c.example"] {
            terms.raise(&driver(name), Term::CLOCK_MAX).await.unwrap();
        }
        let agent = tokio::spawn(serve(
            state_socket::bind(&path.join(SOCKET)).unwrap(),
            Dispatcher::new().with_terms(terms.clone()),
            terms.clone(),
        ));
        let answer = printed(path, Request::Forget(driver("a.example"))).await;
        assert!(answer.contains("a.example is forgotten"), "{answer}");
        let expected = "DRIVER     TERM\nb.example  4398046511104\nc.example  4398046511104\n";
        assert_eq!(printed(path, Request::List).await, expected);
        agent.abort();
        drop(agent.await);
        drop(terms);
        printed(path, Request::Forget(driver("b.example"))).await;
        assert_eq!(printed(path, Request::List).await, "DRIVER     TERM\nc.example  4398046511104\n");
    }
}
